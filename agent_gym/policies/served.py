"""The common part of policies over HTTP: a thread runs the connections, and the caller's thread submits and polls."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from agent_gym.policies.base import Generation, Request

_POLL_S = 0.002  # how long `poll` waits: an environment that has answered meanwhile waits as long


class ServedPolicy:
    """The half of a policy that knows no protocol; a subclass submits, and closes its connections in `_disconnect`."""

    continuous = True
    fails_alone = False
    """Whether a request that fails ends its own episode only (`Generation.error`), where `poll` otherwise raises."""

    def __init__(self, name: str) -> None:
        # By id: the request, its future, and its name at the server.
        self._pending: dict[int, tuple[Request, Future[None], str]] = {}
        # With the request and not its id: ids come again, and the answer to an aborted request may still come.
        self._news: queue.SimpleQueue[tuple[Request, list[int] | Generation | Exception]] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        return len(self._pending)

    def poll(self) -> list[Generation]:
        """Return the finished generations, after at most 2 ms.

        `RolloutError` when a server cannot be reached any more, or refuses a request.
        """
        found: list[Generation] = []
        while self._pending:
            try:
                request, news = self._news.get(block=not found, timeout=None if found else _POLL_S)
            except queue.Empty:
                break
            if self._pending.get(request.id, (None,))[0] is not request:
                continue  # aborted when its answer was on the way
            if isinstance(news, list):
                for token in news:
                    assert request.on_token is not None
                    request.on_token(token)
                continue
            del self._pending[request.id]
            if isinstance(news, Exception):
                if not self.fails_alone:
                    raise news
                news = Generation(request.id, [], [], "abort", error=news)
            found.append(news)
        return found

    def abort(self, request_id: int) -> None:
        """Drop a pending request: its connection is closed, by which a server knows. Unknown ids are ignored."""
        if request_id in self._pending:
            self._pending.pop(request_id)[1].cancel()

    def close(self) -> None:
        """Drop pending requests and close the connections; the server keeps running."""
        if self._loop.is_closed():
            return
        for request_id in list(self._pending):
            self.abort(request_id)
        self._call(self._disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _begin(self, request: Request, answer: Coroutine[Any, Any, Generation], name: str = "") -> None:
        """Let the thread wait for the answer to a request."""

        async def wait() -> None:
            news: Generation | Exception
            try:
                news = await answer
            except Exception as error:  # raised in `poll`, by the thread that waits for the answer
                news = error
            self._news.put((request, news))

        self._pending[request.id] = request, asyncio.run_coroutine_threadsafe(wait(), self._loop), name

    def _refuse(self, request: Request, error: Exception) -> None:
        """Let a request fail that no server sees."""
        self._pending[request.id] = request, Future(), ""
        self._news.put((request, error))

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _disconnect(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} has to define _disconnect")
