"""Invented fields of research: methods, tasks and data with names that no model has read, and the papers on them.

A field depends on its number, which belongs to one split, and on the difficulty. It has a few topics, and one to four
hundred papers that cite older ones. There are many small fields, since a policy that meets the same names again and
again learns the names and not how to search.
"""

from __future__ import annotations

import functools
import json
import random
import re
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

from agent_gym.envs.names import Namer
from agent_gym.envs.papersearch.tools import Library, Paper, cited_as

KINDS = ("method", "task", "dataset")  # a paper introduces each of these, and questions ask for pairs of them
WORDING: dict[str, Any] = json.loads(files(__package__).joinpath("wording.json").read_text("utf-8"))
"""How papers are written and asked for.

- `veiled`: kind of thing to the text in place of its name.
- `titles`, `abstracts`: kind of paper to its titles and, sentence by sentence, to its abstract. A paper that introduces
  something has its name three times, so that a search for the name finds it before the papers that use it.
- `application_titles`: which of method and task an application or discussion names to its titles.
- `called`: kind of thing to its name after the authors of the paper that introduced it.
- `held_out`: sentences of which each split has its own: the ones on things that are not applied, and the questions.
  {when} is one of `when`, with a space before it, or nothing.
"""


class Difficulty(NamedTuple):
    """The settings that make a field, and the questions about it, hard."""

    named: float  # how likely a paper calls its method something, and likewise its task and its data
    renamed: float  # how likely it is called otherwise than by its name, and likewise in a question
    rivals: float  # how likely an application names unused things, for each kind of thing
    discussions: int  # papers that discuss a method and a task that were applied together, and apply neither
    decoys: float  # papers that cite both and are not asked for, at least, for each paper asked for
    topics: int


LADDER = {
    1: Difficulty(named=1.0, renamed=0.0, rivals=0.0, discussions=0, decoys=0.0, topics=2),
    2: Difficulty(named=0.5, renamed=0.0, rivals=0.0, discussions=0, decoys=0.0, topics=4),
    3: Difficulty(named=0.5, renamed=0.5, rivals=0.8, discussions=1, decoys=1.0, topics=4),
    4: Difficulty(named=0.4, renamed=0.6, rivals=0.9, discussions=2, decoys=1.6, topics=4),
    5: Difficulty(named=0.3, renamed=0.7, rivals=0.9, discussions=3, decoys=2.5, topics=5),
}
DEFAULT = 3
PER_TOPIC = {"method": 4, "task": 4, "dataset": 3}
FIELDS = {"train": range(72), "validation": range(72, 84), "test": range(84, 96)}
AUTHORS = 40
FIRST_YEAR, LAST_YEAR = 1980, 2024


@dataclass(slots=True, eq=False)
class FieldDraft:
    """A paper before its text is written."""

    kind: str  # one of `KINDS`, which introduces such a thing, or "application", "discussion", "survey" or "analysis"
    year: int
    authors: list[str]
    about: dict[str, FieldDraft] = field(default_factory=dict)  # kind of thing to the paper that introduced it
    names: dict[str, str] = field(default_factory=dict)  # kind of thing to its name, for all it is about
    named: frozenset[str] = frozenset()  # which kinds its text calls something; the others it only cites
    rivals: dict[str, FieldDraft] = field(default_factory=dict)  # kind of thing to things that are not applied
    cites: list[FieldDraft] = field(default_factory=list)
    id: str = ""


class Field:
    """One invented field: its `library`, oldest papers first, with ids such as "w7-31", and the `drafts` of these."""

    def __init__(self, number: int, difficulty: int = DEFAULT) -> None:
        self._rng = rng = random.Random(f"papers/{number}/{difficulty}")
        self._namer, self._level = Namer(number, rng), LADDER[difficulty]
        self._split = next(split for split, numbers in FIELDS.items() if number in numbers)
        self._people = [self._namer.person() for _ in range(AUTHORS)]
        self._called: set[str] = set()  # short names, and authors with year, which mean one thing each
        drafts = [draft for _ in range(self._level.topics) for draft in self._topic()]
        rng.shuffle(drafts)  # or the order within a year would show the kinds of papers
        self.drafts = sorted(drafts, key=lambda draft: draft.year)
        for i, draft in enumerate(self.drafts):
            draft.id = f"w{number}-{i}"
        self.library = Library(map(self._write, self.drafts))

    def _topic(self) -> list[FieldDraft]:
        rng, topic = self._rng, self._namer.word()
        things = {kind: [self._introduce(kind, topic) for _ in range(n)] for kind, n in PER_TOPIC.items()}
        for method in things["method"]:
            older = [other for other in things["method"] if other.year < method.year]
            if older and rng.random() < 0.5:
                method.cites.append(rng.choice(older))
        applications: list[FieldDraft] = []
        discussions: list[FieldDraft] = []
        for method in things["method"]:
            for task in rng.sample(things["task"], rng.randint(2, 3)):
                for n in range(rng.randint(2, 4) + self._level.discussions):
                    about = {"method": method, "task": task, "dataset": rng.choice(things["dataset"])}
                    if n < self._level.discussions:
                        discussions.append(self._use("discussion", about))
                    else:
                        applications.append(self._use("application", about))
        for paper in applications:
            for kind, used in paper.about.items():
                older = [other for other in things[kind] if other is not used and other.year < paper.year]
                if older and rng.random() < self._level.rivals:
                    paper.rivals[kind] = rng.choice(older)
                    paper.cites.append(paper.rivals[kind])
            method, task = paper.about["method"], paper.about["task"]
            if len(paper.rivals.keys() & {"method", "task"}) == 2:  # a sentence has room for one of them
                paper.cites.remove(paper.rivals.pop(rng.choice(("method", "task"))))
            related = [one for one in applications if one.about["method"] is method or one.about["task"] is task]
            near = [other for other in related if other.year < paper.year]
            paper.cites += rng.sample(near, min(len(near), rng.randint(0, 2)))
        surveys = [self._use("survey", {"task": task}) for task in things["task"]]
        for survey in surveys:
            covered = [p for p in applications if p.about["task"] in survey.cites and p.year < survey.year]
            survey.cites += [paper for paper in covered if rng.random() < 0.8]
        analyses = [self._use("analysis", {"method": method}) for method in things["method"]]
        introduced = [thing for kind in KINDS for thing in things[kind]]
        return [*introduced, *applications, *discussions, *surveys, *analyses]

    def _introduce(self, kind: str, topic: str) -> FieldDraft:
        while True:
            year, authors, name = self._rng.randint(FIRST_YEAR, 2000), self._authors(), self._namer.word()
            # Tasks have a second name, the others are shortened.
            other = self._namer.word() if kind == "task" else re.sub("[aeiou]", "", name).upper()
            after = WORDING["called"][kind].format(authors=cited_as(authors), year=year)
            if not {other, after} & self._called:
                break
        self._called |= {other, after}
        names = {kind: name, "other": other, "after": after, "topic": topic}
        draft = FieldDraft(kind, year, authors, names=names, named=frozenset({kind}))
        draft.about = {kind: draft}
        return draft

    def _use(self, kind: str, about: dict[str, FieldDraft]) -> FieldDraft:
        rng, earliest = self._rng, max(draft.year for draft in about.values()) + 1
        # Surveys come late, so that there is something to survey.
        year = rng.randint(2010 if kind == "survey" else earliest, LAST_YEAR)
        named = frozenset(thing for thing in about if kind == "survey" or rng.random() < self._level.named)
        names = {"system": self._namer.word()}
        return FieldDraft(kind, year, self._authors(), about, names, named, cites=list(about.values()))

    def _authors(self) -> list[str]:
        return self._rng.sample(self._people, self._rng.randint(1, 3))

    def _call(self, thing: FieldDraft) -> str:
        if self._rng.random() >= self._level.renamed:
            return thing.names[thing.kind]
        return thing.names[self._rng.choice(("other", "after"))]

    def _write(self, draft: FieldDraft) -> Paper:
        rng, kind = self._rng, draft.kind
        words = {**draft.names, "year": str(draft.year - 1), "n": str(rng.randint(2, 90)), "alias": ""}
        if kind in KINDS and self._level.renamed:
            words["alias"] = f" ({draft.names['other']})"
        for thing, introduced in draft.about.items():
            if introduced is not draft:
                veiled = rng.choice(WORDING["veiled"][thing])
                by_name = kind in ("survey", "analysis") and thing in draft.named  # their titles have the name
                words[thing] = introduced.names[thing] if by_name else self._call(introduced)
                words[thing] = words[thing] if thing in draft.named else veiled
        if kind in ("application", "discussion"):
            # A title has names only, so that the paper that introduced a name stays the best hit of a search for it.
            shown = [one for one in ("method", "task") if words[one] == draft.about[one].names[one]]
            titles = WORDING["application_titles"][" ".join(shown)]
        else:
            titles = WORDING["titles"][kind]
        if kind == "method" and draft.cites:
            kind, words["parent"] = "extension", draft.cites[0].names["method"]
            if rng.random() >= self._level.named:
                words["parent"] = rng.choice(WORDING["veiled"]["method"])
        sentences = list(WORDING["abstracts"][kind])
        if kind == "discussion":
            sentences = [self._held_out(kind), self._held_out(f"{kind} dataset"), *sentences]
        for thing in draft.rivals:
            sentences[thing == "dataset"] = self._held_out(f"rival {thing}")
        abstract = ""
        for n, wordings in enumerate(sentences):
            rival = next((other for one, other in draft.rivals.items() if n == (one == "dataset")), None)
            abstract += rng.choice(wordings).format(**words, **({"rival": self._call(rival)} if rival else {}))
        title, abstract = (
            re.sub(r"(?:^|(?<=[.] ))[a-z]", lambda found: found[0].upper(), text)
            for text in (rng.choice(titles).format(**words), abstract)
        )
        # Oldest first: the order in which they were drawn would show which is the method and which the task.
        references = tuple(sorted((cited.id for cited in draft.cites), key=lambda i: int(i.partition("-")[2])))
        return Paper(draft.id, title, abstract, draft.year, references, tuple(draft.authors))

    def _held_out(self, name: str) -> list[str]:
        sentences: list[str] = WORDING["held_out"][name][self._split]
        return sentences


get_field = functools.lru_cache(maxsize=128)(Field)
