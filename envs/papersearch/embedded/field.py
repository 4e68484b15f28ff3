"""An invented field of research: methods, tasks and data of four topics, some two hundred papers, and their citations.

There are many small fields instead of a large one, for the reason there are many worlds in the other generators: a
policy that meets the same names again and again learns the names and not how to search.

A field depends on its number alone, whatever the process or the hash seed, and takes some milliseconds to make. What
is cited is older by a year at least. Beside the papers on whose work it rests, a paper cites others of its topic.

A paper that applies a method to a task cites the papers that introduced the two and its data. Its text may leave each
of them out: "an earlier method", "a known task". Then only the citation says which one is meant.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from agent_gym.envs.papersearch.papers import Library, Paper
from agent_gym.names import Namer

KINDS = ("method", "task", "dataset")
"""What a field is made of. A paper introduces each of these, and questions ask for pairs of them."""
WORDING: dict[str, Any] = json.loads(files(__package__).joinpath("wording.json").read_text("utf-8"))
"""How papers are written and asked for.

- `veiled`: kind of thing to what a text has in place of its name.
- `titles`, `abstracts`: kind of paper to its titles and, sentence by sentence, to its abstract, each in several
  wordings. A paper that introduces something has its name three times, so that a search for the name finds it before
  the papers that use it.
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
    """A paper that has no id yet.

    Attributes:
        kind: one of `KINDS`, which introduces such a thing, or "application", "survey" or "analysis".
        year: when it appeared.
        about: kind of thing to the paper that introduced the one it is about, or, if it introduces one, to itself.
        names: kind of thing to its name, for all it is about.
        named: which kinds its text names; the others it only cites.
        cites: the papers it cites.
        id: what it is called in the end.
    """

    kind: str
    year: int
    about: dict[str, Draft] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    cites: list[Draft] = field(default_factory=list)
    id: str = ""


class Field:
    """One invented field.

    Args:
        number: from 0 to `names.MOST_WORLDS` - 1.

    Attributes:
        drafts: what its papers are about, in the order of the library; the generator of questions reads it.
        library: the papers themselves, oldest first, with ids such as "w7-31".
    """

    def __init__(self, number: int) -> None:
        """Draw names, then papers and citations, then wordings."""
        rng = random.Random(f"papers/{number}")
        self._namer = Namer(number, rng)
        drafts = [draft for _ in range(TOPICS) for draft in self._topic(rng)]
        rng.shuffle(drafts)  # or the order within a year would tell the kinds of papers apart
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
            near = [other for other in applications if other.year < paper.year and _related(paper, other)]
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


@functools.lru_cache(maxsize=128)
def get_field(number: int) -> Field:
    """Return a field, made once per process."""
    return Field(number)


def _related(a: Draft, b: Draft) -> bool:
    return a.about["method"] is b.about["method"] or a.about["task"] is b.about["task"]


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
    # Oldest first: the order in which they were drawn would say which is the method and which the task.
    references = tuple(sorted((cited.id for cited in draft.cites), key=lambda i: int(i.partition("-")[2])))
    return Paper(draft.id, title, abstract, draft.year, references, tuple(authors))
