"""Many threads with one query each, one engine that is fast with many queries at once.

There is no thread of its own: the first caller of a batch waits for others and then searches for all of them. So there
is nothing to start or close, and nothing that could keep a program from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.retrieval.base import Hit, Retriever
from agent_gym.retrieval.checks import checked
from agent_gym.shared import Shared


class _Batch:
    """Queries of several callers, and later what came of them."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.full = threading.Event()
        self.done = threading.Event()
        self.found: list[list[Hit]] = []
        self.error: BaseException | None = None


class MicroBatcher(Shared):
    """Collects the queries of concurrent callers into one call of the engine. Safe to call from several threads.

    The first caller of a batch waits until the engine has finished the batch before, and then until its own is full or
    `max_wait_s` is over; who comes in the meantime joins. Equal queries are searched for once. An exception of the
    engine is raised in every caller of the batch.

    Args:
        retriever: the engine behind it; it is never called by two threads at once.
        max_batch: queries per call of the engine.
        max_wait_s: seconds to wait for others. A lone caller pays them with each search.

    Raises:
        ConfigError: for a batch below 1 or a negative time.
    """

    live = ("_lock", "_engine", "_open")

    def __init__(self, retriever: Retriever, max_batch: int = 64, max_wait_s: float = 0.002) -> None:
        if max_batch < 1 or not 0 <= max_wait_s < threading.TIMEOUT_MAX:
            raise ConfigError(f"max_batch is {max_batch} and max_wait_s {max_wait_s}; at least 1 query and 0 seconds")
        self.retriever = retriever
        self.max_batch = max_batch
        self.max_wait_s = max_wait_s
        super().__init__()

    def renew(self) -> None:
        """Begin without open batches: a forked process has none of the threads that were waiting."""
        self._lock = threading.Lock()
        self._engine = threading.Lock()
        # One batch per k: with an approximate index, the first 5 of 10 need not be the first 5.
        self._open: dict[int, _Batch] = {}

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Search together with whoever searches now."""
        queries = checked(queries, k)
        found: list[list[Hit]] = []
        for start in range(0, len(queries), self.max_batch):
            found += self._join(queries[start : start + self.max_batch], k)
        return found

    def _join(self, queries: list[str], k: int) -> list[list[Hit]]:
        with self._lock:
            batch = self._open.get(k)
            if batch is not None and len(batch.queries) + len(queries) > self.max_batch:
                self._close(batch, k)
                batch = None
            leads = batch is None
            if batch is None:
                batch = self._open[k] = _Batch()
            start = len(batch.queries)
            batch.queries += queries
            if len(batch.queries) == self.max_batch:
                self._close(batch, k)
        if leads:
            self._lead(batch, k)
        else:
            batch.done.wait()
        if batch.error is not None:
            raise batch.error
        return [list(hits) for hits in batch.found[start : start + len(queries)]]

    def _close(self, batch: _Batch, k: int) -> None:
        """Let nobody join any more; the lock is held."""
        if self._open.get(k) is batch:
            del self._open[k]
        batch.full.set()

    def _lead(self, batch: _Batch, k: int) -> None:
        """Wait for others, search for all, and tell them, whatever happens."""
        try:
            with self._engine:
                # Only now: those whose batch has just ended ask again in a moment, and belong into this one. Else two
                # halves of the callers would wait for each other's searches for ever.
                batch.full.wait(self.max_wait_s)
                with self._lock:
                    self._close(batch, k)
                unique = list(dict.fromkeys(batch.queries))
                found = dict(zip(unique, self.retriever.search(unique, k), strict=True))
            batch.found = [found[query] for query in batch.queries]
        except Exception as error:
            batch.error = error
        except BaseException:
            # Ctrl-C reaches one thread only; the others must neither hang nor take it for theirs.
            batch.error = EnvFailure("the search was interrupted in the thread that ran it for several")
            raise
        finally:
            with self._lock:
                self._close(batch, k)
            batch.done.set()
