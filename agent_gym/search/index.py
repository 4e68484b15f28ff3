"""FAISS indexes by name: the kinds, their costs, their construction, and their search.

docs/search.md has their recall and speed, which benchmarks/search.py measures. `auto` is `flat` up to 200,000 vectors,
where scanning all takes a few milliseconds, and `hnsw_sq8` beyond, which at equal recall answers three times as fast as
lists do, and takes 0.43 of the memory of `flat`. On a GPU, which scans fast, it is `flat` and then `sqfp16`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from agent_gym.errors import ConfigError, require, whole_number
from agent_gym.search.encoder import Vectors, forked

AUTO_FLAT = 200_000  # the most vectors for which `auto` scans them all on a CPU
EXACT = ("flat", "sqfp16")  # the kinds that scan all vectors, and can do so on a GPU
_LINKS, _BUILD_EFFORT = 32, 64  # of HNSW
_CENTROIDS = 256  # of product quantisation: the range of a byte
_TRAINING_VECTORS = 65_536
# A quarter and less than half of FAISS's own: an hour less, as much recall.
_PQ_TRAINING_VECTORS, _PQ_ROUNDS = 16_384, 10
ADD_AT_ONCE = 65_536  # vectors that are in memory as float32 while they are added
_PER_CENTROID = 40  # FAISS warns below 39: centroids of fewer vectors follow their noise


def lists(count: int) -> int:
    """Return the number of lists of an inverted file: the power of two next to 4 sqrt(count), FAISS's own advice."""
    return max(1, min(2 ** round(math.log2(4 * math.sqrt(count))), count // _PER_CENTROID))


@dataclass(frozen=True)
class IndexKind:
    """A kind of index."""

    factory: str  # FAISS's own description
    size: Callable[[int, int], float]  # of the file, in bytes, by the count and dimension of the vectors
    minimum: int = 1  # vectors that training needs
    search: Mapping[str, int] = field(default_factory=dict)  # the parameter of a search: more finds more, takes longer


# The layouts of FAISS 1.15, which the tests compare with real files. Where a number becomes a byte, its smallest and
# largest value are kept (8 d). Of HNSW there are twice the links on the lowest level, of four bytes each; one vector in
# 32 is also on the level above, one in 32 squared on the next and so on; and each has an offset into the links and a
# number of levels. An inverted file has a centroid and a length per list, and per vector a position and a code.
_HNSW = 4 * (2 * _LINKS + _LINKS / (_LINKS - 1)) + 8 + 4

KINDS: Mapping[str, IndexKind] = {
    "flat": IndexKind("Flat", lambda n, d: 4 * d * n),
    "sqfp16": IndexKind("SQfp16", lambda n, d: 2 * d * n),
    "sq8": IndexKind("SQ8", lambda n, d: d * n + 8 * d),
    "hnsw_sq8": IndexKind(f"HNSW{_LINKS},SQ8", lambda n, d: (d + _HNSW) * n + 8 * d, search={"ef": 256}),
    "ivf_flat": IndexKind("IVF{lists},Flat", lambda n, d: (4 * d + 8) * (n + lists(n)), _PER_CENTROID, {"nprobe": 64}),
    "ivf_sq8": IndexKind(
        "IVF{lists},SQ8", lambda n, d: (d + 8) * n + (4 * d + 8) * lists(n) + 8 * d, _PER_CENTROID, {"nprobe": 64}
    ),
    "pq": IndexKind("PQ{bytes}x8", lambda n, d: d // 4 * n + 4 * _CENTROIDS * d, _PER_CENTROID * _CENTROIDS),
    "rabitq4": IndexKind("RaBitQ4", lambda n, d: (d / 2 + 20) * n + 4 * d),
}


def factory(kind: str, count: int, dimension: int) -> str:
    """Return FAISS's own description of an index."""
    return KINDS[kind].factory.format(lists=lists(count), bytes=dimension // 4)


def choose_kind(kind: str, count: int, dimension: int, device: str = "cpu") -> str:
    """Resolve `auto`, and check that the kind can be made of this many vectors."""
    if kind == "auto":
        scanned = "sqfp16" if device.startswith("cuda") else "hnsw_sq8"
        return "flat" if count <= AUTO_FLAT else scanned
    if kind not in KINDS:
        raise ConfigError(f"no such kind of index: {kind!r}; choose from auto, {', '.join(KINDS)}")
    if count < KINDS[kind].minimum:
        raise ConfigError(
            f"an index of kind {kind!r} is trained on at least {KINDS[kind].minimum:,} vectors, and there are "
            f"{count:,}; use kind='flat', which for so few is exact and fast"
        )
    if kind == "pq" and dimension % 4:
        raise ConfigError(f"kind 'pq' makes a byte of every 4 numbers, and the vectors have {dimension}; use 'rabitq4'")
    return kind


def training_vectors(kind: str, count: int) -> int:
    """Return how many vectors to train on; 0 where nothing is learned from them."""
    if kind in EXACT:
        return 0
    if kind == "pq":
        return min(count, _PQ_TRAINING_VECTORS)
    wanted = _PER_CENTROID * lists(count) if kind.startswith("ivf") else 0
    return min(count, max(wanted, _TRAINING_VECTORS))


def new_index(kind: str, count: int, dimension: int) -> Any:
    """Make an untrained FAISS index for vectors of length 1 and inner products."""
    faiss = require("faiss", "search")
    index = faiss.index_factory(dimension, factory(kind, count, dimension), faiss.METRIC_INNER_PRODUCT)
    if kind == "hnsw_sq8":
        index.hnsw.efConstruction = _BUILD_EFFORT
    if kind == "pq":
        # Sorts the codes for a comparison by Hamming distance that is never made; costs more than all the training.
        index.do_polysemous_training = False
        index.pq.cp.niter = _PQ_ROUNDS
    return index


def reserve(index: Any, count: int) -> None:
    """Make room for this many vectors at once.

    FAISS's arrays double whenever they are full: while one is copied, an index would take twice its memory. (An
    inverted file has an array per list, too small to matter.)
    """
    sizes = []
    if hasattr(index, "hnsw"):
        sizes.append((index.hnsw.neighbors, (2 * _LINKS + 2) * count))
        index = require("faiss", "search").downcast_index(index.storage)
    if hasattr(index, "codes"):
        sizes.append((index.codes, index.code_size * count))
    for array, size in sizes:
        array.resize(size)
        array.resize(0)  # keeps the memory


def build_of(kind: str, count: int, dimension: int, pick: Callable[[NDArray[Any]], Vectors], progress: bool) -> Any:
    """Make an index of vectors, which `pick` returns by their ascending positions."""
    index = new_index(kind, count, dimension)
    n_training = training_vectors(kind, count)
    if n_training:
        # The same ones on every run; ascending, so that the files are read once and in order.
        index.train(pick(np.sort(np.random.default_rng(0).choice(count, n_training, replace=False, shuffle=False))))
    reserve(index, count)
    with tqdm(total=count, desc=f"indexing ({kind})", unit=" vectors", disable=not progress) as bar:
        for start in range(0, count, ADD_AT_ONCE):
            positions = np.arange(start, min(start + ADD_AT_ONCE, count))
            index.add(pick(positions))
            bar.update(len(positions))
    return index


@contextmanager
def faiss_threads(threads: int) -> Iterator[None]:
    """Let FAISS use this many threads inside the block, or one in a forked process."""
    faiss = require("faiss", "search")
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1 if forked() else threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def read_index(path: Path, *, mmap: bool = True) -> Any:
    """Read an index; mapped into memory it opens at once, all processes share it, and its file must not change."""
    faiss = require("faiss", "search")
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mmap else 0)
    except RuntimeError as error:
        raise ConfigError(
            f"FAISS {faiss.__version__} cannot read {path}: {str(error).splitlines()[-1]}; build the index again"
        ) from error


class Searcher:
    """An index with its settings, for any threads; `ConfigError` for `ef` or `nprobe` below 1, or of another kind."""

    def __init__(self, index: Any, kind: str, *, ef: int | None = None, nprobe: int | None = None) -> None:
        self.index, self.settings = index, dict(KINDS[kind].search)
        given = {name: value for name, value in (("ef", ef), ("nprobe", nprobe)) if value is not None}
        for name, value in given.items():
            if name not in self.settings:
                has = ", ".join(self.settings) or "nothing to set"
                raise ConfigError(f"an index of kind {kind!r} has no {name}; it has: {has}")
            whole_number(name, value, 1)
        self.settings |= given
        # FAISS's CPU indexes can be searched from any number of threads; indexes on a GPU share a scratch memory.
        self._lock = threading.Lock() if hasattr(index, "getDevice") else None

    def search(self, vectors: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Search; scores and positions of shape (queries, k), best first, -1 where an index found fewer than k."""
        faiss = require("faiss", "search")
        if forked():  # for each call, because OpenMP keeps the number for each thread of Python's
            faiss.omp_set_num_threads(1)
        if self._lock is not None:
            with self._lock:
                return self.index.search(vectors, k)
        parameters = None  # made for each call: attributes of the index would be shared by all threads
        if "ef" in self.settings:
            parameters = faiss.SearchParametersHNSW(efSearch=self.settings["ef"])
        elif "nprobe" in self.settings:
            parameters = faiss.SearchParametersIVF(nprobe=self.settings["nprobe"])
        return self.index.search(vectors, k, params=parameters)


def plan_table(count: int, dimension: int) -> str:
    """Return the costs of each kind, in memory and on disk, as a table with a star at the choice of "auto"."""
    auto, vectors = choose_kind("auto", count, dimension), _gib(2 * dimension * count)
    rows = [f"{count:,} vectors of {dimension} numbers", "  kind       index (disk, RAM)   building     GPU"]
    for name, kind in KINDS.items():
        if count < kind.minimum or (name == "pq" and dimension % 4):
            continue
        index = kind.size(count, dimension)
        growth = 2 if name.startswith("ivf") else 1  # each list doubles its array when it is full
        building = growth * index + 4 * dimension * max(min(ADD_AT_ONCE, count), training_vectors(name, count))
        star, gpu = "*" if name == auto else " ", vectors if name in EXACT else "-"
        rows.append(f"{star} {name:<9}{_gib(index):>19}{_gib(building):>11}{gpu:>12}")
    return "\n".join([*rows, f"and {vectors} on disk for the vectors; * is kind='auto'"])


def _gib(size: float) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:,.2f} MiB"
