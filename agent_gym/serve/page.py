"""A conversation as a web page on this machine: page.html, page.css and page.js, and a stream of events.

There is one conversation, and each open page shows all of it. `GET /events` sends the numbered events that a browser
has not seen and then the new ones (server-sent events), so that a reload or a lost connection loses nothing. A policy
belongs to one thread: the one that calls `talk`, while another serves.
"""

from __future__ import annotations

import json
import queue
import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from agent_gym.errors import AgentGymError, ConfigError
from agent_gym.serve.conversation import Conversation
from agent_gym.serve.server import HTTPException, Request, Response, Route, Server, in_thread, page_routes, post

_BEAT_S = 10.0  # a stream without events sends a comment so often, and finds out whether the browser still listens
_AT_WORK = "the policy is at work: stop it, or wait for its answer"


class ChatServer(Server):
    """Serves the page; `model` is the name of the policy, and `listener` comes from `bind`."""

    def __init__(self, conversation: Conversation, model: str, listener: socket.socket) -> None:
        self._conversation, self._model = conversation, model
        self._orders: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # the person's words; None begins anew
        self._changed = threading.Condition()
        self._events: list[dict[str, Any]] = []
        # The number of the first one that is kept: microseconds, which a page holds exactly. The page of a server that
        # stood here before asks for the events after its last one, which has to be before this, however fast it wrote.
        self._first = time.time_ns() // 10**3
        self._busy = False  # whether an order waits or is carried out
        self._ending = False
        self._begin()
        orders = {"/say": self._say, "/stop": self._stop, "/reset": lambda request: self._order(None)}
        example = '{"text": "What is 48/2?"}'
        routes = [post(path, work, example, 1 << 18, "send less at once") for path, work in orders.items()]
        routes += [Route("/events", self._stream), Route("/trajectory", self._trajectory)]
        super().__init__(listener, [*page_routes(__package__), *routes])

    def shutdown(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        super().shutdown()

    # The thread of the policy.

    def talk(self) -> None:
        """Carry out the requests of browsers, until interrupted."""
        while True:
            text = self._orders.get()
            try:
                if text is None:
                    self._conversation.reset()
                    self._begin()
                else:
                    self._conversation.say(text, self._add)
            except AgentGymError as error:  # a world that does not begin ends no conversation
                self._add(self._conversation.end("failed", str(error)))
            finally:
                self._busy = False

    def _begin(self) -> None:
        with self._changed:
            self._first += len(self._events)
            self._events = []
        self._add({"kind": "begin", "model": self._model, **self._conversation.about()})

    def _add(self, event: dict[str, Any]) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    # The threads of browsers.

    def _order(self, text: str | None) -> dict[str, Any]:
        with self._changed:
            if self._busy:
                raise HTTPException(409, _AT_WORK)
            self._busy = True
        self._orders.put(text)
        return {}

    def _say(self, request: dict[str, Any]) -> dict[str, Any]:
        text = request.get("text")
        if not isinstance(text, str) or not (text.strip() or self._conversation.about()["answers"]):
            raise HTTPException(400, "text must be a text, and not empty")
        return self._order(text)

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._conversation.stop()
        return {}

    async def _trajectory(self, request: Request) -> Response:
        with self._changed:
            if self._busy:
                raise HTTPException(409, _AT_WORK)
            try:
                record = self._conversation.record()
            except ConfigError as error:
                raise HTTPException(409, str(error)) from error
        headers = {"Content-Disposition": 'attachment; filename="chat.jsonl"', "X-Content-Type-Options": "nosniff"}
        return Response(json.dumps(record) + "\n", headers=headers, media_type="application/jsonl")

    async def _stream(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        seen = request.headers.get("Last-Event-ID", "")

        async def pieces() -> AsyncIterator[str]:
            number = int(seen) if re.fullmatch("[0-9]{1,16}", seen) else -1
            while not self._ending:
                events = await in_thread(partial(self._after, number))
                for number, event in events:
                    yield f"id: {number}\ndata: {json.dumps(event)}\n\n"
                if not events:
                    yield ": nothing new\n\n"

        headers = {"Cache-Control": "no-store", "Connection": "close"}
        return StreamingResponse(pieces(), headers=headers, media_type="text/event-stream")

    def _after(self, number: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the events after a number, with theirs; wait a while for the first one."""
        with self._changed:
            if number + 1 >= self._first + len(self._events) and not self._ending:
                self._changed.wait(_BEAT_S)
            start = max(number + 1, self._first)
            return list(enumerate(self._events[start - self._first :], start))
