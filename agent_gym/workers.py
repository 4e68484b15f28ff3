"""Threads for requests to servers.

`concurrent.futures` would do, but it joins its threads when the interpreter exits, so that one hung environment keeps a
finished run alive for ever. These are daemons.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


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
