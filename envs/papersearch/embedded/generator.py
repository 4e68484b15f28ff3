"""Questions about invented fields of research: the data an environment has before anything is downloaded.

A row has `query_id`, the `question`, and in `papers` the ids of all papers that it asks for. Beside them stand its
`type`, the `field` in which it is to be searched, and what its expert does: `searches` are the names that the question
gives, `expands` the papers that introduced what they name.

| type | asks for the papers that | example |
|---|---|---|
| method-task | apply a method to a task | Which papers apply Tobila to Dorema? |
| method-dataset | apply a method and test it on some data | Find the papers from after 2004 that test Tobila on Sagu. |
| task-dataset | solve a task with some data | Who solved Dorema and used Sagu for it? List the papers. |

Which papers these are follows from how the field was made and can be read off its citations: a paper that applies
something cites the paper that introduced it, and no other paper that introduced something. Surveys and theory are not
asked for. One paper at least of each answer names nothing that the question names, so that no search for these names
can find it; both papers in `expands` lead to it, as they do to all of the answer.

Question i of a split depends on the split and i alone; outside of train it is drawn again where one before it is the
same.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agent_gym.data import DistinctRows
from agent_gym.envs.papersearch.embedded.field import WORDING, Draft, get_field
from agent_gym.errors import ConfigError

QUESTIONS: dict[tuple[str, str], list[str]] = {
    (kinds.split()[0], kinds.split()[1]): wordings for kinds, wordings in WORDING["questions"].items()
}
WHEN: dict[str, str] = WORDING["when"]
SPLIT_SIZES = {"train": 20_000, "validation": 1_000, "test": 1_000}
FIELDS = {"train": range(80), "validation": range(80, 88), "test": range(88, 96)}
_BOUNDED = 0.4  # share of the questions that only ask for papers from before or after some year


class GeneratedQueries(DistinctRows):
    """The questions of one split. In train a question may come back, in the other splits none does.

    Args:
        split: `train`, `validation` or `test`; no name occurs in two of them.
        size: how many at most; question i is the same at any size.

    Raises:
        ConfigError: on an unknown split, or a size below one.
    """

    def __init__(self, split: str, size: int | None = None) -> None:
        if split not in SPLIT_SIZES:
            raise ConfigError(f"unknown split {split!r}: generated questions have {', '.join(SPLIT_SIZES)}")
        super().__init__(SPLIT_SIZES[split] if size is None else size, key=None if split == "train" else "question")
        self.split = split

    def draw(self, index: int, attempt: int) -> dict[str, Any]:
        # A string seed goes through SHA-512, so neighbouring questions share nothing and PYTHONHASHSEED is no matter.
        rng = random.Random(f"papers/{self.split}/{index}" + (f"/{attempt}" if attempt else ""))
        number, kinds, bounded = rng.choice(FIELDS[self.split]), rng.choice(list(QUESTIONS)), rng.random() < _BOUNDED
        asked = rng.choice([one for one in _all_asked(number) if one.kinds == kinds and bool(one.when) == bounded])
        names = {kind: paper.names[kind] for kind, paper in zip(kinds, asked.about, strict=True)}
        when = f" {WHEN[asked.when].format(year=asked.year)}" if asked.when else ""
        return {
            "query_id": f"{self.split}-{index}",
            "question": rng.choice(QUESTIONS[kinds]).format(**names, when=when),
            "papers": [paper.id for paper in asked.answer],
            "type": "-".join(kinds),
            "searches": list(names.values()),
            "expands": [paper.id for paper in asked.about],
            "field": number,
        }


class _Asked(NamedTuple):
    """What a question may ask for: papers about two things, all of them or those before or after a year."""

    kinds: tuple[str, str]
    about: tuple[Draft, Draft]
    answer: list[Draft]
    when: str = ""
    year: int = 0


@functools.lru_cache(maxsize=128)
def _all_asked(number: int) -> list[_Asked]:
    """Return everything that can be asked about a field."""
    drafts = get_field(number).drafts
    found: dict[tuple[tuple[str, str], Draft, Draft], list[Draft]] = {}
    for draft in drafts:
        if draft.kind == "application":
            for kinds in QUESTIONS:
                one, other = (draft.about[kind] for kind in kinds)
                found.setdefault((kinds, one, other), []).append(draft)
    asked = []
    for (kinds, one, other), papers in found.items():
        asked.append(_Asked(kinds, (one, other), papers))
        for year in sorted({paper.year for paper in papers}):
            before = [paper for paper in papers if paper.year < year]
            after = [paper for paper in papers if paper.year > year]
            asked.append(_Asked(kinds, (one, other), before, "before", year))
            asked.append(_Asked(kinds, (one, other), after, "after", year))
    return [one for one in asked if _is_good(one.kinds, one.answer)]


def _is_good(kinds: Sequence[str], answer: Sequence[Draft]) -> bool:
    """Whether there are several papers to find, some by what the question names and some only by citations."""
    named = [len(paper.named & set(kinds)) for paper in answer]
    return 2 <= len(answer) <= 6 and min(named) == 0 < max(named)


def write_embedded(folder: str | Path, sizes: Mapping[str, int] = SPLIT_SIZES) -> Path:
    """Write generated questions and all papers of the fields that they are about, in the form of real data.

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
