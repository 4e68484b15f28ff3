"""A conversation as a web page on this machine: page.html, page.css and page.js, and a stream of what happens.

There is one conversation, and whoever opens the page sees all of it. What happens is a list of events with numbers;
`GET /events` sends those that a browser has not seen and then the new ones (server-sent events), so that a reload or a
lost connection loses nothing. Policies belong to one thread: that which calls `talk`, while others serve.

The page may load nothing but its own files, and no other page may show it in a frame, by its Content-Security-Policy.
Only the page itself may speak to the server (`JsonHandler` sees to it): other sites in the same browser could otherwise
make the policy use its tools.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Mapping
from http import HTTPStatus
from importlib import resources
from typing import Any

from agent_gym.chatting.conversation import Conversation
from agent_gym.errors import ConfigError
from agent_gym.serving import BadRequest, JsonHandler, JsonServer, json_object

_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_BEAT_S = 10.0  # a stream without news says so this often, and finds out whether anybody listens


class ChatServer(JsonServer):
    """Serves the page, in the thread that calls `serve_forever`.

    Args:
        conversation: who is talked to; its policy is used by `talk` alone.
        model: its name.
        listener: where to listen, from `agent_gym.serving.bind`.

    Raises:
        ConfigError: if another server was faster to listen there.
    """

    def __init__(self, conversation: Conversation, model: str, listener: socket.socket) -> None:
        self._conversation, self._model = conversation, model
        self._orders: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # what was said; None begins anew
        self._news = threading.Condition()
        self._events: list[dict[str, Any]] = []
        self._first = 0  # the number of the first one that is kept
        self._taken = False  # whether an order waits or is carried out
        self._begin()
        super().__init__(listener, _Handler)

    # The thread of the policy.

    def talk(self) -> None:
        """Carry out what browsers ask for, until interrupted."""
        while True:
            text = self._orders.get()
            try:
                if text is None:
                    self._conversation.reset()
                    self._begin()
                else:
                    self._conversation.say(text, self._tell)
            finally:
                self._taken = False

    def _begin(self) -> None:
        with self._news:
            self._first += len(self._events)
            self._events = []
        self._tell({"kind": "begin", "model": self._model, **self._conversation.about()})

    def _tell(self, event: dict[str, Any]) -> None:
        with self._news:
            self._events.append(event)
            self._news.notify_all()

    # The threads of browsers.

    def order(self, text: str | None) -> bool:
        """Say something, or begin anew; False if the conversation is not ready for it."""
        with self._news:
            if self._taken:
                return False
            self._taken = True
        self._orders.put(text)
        return True

    def stop(self) -> None:
        """End the policy's turn."""
        self._conversation.stop()

    def record(self) -> dict[str, Any]:
        """Return the record of the conversation.

        Raises:
            ConfigError: if there is none, or it is not complete.
        """
        with self._news:
            if self._taken:
                raise ConfigError("the policy is at work: stop it, or wait for its answer")
            return self._conversation.record()

    def after(self, number: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the events behind a number, with theirs; wait a while for the first one."""
        with self._news:
            start = max(number + 1, self._first)
            if start >= self._first + len(self._events):
                self._news.wait(_BEAT_S)
                start = max(number + 1, self._first)
            return list(enumerate(self._events[start - self._first :], start))


class _Handler(JsonHandler):
    server: ChatServer

    places = "there are the page (GET /), GET /events, GET /trajectory, POST /say, POST /stop and POST /reset"
    max_request_bytes = 1 << 18
    too_long = "say less"

    def do_GET(self) -> None:
        """Send the page, the stream of events or the trajectory; anything else is JSON."""
        path = self.path.partition("?")[0]
        if path in _FILES:
            name, kind = _FILES[path]
            self._send(resources.files("agent_gym.chatting").joinpath(name).read_bytes(), kind)
        elif path == "/events":
            self._stream()
        elif path == "/trajectory":
            try:
                body = json.dumps(self.server.record()).encode() + b"\n"
            except ConfigError as error:
                self._answer(HTTPStatus.CONFLICT, {"detail": str(error)})
            else:
                self._send(body, "application/jsonl", "chat.jsonl")
        else:
            super().do_GET()

    def work(self, path: str, body: bytes) -> Mapping[str, Any]:
        """Say something, stop or begin anew."""
        if path not in ("/say", "/stop", "/reset"):
            raise BadRequest(HTTPStatus.NOT_FOUND, self.places)
        text = None
        if path == "/say":
            text = json_object(body, '{"text": "What is 48/2?"}').get("text")
            if not isinstance(text, str) or not text.strip():
                raise BadRequest(HTTPStatus.BAD_REQUEST, "text must be a text, and not empty")
        if path == "/stop":
            self.server.stop()
        elif not self.server.order(text):
            raise BadRequest(HTTPStatus.CONFLICT, "the policy is at work: stop it, or wait for its answer")
        return {}

    def _send(self, body: bytes, kind: str, filename: str | None = None) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        if filename:
            self.send_header("Content-Disposition", f'attachment; filename="{filename}"')
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _stream(self) -> None:
        seen = self.headers.get("Last-Event-ID", "")
        number = int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 16 else -1
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        while not self.server.closing:
            events = self.server.after(number)
            pieces = [f"id: {number}\ndata: {json.dumps(event)}\n\n" for number, event in events]
            number = events[-1][0] if events else number
            self.wfile.write("".join(pieces or [": nothing new\n\n"]).encode())
            self.wfile.flush()
