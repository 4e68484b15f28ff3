"""What the tests of `agent_gym.prepare` share: small data sets in the forms in which the real ones come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def word_problems(count: int) -> list[Row]:
    """Rows of GSM8K."""
    return [
        {
            "question": f"Léa has {n} pens and buys {n} more. How many?",
            "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}",
        }
        for n in range(1, count + 1)
    ]


def multi_hop_rows(count: int, start: int = 0) -> list[Row]:
    """Rows of HotpotQA in the official form; neighbours share a paragraph."""
    return [
        {
            "_id": f"q{n}",
            "question": f"In which city was the director of Film {n} born?",
            "answer": f"City {n}",
            "type": "bridge",
            "level": "hard",
            "supporting_facts": [[f"Film {n}", 0], [f"Person {n}", 1]],
            "context": [
                [f"Film {n}", [f"Film {n} is by Person {n}.", " It is long."]],
                [f"Person {n}", [f"Person {n} makes films.", f" Person {n} was born in City {n}."]],
                [f"Film {n + 1}", [f"Film {n + 1} is by Person {n + 1}.", " It is long."]],
            ],
        }
        for n in range(start, start + count)
    ]


def as_on_the_hub(row: Row) -> Row:
    """A row of HotpotQA as the hub has it: columns instead of pairs, and another name for the id."""
    facts, context = row["supporting_facts"], row["context"]
    return {
        **{name: row[name] for name in ("question", "answer", "type", "level")},
        "id": row["_id"],
        "supporting_facts": {"title": [t for t, _ in facts], "sent_id": [n for _, n in facts]},
        "context": {"title": [t for t, _ in context], "sentences": [s for _, s in context]},
    }


def musique_rows(count: int, *, answerable: bool = True) -> list[Row]:
    """Rows of MuSiQue."""

    def row(n: int) -> Row:
        texts = [(f"Town {n}", f"The river of Town {n} is R{n}."), (f"R{n}", f"R{n} is in Land {n}."), ("Moon", "Dry.")]
        steps = [("river?", f"R{n}"), ("where?", f"Land {n}")]
        return {
            "id": f"2hop__{n}",
            "question": f"Where is the river of Town {n}?",
            "answer": f"Land {n}",
            "answer_aliases": [f"the land {n}"],
            "answerable": answerable,
            "paragraphs": [
                {"idx": i, "title": title, "paragraph_text": text, "is_supporting": i < 2}
                for i, (title, text) in enumerate(texts)
            ],
            "question_decomposition": [
                {"id": i + 1, "question": question, "answer": answer, "paragraph_support_idx": i}
                for i, (question, answer) in enumerate(steps)
            ],
        }

    return [row(n) for n in range(count)]


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_list(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(list(rows)))
    return path


def read_table(path: Path) -> list[Row]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by its path."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
