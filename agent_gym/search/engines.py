r"""Engines by the names that settings and command lines give them, on other machines, and around engines.

A server speaks the protocol of Search-R1's `/retrieve`, as do the servers of SkyRL, verl and slime:

    POST /retrieve {"queries": ["...", ...], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"id": "7", "contents": "\"title\"\ntext"}, "score": 1.5}, ...], ...]}

Without scores, the inner lists hold the documents themselves. `agent_gym.serve.services.SearchServer` is such a server.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError, EnvFailure, quoted, require, whole_number
from agent_gym.search import bm25, build
from agent_gym.search import corpus as corpora
from agent_gym.search.base import Document, ForkSafe, Hit, Retriever, checked
from agent_gym.search.bm25 import BM25Retriever
from agent_gym.search.dense import DenseRetriever, load_encoder
from agent_gym.search.index import EXACT
from agent_gym.search.sources import documents_of
from agent_gym.serve.client import RETRIES, JsonClient

_DEPTH = 50  # hits of each engine that are fused; deeper ranks change little but their own order
_MAX_QUERIES = 64  # of a request
_CONNECTIONS = 1024  # as many as a server lets wait


class Engines(ForkSafe):
    """Keeps the `maxsize` engines that were used last, by key: an index of one world takes a megabyte."""

    def __init__(self, maxsize: int = 128) -> None:
        self._maxsize = maxsize
        self._engines: OrderedDict[Hashable, tuple[Retriever, Any]] = OrderedDict()
        super().__init__()

    def renew(self) -> None:
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Retriever], owner: Any = None) -> Retriever:
        """Return the engine of a key, made once; `owner` is kept alive with it, for keys that are made of its `id`."""
        with self._lock:
            if key not in self._engines:
                self._engines[key] = make(), owner
                if len(self._engines) > self._maxsize:
                    self._engines.popitem(last=False)
            self._engines.move_to_end(key)
            return self._engines[key][0]


ENGINES = Engines()


def open_retriever(retriever: Any, corpus: Iterable[Document] | None) -> Retriever | None:
    """Return the engine that a setting means, or None for BM25 over whatever a question is to be searched in.

    The setting is "bm25", the folder of an index of the corpus, the address of a server, or an engine. Engines are
    shared by all environments of the process. Raises `ConfigError` for anything else, and for a broken index.
    """
    if retriever == "bm25":
        if find_spec("bm25s") is None:
            require("bm25s", "search")  # names the extra now, and not when the first policy searches
        return None
    if isinstance(retriever, str):
        if retriever.startswith(("http://", "https://")):
            return ENGINES.get(retriever, lambda: RemoteRetriever(retriever))
        if Path(retriever).expanduser().is_dir():
            if corpus is None:
                raise ConfigError(f"retriever is the index {retriever!r}; it needs corpus=, the one it was built from")
            return ENGINES.get((retriever, id(corpus)), lambda: open_index(retriever, documents_of(corpus)), corpus)
    elif isinstance(retriever, Retriever):
        return retriever
    raise ConfigError(
        f"retriever is {quoted(retriever)}; allowed: 'bm25', the folder of an index, an address such as "
        "'http://127.0.0.1:8000', or an object with search(queries, k), such as the ones of agent_gym.search"
    )


def open_index(name: str | Path, corpus: Sequence[Document], device: str = "cpu") -> Retriever:
    """Open the index in a folder that `build_index` or `BM25Retriever.save` filled, or build "bm25" in memory.

    A dense index encodes queries on the device, "cpu" or "cuda"; a GPU also holds the index, if it is an exact one.
    """
    if str(name) == "bm25":
        return BM25Retriever(corpus)
    folder = Path(name).expanduser()
    if (folder / bm25.MANIFEST).is_file():
        return BM25Retriever.load(folder, corpus)
    if (folder / build.MANIFEST).is_file():
        manifest = build.Manifest.read(folder)
        place = device if manifest.index in EXACT else "cpu"
        return DenseRetriever(corpus, folder, load_encoder(manifest, device), device=place)
    raise ConfigError(
        f"{folder} holds no index ({build.MANIFEST} or {bm25.MANIFEST})"
        + (", only a corpus; give that as the corpus" if (folder / corpora.MANIFEST).is_file() else "")
        + '; name a folder with one, or "bm25"'
    )


class RemoteRetriever(ForkSafe):
    """Asks a server that speaks Search-R1's protocol. Safe to call from several threads; connections are kept open.

    The address is "http://host:8000", or has a path other than `/retrieve`; `ConfigError` for anything else.
    `timeout_s` is for a connection and for each piece of an answer. `retries` are for a connection that fails and for a
    server that is too busy, see `JsonClient`.
    """

    def __init__(self, url: str, *, timeout_s: float = 30.0, retries: int = RETRIES) -> None:
        if not timeout_s > 0 or retries < 0:
            raise ConfigError(f"timeout_s is {timeout_s} and retries {retries}; above 0 seconds and at least 0 times")
        self.url, self.timeout_s, self.retries = url, timeout_s, retries
        super().__init__()

    def renew(self) -> None:
        self._client = JsonClient(
            self.url,
            "/retrieve",
            server="search server",
            command="agent-gym serve search",
            retries=self.retries,
            repeats=self.retries,
            connections=_CONNECTIONS,
        )

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        queries = checked(queries, k)
        found: list[list[Hit]] = []
        for start in range(0, len(queries), _MAX_QUERIES):
            part = queries[start : start + _MAX_QUERIES]
            data = self._client.post({"queries": part, "topk": k, "return_scores": True}, self.timeout_s)
            try:
                found += [hits[:k] for hits in read_response(data, len(part))]
            except ValueError as error:
                raise EnvFailure(f"{self.url} does not speak Search-R1's protocol: {error}") from error
        return found


def response(found: Sequence[Sequence[Hit]], return_scores: bool) -> dict[str, Any]:
    """Write the found documents: the title in quotes on a separate line, then the text."""

    def written(hit: Hit) -> dict[str, Any]:
        document, title = hit.document, hit.document.title.replace("\n", " ")
        content = {"id": document.id, "contents": f'"{title}"\n{document.text}'}
        return {"document": content, "score": hit.score} if return_scores else content

    return {"result": [[written(hit) for hit in hits] for hits in found]}


def read_response(data: bytes, count: int) -> list[list[Hit]]:
    """Read the results of `count` queries, with scores. Raises ValueError if it is anything else."""

    def read(row: Any) -> Hit:
        document, contents = row["document"], row["document"]["contents"]
        title, newline, text = contents.partition("\n")
        if not newline:
            title, text = "", contents
        if len(title) >= 2 and title[0] == title[-1] == '"':
            title = title[1:-1]
        # Servers that give no id: the contents tell documents apart, which a fusion does by their ids.
        name = contents if document.get("id") is None else str(document["id"])
        return Hit(Document(name, title, text), float(row["score"]))

    try:
        found = [[read(row) for row in rows] for rows in json.loads(data)["result"]]
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"no list of documents with scores for each query: {data[:100]!r}") from error
    if len(found) != count:
        raise ValueError(f"{len(found)} results for {count} queries")
    return found


class HybridRetriever(ForkSafe):
    """Fuses rankings by reciprocal rank (Cormack, Clarke and Büttcher, SIGIR 2009), see `fuse`.

    Only ranks count, so that engines with scores of different kinds can be mixed without tuning. The larger
    `k_constant` (60 in the paper), the less the first ranks count against later ones.
    """

    def __init__(self, retrievers: Sequence[Retriever], k_constant: float = 60) -> None:
        if not retrievers:
            raise ConfigError("there are no retrievers to fuse; give at least one")
        if not 0 <= k_constant < math.inf:
            raise ConfigError(f"k_constant is {k_constant}; it must be at least 0, and is usually 60")
        self.retrievers, self.k_constant = tuple(retrievers), k_constant
        super().__init__()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        queries = checked(queries, k)
        rankings = [retriever.search(queries, max(k, _DEPTH)) for retriever in self.retrievers]
        return [fuse(of_query, self.k_constant)[:k] for of_query in zip(*rankings, strict=True)]


def fuse(rankings: Sequence[Sequence[Hit]], k_constant: float = 60) -> list[Hit]:
    """Fuse the rankings of one query, one per engine; their scores are not looked at.

    Returns:
        Every document (by its id) once, best first, with the sum of 1 / (k_constant + rank) over the rankings that have
        it, where ranks start at 1. Equal sums are ordered by the first engine's ranking, then the second's, and so on.
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


class CachedRetriever(ForkSafe):
    """Keeps the results of the searches that were made last. Safe to call from several threads.

    Of a call, only unknown queries are sent to the engine, and each query once. `size`, at least 1, is in results of
    one query and one k, of 4 kilobytes for 5 passages.
    """

    def __init__(self, retriever: Retriever, size: int = 10_000) -> None:
        self.retriever, self.size = retriever, whole_number("size", size, 1)
        super().__init__()

    def renew(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], tuple[Hit, ...]] = OrderedDict()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        queries = checked(queries, k)
        with self._lock:
            known = {query: self._kept[query, k] for query in queries if (query, k) in self._kept}
        missing = [query for query in dict.fromkeys(queries) if query not in known]
        if missing:
            # Without the lock, or one search would hold up all callers whose results are known.
            known |= zip(missing, map(tuple, self.retriever.search(missing, k)), strict=True)
        with self._lock:
            for query, hits in known.items():
                self._kept[query, k] = hits
                self._kept.move_to_end((query, k))
            while len(self._kept) > self.size:
                self._kept.popitem(last=False)
        return [list(known[query]) for query in queries]


class _Batch:
    def __init__(self) -> None:
        self.queries: list[str] = []
        self.closed = threading.Event()  # no caller joins any more
        self.found: Future[list[list[Hit]]] = Future()


class MicroBatcher(ForkSafe):
    """Collects the queries of concurrent callers into one call of the engine. Safe to call from several threads.

    The first caller of a batch waits until the engine has finished the batch before, and then until its own is full or
    `max_wait_s` is over, which a lone caller pays with each search. It then searches for all who came meanwhile. Equal
    queries are searched for once. An exception of the engine is raised in every caller of the batch. The engine is
    never called by two threads at once.
    """

    def __init__(self, retriever: Retriever, max_batch: int = 64, max_wait_s: float = 0.002) -> None:
        if max_batch < 1 or not 0 <= max_wait_s < threading.TIMEOUT_MAX:
            raise ConfigError(f"max_batch is {max_batch} and max_wait_s {max_wait_s}; at least 1 query and 0 seconds")
        self.retriever, self.max_batch, self.max_wait_s = retriever, max_batch, max_wait_s
        super().__init__()

    def renew(self) -> None:
        self._lock = threading.Lock()
        self._engine = threading.Lock()
        # The last batch per k: with an approximate index, the first 5 of 10 need not be the first 5.
        self._batches: dict[int, _Batch] = {}

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        queries = checked(queries, k)
        found: list[list[Hit]] = []
        for start in range(0, len(queries), self.max_batch):
            found += self._join(queries[start : start + self.max_batch], k)
        return found

    def _join(self, queries: list[str], k: int) -> list[list[Hit]]:
        with self._lock:
            batch = self._batches.get(k)
            leads = batch is None or batch.closed.is_set() or len(batch.queries) + len(queries) > self.max_batch
            if batch is None or leads:
                if batch is not None:
                    batch.closed.set()
                batch = self._batches[k] = _Batch()
            start = len(batch.queries)
            batch.queries += queries
            if len(batch.queries) == self.max_batch:
                batch.closed.set()
        if leads:
            self._lead(batch, k)
        return [list(hits) for hits in batch.found.result()[start : start + len(queries)]]

    def _lead(self, batch: _Batch, k: int) -> None:
        try:
            with self._engine:
                # Only now: callers whose batch has just ended ask again in a moment, and belong into this one. Else two
                # halves of the callers would wait for each other's searches for ever.
                batch.closed.wait(self.max_wait_s)
                with self._lock:
                    batch.closed.set()
                unique = list(dict.fromkeys(batch.queries))
                found = dict(zip(unique, self.retriever.search(unique, k), strict=True))
            batch.found.set_result([found[query] for query in batch.queries])
        except Exception as error:
            batch.found.set_exception(error)
        except BaseException:
            # Ctrl-C reaches one thread only; the others must neither hang nor take it for theirs.
            batch.closed.set()
            batch.found.set_exception(EnvFailure("the search was interrupted in the thread that ran it for several"))
            raise
