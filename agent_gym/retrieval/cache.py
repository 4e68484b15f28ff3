"""What was searched before is not searched again: the episodes of a group begin with the same questions."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from agent_gym.errors import ConfigError
from agent_gym.retrieval.base import Hit, Retriever
from agent_gym.retrieval.checks import checked
from agent_gym.shared import Shared


class CachedRetriever(Shared):
    """Keeps the results of the searches that were made last. Safe to call from several threads.

    Of a call, only what is not known goes on to the engine, and each query once. A failure is not kept.

    Args:
        retriever: the engine behind it.
        size: how many results (of one query and one k) to keep; with 5 passages of 500 bytes, some 4 kilobytes each.

    Raises:
        ConfigError: for a size below 1.
    """

    live = ("_lock",)

    def __init__(self, retriever: Retriever, size: int = 10_000) -> None:
        if size < 1:
            raise ConfigError(f"size is {size}; a cache holds at least 1 result")
        self.retriever = retriever
        self.size = size
        self._kept: OrderedDict[tuple[str, int], tuple[Hit, ...]] = OrderedDict()
        super().__init__()

    def renew(self) -> None:
        """Make the lock. What is kept stays, unless a fork caught another thread in the middle of a change to it."""
        lock = getattr(self, "_lock", None)
        if lock is not None and lock.locked():
            self._kept = OrderedDict()
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Look up, and search for what is missing."""
        queries = checked(queries, k)
        known: dict[str, tuple[Hit, ...]] = {}
        with self._lock:
            for query in queries:
                if (query, k) in self._kept:
                    self._kept.move_to_end((query, k))
                    known[query] = self._kept[query, k]
        missing = [query for query in dict.fromkeys(queries) if query not in known]
        if missing:
            # Without the lock, or one search would hold up all those whose results are there.
            found = self.retriever.search(missing, k)
            known.update((query, tuple(hits)) for query, hits in zip(missing, found, strict=True))
            with self._lock:
                for query in missing:
                    self._kept[query, k] = known[query]
                    self._kept.move_to_end((query, k))
                while len(self._kept) > self.size:
                    self._kept.popitem(last=False)
        return [list(known[query]) for query in queries]
