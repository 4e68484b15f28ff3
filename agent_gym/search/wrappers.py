"""Engines around engines: several fused into one, results kept, queries of many threads in one call.

The batcher has no thread of its own: the first caller of a batch waits for others and then searches for all of them. So
there is nothing to start or close, and nothing that could keep a program from ending.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search.base import Document, Hit, Retriever, checked
from agent_gym.shared import Shared

# How far down each engine is asked. A document that both rank 40th beats one that a single engine ranks first only by
# a constant larger than the paper's, so that deeper ranks change little but their own order.
_DEPTH = 50


class HybridRetriever(Shared):
    """Fuses rankings by reciprocal rank (Cormack, Clarke and Büttcher, SIGIR 2009): 1 / (k_constant + rank), added up.

    Words find names, vectors find meanings, and what both find is most likely right. Only ranks count, so that engines
    with scores of different kinds can be mixed without tuning.

    Documents are the same where their ids are. Engines do not say where in the corpus a document stands, so equal sums
    are ordered by the ranking of the first engine, then of the second, and so on.

    Args:
        retrievers: the engines.
        k_constant: the larger, the less the first ranks count against the later ones; 60 is the paper's.

    Raises:
        ConfigError: for no engines or a constant below 0.
    """

    def __init__(self, retrievers: Sequence[Retriever], k_constant: float = 60) -> None:
        if not retrievers:
            raise ConfigError("there are no retrievers to fuse; give at least one")
        if not 0 <= k_constant < math.inf:
            raise ConfigError(f"k_constant is {k_constant}; it must be at least 0, and is usually 60")
        self.retrievers = tuple(retrievers)
        self.k_constant = k_constant
        super().__init__()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        queries = checked(queries, k)
        rankings = [retriever.search(queries, max(k, _DEPTH)) for retriever in self.retrievers]
        return [fuse(of_query, self.k_constant)[:k] for of_query in zip(*rankings, strict=True)]


def fuse(rankings: Sequence[Sequence[Hit]], k_constant: float = 60) -> list[Hit]:
    """Fuse the rankings of one query.

    Args:
        rankings: best first, one per engine; their scores are not looked at.
        k_constant: the k of the paper.

    Returns:
        Every document once, best first, with the sum of 1 / (k_constant + rank) over the rankings that have it, where
        ranks start at 1.
    """
    documents: dict[str, Document] = {}
    ranks: dict[str, list[float]] = {}
    for n, ranking in enumerate(rankings):
        for rank, hit in enumerate(ranking, 1):
            documents.setdefault(hit.document.id, hit.document)
            of_document = ranks.setdefault(hit.document.id, [math.inf] * len(rankings))
            of_document[n] = min(of_document[n], rank)
    # fsum rounds once, at the end: equal sets of ranks give equal sums, whichever engine they come from.
    sums = {id: math.fsum(1 / (k_constant + rank) for rank in of_document) for id, of_document in ranks.items()}
    return [Hit(documents[id], sums[id]) for id in sorted(sums, key=lambda id: (-sums[id], ranks[id]))]


class CachedRetriever(Shared):
    """Keeps the results of the searches that were made last. Safe to call from several threads.

    The episodes of a group begin with the same questions. Of a call, only what is not known goes on to the engine, and
    each query once. A failure is not kept.

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
    `max_wait_s` is over; callers that come in the meantime join. Equal queries are searched for once. An exception of
    the engine is raised in every caller of the batch.

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
        """Let no other caller join; the lock is held."""
        if self._open.get(k) is batch:
            del self._open[k]
        batch.full.set()

    def _lead(self, batch: _Batch, k: int) -> None:
        """Wait for others, search for all, and wake them, also after an error."""
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
