"""The second half of search.py: engines, and threads that search them at the same time."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from agent_gym.search import Document, Retriever
from agent_gym.search.bm25 import BM25Retriever
from agent_gym.search.build import build_index
from agent_gym.search.dense import DenseRetriever
from agent_gym.search.encoder import make_encoder
from agent_gym.search.engines import MicroBatcher

WORDS = [f"w{n}" for n in range(5000)]
TOP_K, ROUNDS = 5, 4


@contextmanager
def dense(quick: bool) -> Iterator[Retriever]:
    """An encoder of MiniLM's size and a flat index."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder = make_encoder(str(make_encoder_folder(folder / "encoder", quick)))
        documents = make_documents(100 if quick else 1000)
        build_index(documents, encoder, folder / "index")
        yield DenseRetriever(documents, folder / "index", encoder)


@contextmanager
def lexical(quick: bool) -> Iterator[Retriever]:
    """BM25."""
    yield BM25Retriever(make_documents(100 if quick else 50_000))


ENGINES = {"dense": dense, "BM25": lexical}


def concurrent(engine: str, environments: int, quick: bool) -> list[dict[str, Any]]:
    """Measure the three sides of an engine, by turns; a round is a number of searches by every environment."""
    each = 3 if quick else 12
    times: dict[str, list[float]] = {"per call": [], "micro-batcher": [], "one call": []}
    latencies: dict[str, list[float]] = {side: [] for side in times}
    with ENGINES[engine](quick) as retriever:
        batcher = MicroBatcher(retriever, max_batch=environments)
        sides: dict[str, Callable[[list[str]], Any]] = {
            "per call": lambda queries: retriever.search(queries, TOP_K),
            "micro-batcher": lambda queries: batcher.search(queries, TOP_K),
        }
        for number in range(1 if quick else ROUNDS + 1):
            queries = make_queries(environments, each, number)
            for side, search in sides.items():
                seconds, waited = run_threads(search, queries)
                times[side].append(seconds)
                latencies[side] += waited
            begin = time.perf_counter()
            for turn in range(each):
                started = time.perf_counter()
                retriever.search([texts[turn] for texts in queries], TOP_K)
                latencies["one call"].append(time.perf_counter() - started)
            times["one call"].append(time.perf_counter() - begin)
            if not number and not quick:  # the first round warms up
                for kept in (*times.values(), *latencies.values()):
                    kept.clear()
    together = statistics.median(latencies["one call"])
    rows = []
    for side, spent in times.items():
        p50, p99 = np.percentile(latencies[side], [50, 99])
        rows.append(
            {
                "engine": engine,
                "side": side,
                "queries": environments * each,
                "queries / s": environments * each / statistics.median(spent),
                "times": statistics.median(a / b for a, b in zip(times["per call"], spent, strict=True)),
                "p50": 1000 * p50,
                "p99": 1000 * p99,
                "to one call": p99 / together,
            }
        )
    return rows


def run_threads(search: Callable[[list[str]], Any], queries: list[list[str]]) -> tuple[float, list[float]]:
    """Let one thread per list search for its queries; return the seconds for all, and those of every search."""
    waited: list[list[float]] = [[] for _ in queries]
    barrier = threading.Barrier(len(queries) + 1)

    def environment(number: int) -> None:
        barrier.wait()
        for text in queries[number]:
            begin = time.perf_counter()
            search([text])
            waited[number].append(time.perf_counter() - begin)

    threads = [threading.Thread(target=environment, args=(number,)) for number in range(len(queries))]
    for thread in threads:
        thread.start()
    barrier.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    assert all(len(of_one) == len(queries[0]) for of_one in waited), "a search failed"
    return seconds, [each for of_one in waited for each in of_one]


def make_documents(count: int) -> list[Document]:
    """Passages of 46 words, as long as HotpotQA's abstracts; words are as frequent as in a language (Zipf)."""
    rng = np.random.default_rng(0)
    return [Document(str(n), WORDS[n % len(WORDS)], " ".join(draw_words(rng, 46))) for n in range(count)]


def make_queries(environments: int, each: int, seed: int) -> list[list[str]]:
    """Queries of 12 words, all different."""
    rng = np.random.default_rng((1, seed))
    return [[" ".join(draw_words(rng, 12)) for _ in range(each)] for _ in range(environments)]


def draw_words(rng: np.random.Generator, count: int) -> list[str]:
    return [WORDS[n] for n in np.minimum(rng.zipf(1.2, count) - 1, len(WORDS) - 1)]


def make_encoder_folder(folder: Path, quick: bool) -> Path:
    """Write a BERT of MiniLM's size (6 layers of 384) with random weights."""
    from transformers import BertConfig, BertModel, BertTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=512)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    if quick:
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).eval().save_pretrained(folder)
    return folder
