"""Questions about invented fields of research: the data an environment has before anything is downloaded.

A row has `query_id`, the `question`, its `type`, in `papers` the ids of all papers that it asks for, the `field` in
which it is to be searched, and for the expert in `searches` the names that the question gives, in `expands` the papers
that introduced what they name.

| type | asks for the papers that | example |
|---|---|---|
| method-task | apply a method to a task | Which papers apply Tobila to Dorema? |
| method-dataset | apply a method and test it on some data | Find the papers from after 2004 that test Tobila on Sagu. |
| task-dataset | solve a task with some data | Who solved Dorema and used Sagu for it? List the papers. |

Which papers these are can be read off the citations: a paper that applies something cites the paper that introduced it,
and no other paper that introduced something. Surveys and theory are not asked for. One paper at least of each answer
names nothing that the question names, so that no search for these names finds it; both papers in `expands` lead to it.

A field depends on its number alone. It has four topics, and some two hundred papers that cite older ones. There are
many small fields, since a policy that meets the same names again and again learns the names and not how to search.
Question i of a split depends on the split and i alone.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from agent_gym.data import DistinctRows
from agent_gym.envs.names import Namer
from agent_gym.envs.papersearch.tools import Library, Paper
from agent_gym.errors import ConfigError

KINDS = ("method", "task", "dataset")  # a paper introduces each of these, and questions ask for pairs of them
WORDING: dict[str, Any] = json.loads(files(__package__).joinpath("wording.json").read_text("utf-8"))
"""How papers are written and asked for.

- `veiled`: kind of thing to what a text has in place of its name.
- `titles`, `abstracts`: kind of paper to its titles and, sentence by sentence, to its abstract. A paper that introduces
  something has its name three times, so that a search for the name finds it before the papers that use it.
- `application_titles`: which of method and task an application names to its titles.
- `questions`: what is asked for to questions. {when} is one of `when`, with a space before it, or nothing.
"""
TOPICS = 4
PER_TOPIC = {"method": 4, "task": 4, "dataset": 3}
AUTHORS = 40
FIRST_YEAR, LAST_YEAR = 1980, 2024
_NAMED = 0.5  # how likely an application names its method, and likewise its task and its data


@dataclass(slots=True, eq=False)
class Draft:
    """A paper before its text is written."""

    kind: str  # one of `KINDS`, which introduces such a thing, or "application", "survey" or "analysis"
    year: int
    about: dict[str, Draft] = field(default_factory=dict)  # kind of thing to the paper that introduced it
    names: dict[str, str] = field(default_factory=dict)  # kind of thing to its name, for all it is about
    named: frozenset[str] = frozenset()  # which kinds its text names; the others it only cites
    cites: list[Draft] = field(default_factory=list)
    id: str = ""


class Field:
    """One invented field: its `library`, oldest papers first, with ids such as "w7-31", and the `drafts` of these."""

    def __init__(self, number: int) -> None:
        rng = random.Random(f"papers/{number}")
        self._namer = Namer(number, rng)
        drafts = [draft for _ in range(TOPICS) for draft in self._topic(rng)]
        rng.shuffle(drafts)  # or the order within a year would show the kinds of papers
        self.drafts = sorted(drafts, key=lambda draft: draft.year)
        for i, draft in enumerate(self.drafts):
            draft.id = f"w{number}-{i}"
        people = [self._namer.person() for _ in range(AUTHORS)]
        self.library = Library(_write(draft, rng.sample(people, rng.randint(1, 3)), rng) for draft in self.drafts)

    def _topic(self, rng: random.Random) -> list[Draft]:
        topic = self._namer.word()
        things = {kind: [self._introduce(kind, topic, rng) for _ in range(n)] for kind, n in PER_TOPIC.items()}
        for method in things["method"]:
            older = [other for other in things["method"] if other.year < method.year]
            if older and rng.random() < 0.5:
                method.cites.append(rng.choice(older))
        applications: list[Draft] = []
        for method in things["method"]:
            for task in rng.sample(things["task"], rng.randint(2, 3)):
                for _ in range(rng.randint(2, 4)):
                    about = {"method": method, "task": task, "dataset": rng.choice(things["dataset"])}
                    applications.append(self._use("application", about, rng))
        for paper in applications:
            method, task = paper.about["method"], paper.about["task"]
            related = [one for one in applications if one.about["method"] is method or one.about["task"] is task]
            near = [other for other in related if other.year < paper.year]
            paper.cites += rng.sample(near, min(len(near), rng.randint(0, 2)))
        surveys = [self._use("survey", {"task": task}, rng) for task in things["task"]]
        for survey in surveys:
            covered = [p for p in applications if p.about["task"] in survey.cites and p.year < survey.year]
            survey.cites += [paper for paper in covered if rng.random() < 0.8]
        analyses = [self._use("analysis", {"method": method}, rng) for method in things["method"]]
        return [*(thing for kind in KINDS for thing in things[kind]), *applications, *surveys, *analyses]

    def _introduce(self, kind: str, topic: str, rng: random.Random) -> Draft:
        draft = Draft(kind, rng.randint(FIRST_YEAR, 2000), named=frozenset({kind}))
        draft.about = {kind: draft}
        draft.names = {kind: self._namer.word(), "topic": topic}
        return draft

    def _use(self, kind: str, about: dict[str, Draft], rng: random.Random) -> Draft:
        earliest = max(draft.year for draft in about.values()) + 1
        # Surveys come late, so that there is something to survey.
        year = rng.randint(2010 if kind == "survey" else earliest, LAST_YEAR)
        names = {thing: draft.names[thing] for thing, draft in about.items()}
        named = frozenset(thing for thing in about if kind == "survey" or rng.random() < _NAMED)
        return Draft(kind, year, about, {**names, "system": self._namer.word()}, named, list(about.values()))


get_field = functools.lru_cache(maxsize=128)(Field)


def _write(draft: Draft, authors: Sequence[str], rng: random.Random) -> Paper:
    words = {**draft.names, "year": str(draft.year - 1), "n": str(rng.randint(2, 90))}
    words |= {
        kind: rng.choice(WORDING["veiled"][kind]) for kind in KINDS if kind in draft.about and kind not in draft.named
    }
    kind, titles = draft.kind, WORDING["titles"].get(draft.kind, ())
    if kind == "application":
        titles = WORDING["application_titles"][" ".join(one for one in ("method", "task") if one in draft.named)]
    if kind == "method" and draft.cites:
        kind, words["parent"] = "extension", draft.cites[0].names["method"]
        if rng.random() >= _NAMED:
            words["parent"] = rng.choice(WORDING["veiled"]["method"])
    title = rng.choice(titles).format(**words)
    abstract = "".join(rng.choice(wordings).format(**words) for wordings in WORDING["abstracts"][kind])
    # Oldest first: the order in which they were drawn would show which is the method and which the task.
    references = tuple(sorted((cited.id for cited in draft.cites), key=lambda i: int(i.partition("-")[2])))
    return Paper(draft.id, title, abstract, draft.year, references, tuple(authors))


QUESTIONS: dict[tuple[str, str], list[str]] = {
    (kinds.split()[0], kinds.split()[1]): wordings for kinds, wordings in WORDING["questions"].items()
}
WHEN: dict[str, str] = WORDING["when"]
SPLIT_SIZES = {"train": 20_000, "validation": 1_000, "test": 1_000}
FIELDS = {"train": range(80), "validation": range(80, 88), "test": range(88, 96)}
_BOUNDED = 0.4  # share of the questions that only ask for papers from before or after some year


class GeneratedQueries(DistinctRows):
    """The questions of one split. In train a question may come back, in the other splits none does.

    No name occurs in two of `train`, `validation` and `test`. Question i is the same at any size.

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
        fits = [one for one in _all_asked(number) if one[0] == kinds and bool(one[3]) == bounded]
        _, about, answer, bound, year = rng.choice(fits)
        names = {kind: paper.names[kind] for kind, paper in zip(kinds, about, strict=True)}
        when = f" {WHEN[bound].format(year=year)}" if bound else ""
        return {
            "query_id": f"{self.split}-{index}",
            "question": rng.choice(QUESTIONS[kinds]).format(**names, when=when),
            "papers": [paper.id for paper in answer],
            "type": "-".join(kinds),
            "searches": list(names.values()),
            "expands": [paper.id for paper in about],
            "field": number,
        }


_Asked = tuple[tuple[str, str], list[Draft], list[Draft], str, int]
"""Two kinds, the papers that introduced the two things asked about, the answer, before or after a year, this year."""


@functools.lru_cache(maxsize=128)
def _all_asked(number: int) -> list[_Asked]:
    found: dict[tuple[tuple[str, str], Draft, Draft], list[Draft]] = {}
    for draft in get_field(number).drafts:
        if draft.kind == "application":
            for kinds in QUESTIONS:
                one, other = (draft.about[kind] for kind in kinds)
                found.setdefault((kinds, one, other), []).append(draft)
    asked = []
    for (kinds, *about), papers in found.items():
        choices = [(papers, "", 0)]
        for year in sorted({paper.year for paper in papers}):
            choices.append(([paper for paper in papers if paper.year < year], "before", year))
            choices.append(([paper for paper in papers if paper.year > year], "after", year))
        for answer, when, year in choices:
            named = [len(paper.named.intersection(kinds)) for paper in answer]
            # Several papers to find, some by what the question names and some only by citations.
            if 2 <= len(answer) <= 6 and min(named) == 0 < max(named):
                asked.append((kinds, about, answer, when, year))
    return asked


def write_embedded(folder: str | Path, sizes: Mapping[str, int] = SPLIT_SIZES) -> Path:
    """Write generated questions and all papers of their fields for `data=`, and return the folder.

    Each question is then searched in the papers of all fields together.

    Raises:
        ConfigError: for an unknown split, or a size below one.
    """
    folder = Path(folder).expanduser()
    splits = {split: list(GeneratedQueries(split, size)) for split, size in sizes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    fields = sorted({row["field"] for rows in splits.values() for row in rows})
    papers = [paper for number in fields for paper in get_field(number).library.papers.values()]
    columns = ("title", "abstract", "year", "authors", "references")
    files = {"papers": [{"paper_id": p.id, **{name: getattr(p, name) for name in columns}} for p in papers]}
    for split, rows in splits.items():
        # An id is unique over all fields, so that the row needs no field.
        files[split] = [{key: value for key, value in row.items() if key != "field"} for row in rows]
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines), encoding="utf-8")
    return folder
