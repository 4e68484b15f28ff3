"""A small server that speaks OpenAI's protocol and gives prepared answers, as a whole or as a stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rollout_tools import counting

from agent_gym.chat import ChatRenderer
from agent_gym.policies import Generation, OpenAIPolicy, Request, SamplingParams
from agent_gym.rollout import LiveEpisode, Row


class Server:
    """Answers from a list, the last answer again and again, and keeps the requests."""

    def __init__(self, *answers: tuple[int, Any], models: Any = None, ids: bool = False) -> None:
        self.answers, self.models = list(answers), models
        self.endpoint = "/v1/completions" if ids else "/chat/completions"
        self.asked: list[tuple[str, Any, str | None]] = []
        self.lock, self.left = threading.Lock(), threading.Event()

    def read(self, body: bytes) -> Any:
        return json.loads(body)

    def answer(self, path: str, content: Any, key: str | None) -> tuple[int, Any]:
        with self.lock:
            self.asked.append((path, content, key))
            if path.endswith("/models"):
                return self.models or (200, {"data": [{"id": "m"}]})
            if path.endswith(self.endpoint):
                return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            return 400, {"error": "no such parameter: return_token_ids"}


class Listener(ThreadingHTTPServer):
    request_queue_size = 128  # with the standard 5, a burst of connections on a busy machine sees resets


@contextmanager
def serving(server: Server) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # noqa: N802
            self.reply(None)

        def do_POST(self) -> None:  # noqa: N802
            self.reply(server.read(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, content: Any) -> None:
            status, answer = server.answer(self.path, content, self.headers.get("Authorization"))
            if isinstance(answer, Iterator):
                return self.stream(answer)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def stream(self, pieces: Iterator[str]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for piece in pieces:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece.encode()), piece.encode()))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True
                server.left.set()

        def log_message(self, *_: Any) -> None:
            pass

    http = Listener(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/v1"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def says(text: str | None, finish_reason: str = "stop") -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}]}


def streams(*pieces: Any) -> tuple[int, Any]:
    """Answer with events: texts as they stand, the rest as JSON, and what can be called is called in between."""

    def events() -> Iterator[str]:
        for piece in pieces:
            if callable(piece):
                piece()
            else:
                yield piece if isinstance(piece, str) else f"data: {json.dumps(piece)}\n\n"

    return 200, events()


def delta(text: str | None, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": {} if text is None else {"content": text}, "finish_reason": finish_reason}]}


def conversation() -> LiveEpisode:
    return LiveEpisode(counting(1)[0], rows=[Row()], messages=[{"role": "user", "content": "x"}])


def submit(policy: OpenAIPolicy, *requests: tuple[int, SamplingParams], on_token: Any = None) -> list[Generation]:
    """Submit requests with a conversation, and return what finished when none is pending."""
    for number, params in requests:
        policy.submit(Request(number, [1], params, conversation(), on_token))
    found: list[Generation] = []
    while policy.pending:
        found += policy.poll()
    return found


@contextmanager
def policy_at(server: Server | str, tokenizer: Any, **settings: Any) -> Iterator[OpenAIPolicy]:
    """Make a policy of a server, which is started where it is not an address."""
    with serving(server) if isinstance(server, Server) else nullcontext(server) as url:
        settings = {"model": "m", "token_ids": False, **settings}
        with closing(OpenAIPolicy(url, renderer=ChatRenderer.of(tokenizer), **settings)) as policy:
            yield policy


def watch(server: Server | str, tokenizer: Any, *, stop: Any = (), **settings: Any) -> tuple[list[int], Generation]:
    """Send one streamed request; return the tokens that were heard, and the generation."""
    heard: list[int] = []
    with policy_at(server, tokenizer, concurrency=1, **settings) as policy:
        (found,) = submit(policy, (0, SamplingParams(50, stop=stop)), on_token=heard.append)
    return heard, found
