"""Threads for what waits: environments, and requests to servers.

`concurrent.futures` would do, but it joins its threads when the interpreter exits, so that one hung environment keeps a
finished run alive for ever. These are daemons.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

Job = Callable[[], None]
Result = TypeVar("Result")


class Worker:
    """One daemon thread, which runs jobs in the order in which they come.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Run a job. It must not raise: nobody would hear of it."""
        self._jobs.put(job)

    def run(self, function: Callable[[], Result]) -> Result:
        """Call a function in the thread, wait for it, and return or raise what it returns or raises."""
        answer: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()

        def job() -> None:
            try:
                answer.put((function(), None))
            except BaseException as error:  # a thread that ends by SystemExit would never answer
                answer.put((None, error))

        self.submit(job)
        result, error = answer.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def close(self) -> None:
        """Let the thread end after the jobs that it has."""
        self._jobs.put(None)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end of the thread; returns whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # an idle thread keeps nothing alive


class Workers:
    """Up to `limit` daemon threads, started as work comes in; any of them takes the next job.

    Args:
        limit: most threads at the same time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._started = 0
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def submit(self, job: Job) -> None:
        """Run a job in some thread. It must not raise: nobody would hear of it."""
        self._jobs.put(job)
        if self._started < self._limit:
            self._started += 1
            threading.Thread(target=self._work, name=f"agent-gym-worker-{self._started}", daemon=True).start()

    def close(self) -> None:
        """Let the threads end as soon as they are idle; jobs still in the queue are dropped."""
        while not self._jobs.empty():
            self._jobs.get_nowait()
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
