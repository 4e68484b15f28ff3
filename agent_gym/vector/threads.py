"""How a vector environment calls its environments: one after the other, or several at a time in threads."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from agent_gym.workers import Worker


def one_by_one(function: Callable[..., Any], *columns: Iterable[Any]) -> list[Any]:
    """Return what the function makes of the first elements of all columns, of the second ones, and so on."""
    return list(map(function, *columns))


class Threads:
    """The same, up to `limit` calls at a time. All calls of one slot, the first argument, are made in one thread.

    It pays where a call waits for something else. Calls that compute hold Python's lock, so they gain nothing.
    """

    def __init__(self, limit: int) -> None:
        """Start the threads."""
        self._workers = [Worker(f"agent-gym-slots-{number}") for number in range(limit)]

    def of(self, slot: int) -> Worker:
        """Return the thread of a slot."""
        return self._workers[slot % len(self._workers)]

    def __call__(self, function: Callable[..., Any], *columns: Iterable[Any]) -> list[Any]:
        """Wait until all calls have ended, then raise the first error, if there was one."""
        ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()

        def call(place: int, arguments: tuple[Any, ...]) -> None:
            try:
                ended.put((place, function(*arguments), None))
            except BaseException as error:  # a thread that ends by SystemExit would never report
                ended.put((place, None, error))

        rows = list(zip(*columns, strict=True))
        for place, arguments in enumerate(rows):
            self.of(arguments[0]).submit(partial(call, place, arguments))
        results: list[Any] = [None] * len(rows)
        errors: dict[int, BaseException] = {}
        for _ in rows:
            place, results[place], error = ended.get()
            if error is not None:
                errors[place] = error
        if errors:
            raise errors[min(errors)]
        return results

    def close(self) -> None:
        """Let the threads end."""
        for worker in self._workers:
            worker.close()
