"""Writes the generated questions and worlds to files, in the two forms in which real data comes.

HotpotQA's JSON, one file per split, for `data=`; and in the folder `beir` the corpus, the questions and which
paragraphs are relevant to them, in the form of BEIR (arXiv:2104.08663), for `corpus=` and for measuring search engines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.envs.hotpotqa.generator import LEVELS, SPLIT_SIZES, GeneratedQuestions
from agent_gym.envs.hotpotqa.world import get_world


def write_embedded(folder: str | Path, sizes: Mapping[str, int] = SPLIT_SIZES, levels: Sequence[str] = LEVELS) -> Path:
    """Write generated questions and the paragraphs of their worlds.

    Args:
        folder: where to; made if needed.
        sizes: split to the number of its questions.
        levels: which levels occur.

    Returns:
        The folder, with `<split>.json`, `beir/corpus.jsonl`, `beir/queries.jsonl` and `beir/qrels/<split>.tsv`.

    Raises:
        ConfigError: for an unknown split or level.
    """
    folder = Path(folder).expanduser()
    splits = {split: list(GeneratedQuestions(split, size, levels)) for split, size in sizes.items()}
    (folder / "beir" / "qrels").mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        # In the corpus of all worlds together a title is still unique, so that the row need not say which is its own.
        plain = [{key: value for key, value in row.items() if key != "world"} for row in rows]
        (folder / f"{split}.json").write_text(json.dumps(plain), encoding="utf-8")
    rows = [row for rows in splits.values() for row in rows]
    documents = [
        document for world in sorted({row["world"] for row in rows}) for document in get_world(world).documents
    ]
    corpus = ({"_id": d.id, "title": d.title, "text": d.text, "metadata": {}} for d in documents)
    _write_lines(folder / "beir" / "corpus.jsonl", corpus)
    queries = ({"_id": row["_id"], "text": row["question"], "metadata": {}} for row in rows)
    _write_lines(folder / "beir" / "queries.jsonl", queries)
    ids = {document.title: document.id for document in documents}
    for split, questions in splits.items():
        relevant = [f"{row['_id']}\t{ids[title]}\t1\n" for row in questions for title, _ in row["supporting_facts"]]
        table = "".join(["query-id\tcorpus-id\tscore\n", *relevant])
        (folder / "beir" / "qrels" / f"{split}.tsv").write_text(table, encoding="utf-8")
    return folder


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
