"""Writes the generated questions and the papers of their fields to a folder, in the form in which real data comes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agent_gym.envs.papersearch.field import get_field
from agent_gym.envs.papersearch.generator import SPLIT_SIZES, GeneratedQueries


def write_embedded(folder: str | Path, sizes: Mapping[str, int] = SPLIT_SIZES) -> Path:
    """Write generated questions and all papers of the fields that they are about.

    Args:
        folder: where to; made if needed.
        sizes: split to the number of its questions.

    Returns:
        The folder, with `papers.jsonl` and `<split>.jsonl`; `data=` takes it. Each question is then searched in the
        papers of all fields together.

    Raises:
        ConfigError: for an unknown split, or a size below one.
    """
    folder = Path(folder).expanduser()
    splits = {split: list(GeneratedQueries(split, size)) for split, size in sizes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    fields = sorted({row["field"] for rows in splits.values() for row in rows})
    papers = (paper for number in fields for paper in get_field(number).library.papers.values())
    _write_lines(
        folder / "papers.jsonl",
        (
            {
                "paper_id": paper.id,
                "title": paper.title,
                "abstract": paper.abstract,
                "year": paper.year,
                "authors": list(paper.authors),
                "references": list(paper.references),
            }
            for paper in papers
        ),
    )
    for split, rows in splits.items():
        # An id is unique over all fields, so that the row need not say which is its own.
        plain = ({key: value for key, value in row.items() if key != "field"} for row in rows)
        _write_lines(folder / f"{split}.jsonl", plain)
    return folder


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
