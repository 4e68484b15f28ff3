"""What the tests of servers share: a request, and a server of chats with a script behind it."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from process_tools import until
from tiny import make_tiny_tokenizer

from agent_gym.chat import ChatRenderer
from agent_gym.policies import ScriptedPolicy
from agent_gym.rollout import EpisodeSpec, make_env
from agent_gym.serve.conversation import ChatLimits, Conversation
from agent_gym.serve.page import ChatServer
from agent_gym.serve.server import bind

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48/2"}}\n</tool_call>'
HOSTILE = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"


def ask(url: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """Send a request; its status, its content (read, if it is JSON), and its headers."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    content = body if isinstance(body, str | None) else json.dumps(body)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET" if body is None else "POST", path, content, names)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    kind = answer.headers["Content-Type"]
    return answer.status, json.loads(text) if kind == "application/json" else text, answer.headers


def scripted(
    turns: list[Any] | Callable[[], str],
    env_id: str = "AgentR1/GSM8K-v0",
    limits: ChatLimits | None = None,
    tokenizer: Any = None,
    **env_kwargs: Any,
) -> Conversation:
    """A conversation with a script: texts and functions that return them, or one function for every turn."""
    tokenizer = tokenizer or make_tiny_tokenizer()
    left = iter(turns) if isinstance(turns, list) else itertools.repeat(turns)

    def act(episode: Any) -> str:
        turn = next(left)
        return turn() if callable(turn) else turn

    policy = ScriptedPolicy(act, ChatRenderer.of(tokenizer).encode_action)
    env = make_env(env_id, env_kwargs, tokenizer)
    return Conversation(env, policy, tokenizer, EpisodeSpec(env_id, env_kwargs, seed=3), limits)


class Served:
    """A chat server with a script behind it; `pause` is called before each turn."""

    def __init__(self, turns: list[str]) -> None:
        self.turns, self.pause = list(turns), lambda: None
        conversation = scripted(self._act, limits=ChatLimits(tokens=4096))
        self.server = ChatServer(conversation, "a script " + HOSTILE, bind(port=0))
        self.url = self.server.url

    def _act(self) -> str:
        self.pause()
        return self.turns.pop(0)

    def __enter__(self) -> Served:
        self._web = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._web.start()
        threading.Thread(target=self.server.talk, daemon=True).start()  # it waits for ever for the next order
        return self

    def __exit__(self, *error: object) -> None:
        self.wait()
        with self.server:
            pass
        self._web.join()

    def say(self, text: str) -> int:
        return ask(self.url, "/say", {"text": text})[0]

    def wait(self) -> None:
        until(lambda: not self.server._busy)

    def events(self, count: int, **headers: str) -> list[tuple[int, dict[str, Any]]]:
        """The first `count` events of a stream."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        connection.request("GET", "/events", headers=headers)
        answer = connection.getresponse()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        found: list[tuple[int, dict[str, Any]]] = []
        number = -1
        while len(found) < count:
            line = answer.readline().decode()
            if line.startswith("id: "):
                number = int(line[4:])
            if line.startswith("data: "):
                found.append((number, json.loads(line[6:])))
        connection.close()
        return found
