"""What the kinds of FAISS indexes cost and find, and what batching the searches of many environments is worth.

    python benchmarks/search.py                      # 100,000 and 1,000,000 vectors: about an hour on one core
    python benchmarks/search.py --sizes 20000        # a few minutes

**Indexes.** There is no corpus of a million passages here, so the vectors are drawn: 384 numbers, with variances that
fall off as 1 / (10 + rank), in clusters of about 10; a query has cosine 0.65 to some vector, as questions of HotpotQA
have to their best paragraph under MiniLM. For 1,000 vectors, where both were measured, that is as hard as real ones or
a little harder (recall@5 of 32 lists with nprobe=4: 0.93, real 0.92; RaBitQ with 4 bits: 0.91, real 0.96). Each kind is
built from the same files by the code that `build_index` runs, and searched, in a process of its own and with one
thread, unless --threads says otherwise.

    build     seconds to train and add          CPU   the same in CPU seconds
    peak      MiB that building took            RAM   MiB that the loaded index takes
    B/vec     bytes per vector in the file      plan  that, divided by what agent_gym.search.index says
    QPS b1    queries per second, one by one    b64   in batches of 64; seconds are those of the CPU, which other work
              hardly changes, with --threads of the clock
    recall@5  of the five best vectors of the exact scan (`flat`), the part that was found

**Environments.** Threads search at the same time, each with one query after the other, in an index of passages behind
an encoder of MiniLM's size with random weights (its vectors mean nothing, its cost is real), and by BM25. `per call`
searches at once for each, `micro-batcher` collects them, `one call` is a single call with a query for each thread: what
a vector environment does, and how fast a batch can be. They take turns; `p99` is in milliseconds, `times` is the
throughput divided by that of `per call`, and `to one call` is p99 divided by the time of `one call`.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path.insert(0, str(Path(__file__).parent))
import _common
import faiss
import numpy as np
from _search_engines import ENGINES, concurrent

from agent_gym.search import Document
from agent_gym.search.build import Manifest, VectorShards, build_index
from agent_gym.search.encoder import EncoderSpec, Vectors, normalised
from agent_gym.search.index import (
    KINDS,
    Searcher,
    build_of,
    choose_kind,
    faiss_threads,
    plan_table,
    read_index,
)

PACKAGES = ("agent-gym", "faiss-cpu", "faiss-gpu", "FlagEmbedding", "sentence-transformers", "torch", "bm25s", "numpy")
EFFORTS = {"ef": (32, 64, 128, 256, 512), "nprobe": (16, 64, 128)}
CLUSTER, COSINE = 10, 0.65


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], metavar="N", help="vectors")
    parser.add_argument("--dimension", type=int, default=384, metavar="D")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS), metavar="KIND")
    parser.add_argument("--queries", type=int, default=1000, metavar="N")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each search is timed")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of FAISS")
    parser.add_argument("--environments", type=int, default=64, metavar="N", help="threads that search at once")
    parser.add_argument("--only", choices=("indexes", "environments"), help="leave out the other half")
    parser.add_argument("--one", nargs=2, metavar=("KIND", "FOLDER"), help="what a process of its own does")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], Path(options.one[1]), options.seconds, options.threads)))
        return
    if options.quick:
        options.sizes, options.dimension, options.queries, options.seconds = [12_000], 32, 100, 0.05
        options.environments = 8
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    rows: list[dict[str, Any]] = []
    sides: list[dict[str, Any]] = []
    if options.only != "environments":
        for size in options.sizes:
            rows += measure_all(size, options)
        print(plan_table(5_230_000, 1024), end="\n\n")
    if options.only != "indexes":
        for engine in ENGINES:
            sides += concurrent(engine, options.environments, options.quick)
        print(f"{options.environments} environments at once; load {_common.load()}")
        head = ["engine", "side", "queries", "queries / s", "times", "p50", "p99", "to one call"]
        _common.print_table(head, ([side[name] for name in head] for side in sides))
    _common.write_json(options.json, facts=facts, indexes=rows, environments=sides)


def measure_all(size: int, options: Any) -> list[dict[str, Any]]:
    """Draw vectors, measure every kind in a process of its own, print the table."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, size, options.dimension, options.queries)
        # The exact index first: the others are held against what it found.
        for kind in sorted(options.kinds, key=lambda kind: kind != "flat"):
            command = [sys.executable, __file__, "--one", kind, name]
            command += ["--seconds", str(options.seconds), "--threads", str(options.threads)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{kind}: {done.stderr}")
            rows += json.loads(done.stdout.splitlines()[-1])
            print(f"{kind} done; load {_common.load()}", file=sys.stderr)
    print(f"{size:,} vectors of {options.dimension} numbers; load {_common.load()}")
    head = ["index", "build", "CPU", "peak", "RAM", "B/vec", "plan", "QPS b1", "b64", "recall@5"]
    _common.print_table(head, ([row[name] for name in head] for row in rows))
    return rows


class Drawn:
    """Stands for corpus and encoder: documents are numbers, and their vectors are drawn beforehand."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors
        self.spec = EncoderSpec("drawn", vectors.shape[1])

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        return self.vectors[: len(queries)]

    def encode_documents(self, documents: Sequence[Document]) -> Vectors:
        return self.vectors[[int(document.id) if document.id.isdigit() else 0 for document in documents]]


def prepare(folder: Path, count: int, dimension: int, n_queries: int) -> None:
    """Write vectors, as `build_index` does, and queries."""
    rng = np.random.default_rng(0)
    spread = np.sqrt(1 / (10 + np.arange(dimension))).astype(np.float32)

    def draw(n: int) -> Vectors:
        return rng.standard_normal((n, dimension), np.float32) * spread

    centres = draw(max(1, count // CLUSTER))
    vectors = np.concatenate(
        [
            normalised(centres[rng.integers(len(centres), size=n)] + draw(n))
            for n in np.diff(np.append(np.arange(0, count, 65_536), count))
        ]
    )
    wanted, noise = vectors[rng.integers(count, size=n_queries)], draw(n_queries)
    aside = normalised(noise - (noise * wanted).sum(1, keepdims=True) * wanted)
    np.save(folder / "queries.npy", COSINE * wanted + np.sqrt(1 - COSINE**2, dtype=np.float32) * aside)
    documents = [Document(str(n), "", "") for n in range(count)]
    build_index(documents, Drawn(vectors), folder, kind="flat")


def measure(kind: str, folder: Path, seconds: float, threads: int) -> list[dict[str, Any]]:
    """Build an index of one kind and search it; one row per effort."""
    origin = Manifest.read(folder).origin
    queries, path = np.load(folder / "queries.npy"), folder / "one.faiss"
    shards = VectorShards(folder / "vectors", origin, 1)
    shards.missing()
    choose_kind(kind, origin.count, origin.encoder.dimension)
    with faiss_threads(threads):
        before, wall, cpu = memory("VmRSS"), time.perf_counter(), time.process_time()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        index = build_of(kind, origin.count, origin.encoder.dimension, shards.pick, progress=False)
        wall, cpu, peak = time.perf_counter() - wall, time.process_time() - cpu, memory("VmHWM") - before
        faiss.write_index(index, str(path))
        del index
        ctypes.CDLL(None).malloc_trim(0)  # or the index would be read into memory that was never given back
        before = memory("VmRSS")
        index = read_index(path, mmap=False)
        held = memory("VmRSS") - before
        rows = []
        for effort in efforts(kind):
            searcher = Searcher(index, kind, **effort)
            _, found = searcher.search(queries, 5)
            if kind == "flat":
                np.save(folder / "exact.npy", found)
            exact = np.load(folder / "exact.npy")
            size = path.stat().st_size
            rows.append(
                {
                    "index": " ".join([kind, *(f"{name}={value}" for name, value in effort.items())]),
                    "count": origin.count,
                    "build": wall,
                    "CPU": cpu,
                    "peak": peak,
                    "RAM": held,
                    "B/vec": size / origin.count,
                    "plan": size / KINDS[kind].size(origin.count, origin.encoder.dimension),
                    "QPS b1": speed(lambda part, s=searcher: s.search(part, 5), queries, 1, seconds, threads),
                    "b64": speed(lambda part, s=searcher: s.search(part, 5), queries, 64, seconds, threads),
                    "recall@5": float(np.mean([len(set(a) & set(b)) / 5 for a, b in zip(exact, found, strict=True)])),
                }
            )
    path.unlink()
    return rows


def efforts(kind: str) -> list[dict[str, int]]:
    """The settings that a kind is searched with."""
    return [{name: value} for name in KINDS[kind].search for value in EFFORTS[name]] or [{}]


def speed(search: Callable[[Vectors], Any], queries: Vectors, batch: int, seconds: float, threads: int) -> float:
    """Queries per second: the best third of the time, since noise only adds."""
    clock = time.process_time if threads == 1 else time.perf_counter
    search(queries[:batch])
    rates = []
    for _ in range(3):
        done, begin = 0, clock()
        while (spent := clock() - begin) < seconds / 3 or not done:
            start = done % (len(queries) - batch + 1)
            search(queries[start : start + batch])
            done += batch
        rates.append(done / spent)
    return max(rates)


def memory(name: str) -> float:
    """MiB of this process that are in memory (VmRSS), or the most that ever were (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


if __name__ == "__main__":
    main()
