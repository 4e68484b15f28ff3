"""The chat's web page: what its server answers, and what a browser makes of it, by keys and clicks."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from browser import CHROMIUM, Browser
from tiny import make_tiny_tokenizer

from agent_gym.chat import ChatRenderer
from agent_gym.policies import ScriptedPolicy
from agent_gym.rollout import EpisodeSpec, make_env
from agent_gym.serve.conversation import Conversation, Limits
from agent_gym.serve.page import ChatServer
from agent_gym.serve.server import bind

HOSTILE = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48/2"}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48/0"}}\n</tool_call>'


class Leave(Exception):
    """Ends the thread of the policy."""


class Served:
    """A chat server with a script behind it; `pause` is called before each turn."""

    def __init__(self, turns: list[str]) -> None:
        self.turns, self.pause = list(turns), lambda: None
        tokenizer = make_tiny_tokenizer()
        encode = ChatRenderer.of(tokenizer).encode_action
        policy = ScriptedPolicy(self._act, encode)
        spec = EpisodeSpec("AgentR1/GSM8K-v0", {}, seed=3)
        env = make_env(spec.env_id, {}, tokenizer)
        conversation = Conversation(env, policy, tokenizer, spec, Limits(tokens=4096))
        self.server = ChatServer(conversation, "a script " + HOSTILE, bind(port=0))
        self.url = self.server.url

    def _act(self, episode: Any) -> str:
        self.pause()
        return self.turns.pop(0)

    def __enter__(self) -> Served:
        self._web = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._talker = threading.Thread(target=self._talk, daemon=True)
        self._web.start()
        self._talker.start()
        return self

    def _talk(self) -> None:
        try:
            self.server.talk()
        except Leave:
            pass

    def __exit__(self, *error: object) -> None:
        def leave() -> None:
            raise Leave

        self.pause = leave
        self.turns = [""]
        until(lambda: self.server.order("leave") or not self._talker.is_alive())
        self._talker.join(10)
        with self.server:
            pass
        self._web.join()

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        content = body if isinstance(body, str | None) else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, content, headers)
        answer = connection.getresponse()
        read = answer.read()
        connection.close()
        return answer.status, json.loads(read) if answer.headers[
            "Content-Type"
        ] == "application/json" else read.decode()

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


def until(holds: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def served() -> Iterator[Served]:
    with Served([CALL, "It is 24. " + HOSTILE, BROKEN, "That cannot be."]) as chat:
        yield chat


def test_events_are_streamed_and_continued_where_they_broke_off(served: Served) -> None:
    assert served.ask("/say", {"text": "What is 48/2?"}) == (200, {})
    events = served.events(6)
    assert [number for number, _ in events] == list(range(6))
    kinds = [event["kind"] for _, event in events]
    assert kinds[:3] == ["begin", "person", "text"] and events[0][1]["env_id"] == "AgentR1/GSM8K-v0"
    until(lambda: not served.server._busy)
    everything = served.events(len(served.server._events))
    assert everything[-1][1]["kind"] == "end"
    assert served.events(2, **{"Last-Event-ID": "4"}) == everything[5:7]
    last = everything[-1][0]
    assert served.ask("/reset", {})[0] == 200
    # What was before is gone, and the numbers go on.
    (begin,) = served.events(1, **{"Last-Event-ID": str(last)})
    assert begin == (last + 1, everything[0][1])


def test_a_trajectory_can_be_had_when_there_is_one(served: Served) -> None:
    status, answer = served.ask("/trajectory")
    assert status == 409 and "say something first" in answer["detail"]
    served.ask("/say", {"text": "What is 48/2?"})
    until(lambda: not served.server._busy)
    status, line = served.ask("/trajectory")
    assert status == 200 and json.loads(line)["messages"][-1]["role"] == "assistant"


def test_one_at_a_time(served: Served) -> None:
    going = threading.Event()
    served.pause = lambda: going.wait(30)  # type: ignore[assignment, return-value]
    served.ask("/say", {"text": "a"})
    assert served.ask("/say", {"text": "b"})[0] == 409 and served.ask("/reset", {})[0] == 409
    assert served.ask("/trajectory")[0] == 409
    going.set()
    until(lambda: not served.server._busy)
    assert served.ask("/say", {"text": "b"})[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/say", {"text": "x"}, {"Origin": "http://evil.example"}, 403),
        ("/say", {"text": "x"}, {"Origin": "null"}, 403),
        ("/say", {"text": "x"}, {"Host": "evil.example:80"}, 403),
        ("/events", None, {"Host": "evil.example"}, 403),
        ("/trajectory", None, {"Origin": "http://127.0.0.1:1"}, 403),
        ("/say", {"text": " "}, {}, 400),
        ("/say", {}, {}, 400),
        ("/say", "[", {}, 400),
        ("/say", {"text": "x" * (1 << 19)}, {}, 413),
        ("/elsewhere", {}, {}, 404),
        ("/../server.py", None, {}, 404),
    ],
)
def test_other_sites_and_wrong_requests_are_refused(
    served: Served, path: str, body: Any, headers: dict[str, str], status: int
) -> None:
    assert served.ask(path, body, **headers)[0] == status
    assert [event["kind"] for event in served.server._events] == ["begin"]


def visit(browser: Browser, url: str, **screen: Any) -> None:
    class Address:
        def resolve(self) -> Address:
            return self

        def as_uri(self) -> str:
            return url

    browser.open(Address(), **screen)  # type: ignore[arg-type]
    until(lambda: browser.js("document.title") != "Chat")


def write(browser: Browser, text: str) -> None:
    browser.send("Input.insertText", text=text)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_person_talks_in_a_browser(served: Served, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        visit(browser, served.url)
        assert browser.texts("#title") == ["AgentR1/GSM8K-v0"] and browser.js("document.activeElement.id") == "text"
        write(browser, "What is 48/2? " + HOSTILE)
        browser.press("Enter")
        until(lambda: browser.texts(".end"))
        assert browser.texts(".person") == ["What is 48/2? " + HOSTILE]
        assert browser.texts(".card .name") == ["calculator"] and browser.texts(".card .result") == ["24"]
        assert browser.texts(".turn")[-1] == "It is 24. " + HOSTILE
        assert browser.js("document.querySelectorAll('img, #talk script').length") == 0
        assert (
            browser.js("document.title") == "Chat: AgentR1/GSM8K-v0"
            and browser.js("document.activeElement.id") == "text"
        )
        # A reload loses nothing.
        before = browser.texts("#talk")
        visit(browser, served.url, width=380, height=720, dark=True, touch=True)
        until(lambda: browser.texts("#talk"))
        assert len(browser.texts(".card")) == 1 and browser.texts(".end") and before
        assert browser.js("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
        # A failed call, and a line break that does not send.
        browser.js("document.getElementById('text').focus()")
        write(browser, "Divide\nby zero")
        browser.press("Enter")
        until(lambda: len(browser.texts(".end")) == 2)
        assert browser.js("document.querySelectorAll('.card.failed').length") == 1
        main = "document.querySelector('main')"
        assert browser.js(f"{main}.scrollHeight - {main}.scrollTop - {main}.clientHeight < 5"), "the end is in sight"
        # A new conversation, by keys alone: the button stands before the message.
        browser.js("document.getElementById('reset').focus()")
        browser.press("Tab", "Tab", "Tab", "Tab")
        assert browser.js("document.activeElement.closest('#opening, #text, #talk, main') !== null")
        browser.click("#reset")
        until(lambda: not browser.texts(".person"))
        assert browser.errors == []


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_escape_stops_the_policy(tmp_path: Path) -> None:
    with Served(["never heard " * 20, "heard"]) as served, Browser(tmp_path) as browser:
        visit(browser, served.url)
        stopping = threading.Event()
        served.pause = lambda: stopping.wait(30)  # type: ignore[assignment, return-value]
        write(browser, "Talk.")
        browser.press("Enter")
        until(lambda: browser.js("!document.getElementById('stop').hidden"))
        browser.press("Escape")
        until(served.server._conversation._stopped.is_set)
        stopping.set()
        until(lambda: browser.texts(".end"))
        assert "stopped" in browser.texts(".end")[0] and browser.js("document.getElementById('stop').hidden")
        write(browser, "Again.")
        browser.press("Enter")
        until(lambda: len(browser.texts(".end")) == 2)
        assert browser.texts(".turn")[-1] == "heard" and browser.errors == []
