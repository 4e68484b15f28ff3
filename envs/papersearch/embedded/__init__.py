"""Questions about invented fields of research: the data an environment has before anything is downloaded.

A row has `query_id`, the `question`, its `type`, in `papers` the ids of all papers that it asks for, the `field` in
which it is to be searched, and for the expert in `searches` the names that the question gives, in `expands` the papers
that introduced the things they name.

| type | asks for the papers that | example |
|---|---|---|
| method-task | apply a method to a task | Which papers apply Tobila to Dorema? |
| method-dataset | apply a method and test it on some data | Find the papers from after 2004 that test Tobila on Sagu. |
| task-dataset | solve a task with some data | Who solved Dorema and used Sagu for it? List the papers. |

A paper that applies something cites the paper that introduced it, so that the papers asked for are among the ones that
both papers in `expands` lead to. From difficulty 2 on, one paper at least of each answer names nothing that the
question names, and no search for these names finds it. From difficulty 3 on it has to be read which ones are asked for:
a paper also cites unused rivals, and papers on possible work of others cite all of it. `related` has the ones that cite
both and are not asked for. An applied thing is called by its name, its short or other name or its authors and year, or
not at all; a thing that is not applied always has a name.

The fields are in field.py.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agent_gym.data import SplitRows
from agent_gym.envs.papersearch.embedded.field import DEFAULT, FIELDS, LADDER, LAST_YEAR, WORDING, FieldDraft, get_field
from agent_gym.errors import whole_number

QUESTIONS = (("method", "task"), ("method", "dataset"), ("task", "dataset"))
WHEN: dict[str, str] = WORDING["when"]
_BOUNDED = 0.4  # share of the questions that only ask for papers from before or after some year


class GeneratedQueries(SplitRows):
    """The questions of one split, of a difficulty of `LADDER`; at some there are fewer. `ConfigError` for another.

    No name occurs in two of `train`, `validation` and `test`, and no wording of a question.
    """

    SIZES = {"train": 20_000, "validation": 1_000, "test": 1_000}
    KEY = "query_id"

    def __init__(self, split: str, size: int | None = None, difficulty: int = DEFAULT) -> None:
        super().__init__(split, size)
        self.difficulty = whole_number("difficulty", difficulty, 1, len(LADDER))

    def draw(self, index: int, attempt: int) -> dict[str, Any]:
        key = f"papers/{self.split}/{self.difficulty}/{index}" + (f"/{attempt}" if attempt else "")
        rng = random.Random(key)
        number, kinds, bounded = rng.choice(FIELDS[self.split]), rng.choice(QUESTIONS), rng.random() < _BOUNDED
        fits = [one for one in _all_asked(number, self.difficulty) if one.kinds == kinds and bool(one.when) == bounded]
        asked = rng.choice(fits)
        renamed = [rng.random() < LADDER[self.difficulty].renamed for _ in kinds]
        names = [
            paper.names["other" if other else kind]
            for kind, paper, other in zip(kinds, asked.about, renamed, strict=True)
        ]
        when = f" {WHEN[asked.when].format(year=asked.year)}" if bounded else ""
        wording = rng.choice(WORDING["held_out"][" ".join(kinds)][self.split])
        return {
            "query_id": f"{'+'.join(paper.id for paper in asked.about)}{when.replace(' ', '-')}",
            "question": wording.format(**dict(zip(kinds, names, strict=True)), when=when),
            "papers": [paper.id for paper in asked.papers],
            "related": [paper.id for paper in asked.related],
            "type": "-".join(kinds),
            "searches": names,
            "expands": [paper.id for paper in asked.about],
            "field": number,
            "difficulty": self.difficulty,
        }


class _Asked(NamedTuple):
    kinds: tuple[str, str]
    about: list[FieldDraft]  # the papers that introduced the two things
    papers: list[FieldDraft]  # the answer
    related: list[FieldDraft]  # papers that cite both and are not asked for
    when: str = ""  # before or after `year`, or ""
    year: int = 0


@functools.lru_cache(maxsize=128)
def _all_asked(number: int, difficulty: int) -> list[_Asked]:
    drafts, level = get_field(number, difficulty).drafts, LADDER[difficulty]
    found: dict[tuple[Any, ...], tuple[list[FieldDraft], list[FieldDraft]]] = {}
    for draft in drafts:
        for kinds in QUESTIONS:
            for about in itertools.product(*([one for one in draft.cites if one.kind == kind] for kind in kinds)):
                applies = draft.kind == "application" and all(draft.about[one.kind] is one for one in about)
                found.setdefault((kinds, *about), ([], []))[not applies].append(draft)
    asked = []
    for (kinds, one, other), (papers, both) in found.items():
        choices = [_Asked(kinds, [one, other], papers, both)]
        for year in sorted({paper.year for paper in papers}):
            for when, keep in (("before", range(year)), ("after", range(year + 1, LAST_YEAR + 1))):
                kept, near = ([paper for paper in some if paper.year in keep] for some in (papers, both))
                choices.append(_Asked(kinds, [one, other], kept, near, when, year))
        for choice in choices:
            named = [len(paper.named.intersection(kinds)) for paper in choice.papers]
            # Several papers to find, some by names in the question and some only by citations.
            if not 2 <= len(choice.papers) <= 6 or (level.named < 1 and not min(named) == 0 < max(named)):
                continue
            if len(choice.related) >= level.decoys * len(choice.papers):
                asked.append(choice)
    return asked


def write_embedded(folder: str | Path, sizes: Mapping[str, int] | None = None, difficulty: int = DEFAULT) -> Path:
    """Write generated questions and all papers of their fields for `data=`, and return the folder.

    Each question is then searched in the papers of all fields together.

    Raises:
        ConfigError: for an unknown split or difficulty, or a size below one.
    """
    folder = Path(folder).expanduser()
    sizes = sizes or GeneratedQueries.SIZES
    splits = {split: list(GeneratedQueries(split, size, difficulty)) for split, size in sizes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    fields = sorted({row["field"] for rows in splits.values() for row in rows})
    papers = [paper for number in fields for paper in get_field(number, difficulty).library.papers.values()]
    columns = ("title", "abstract", "year", "authors", "references")
    files = {"papers": [{"paper_id": p.id, **{name: getattr(p, name) for name in columns}} for p in papers]}
    for split, rows in splits.items():
        # An id is unique over all fields, so that the row needs no field.
        files[split] = [{key: row[key] for key in row if key not in ("field", "difficulty")} for row in rows]
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines), encoding="utf-8")
    return folder
