"""Papers and who cites whom: what an episode searches, and how papers come in files.

`papers.jsonl` holds one paper per line, `{"paper_id", "title", "abstract", "year", "references"}`, and `authors` if
they are known. A reference to a paper that the file does not hold is left out: no dump of the literature is complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.search import Document

COLUMNS = ("paper_id", "title", "abstract", "year", "references")
# Observations put ids in brackets, answers list them with commas or on lines of their own.
_NO_ID = re.compile(r"[\s,\[\]]|^$")


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper; `id` has no spaces, commas and brackets, and `references` are ids. Abstract and authors may be empty."""

    id: str
    title: str
    abstract: str
    year: int | None
    references: tuple[str, ...]
    authors: tuple[str, ...] = ()


class Library:
    """The papers that a question is searched in.

    Attributes:
        papers: id to paper, in the order of the corpus.
    """

    def __init__(self, papers: Iterable[Paper]) -> None:
        self.papers = {paper.id: paper for paper in papers}

    @cached_property
    def documents(self) -> list[Document]:
        """What a search engine indexes: title and abstract, and neither authors nor references."""
        return [Document(paper.id, paper.title, paper.abstract) for paper in self.papers.values()]

    def references(self, paper_id: str) -> list[str]:
        """Return which papers of the library a paper cites, in its own order."""
        found = dict.fromkeys(self.papers[paper_id].references)
        return [reference for reference in found if reference in self.papers and reference != paper_id]

    def citing(self, paper_id: str) -> Sequence[str]:
        """Return which papers of the library cite a paper, in the order of the library."""
        return self._citing.get(paper_id, ())

    def around(self, paper_id: str) -> list[str]:
        """Return the references of a paper and then the papers that cite it; one that does both comes twice."""
        return [*self.references(paper_id), *self.citing(paper_id)]

    @cached_property
    def _citing(self) -> dict[str, list[str]]:
        citing: dict[str, list[str]] = {}
        for paper_id in self.papers:
            for reference in self.references(paper_id):
                citing.setdefault(reference, []).append(paper_id)
        return citing


def read_papers(rows: Iterable[tuple[str, Any]]) -> Library:
    """Read rows, each with its place, for example "papers.jsonl, line 3".

    Raises:
        ConfigError: with the place, for a column that is missing or holds something else, or an id that occurs twice.
    """
    places: dict[str, str] = {}
    papers = []
    for place, row in rows:
        paper = _read_paper(place, row)
        if paper.id in places:
            raise ConfigError(f"{place}: the paper_id {paper.id!r} is also that of {places[paper.id]}")
        places[paper.id] = place
        papers.append(paper)
    return Library(papers)


def read_ids(place: str, column: str, value: Any) -> tuple[str, ...]:
    """Read a list of ids, which may be texts or whole numbers.

    Raises:
        ConfigError: with the place, for anything else.
    """
    if isinstance(value, list | tuple):
        ids = [str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in value]
        if all(isinstance(one, str) and not _NO_ID.search(one) for one in ids):
            return tuple(ids)
    raise ConfigError(
        f"{place}: {column} is {str(value)[:80]!r}; it must be a list of ids, texts without spaces, commas and brackets"
    )


def need(place: str, row: Any, columns: Sequence[str]) -> None:
    """Raise `ConfigError` with the place, if one of the columns is missing."""
    if not isinstance(row, Mapping):
        raise ConfigError(f"{place}: must be an object with {', '.join(columns)}, and is {str(row)[:50]!r}")
    for column in columns:
        if column not in row:
            raise ConfigError(f"{place}: no column {column!r}; it has: {', '.join(map(str, row))}")


def _read_paper(place: str, row: Any) -> Paper:
    need(place, row, COLUMNS)
    (paper_id,) = read_ids(place, "paper_id", [row["paper_id"]])
    title, abstract, year, authors = row["title"], row["abstract"], row["year"], row.get("authors") or []
    are_texts = isinstance(authors, list | tuple) and all(isinstance(author, str) for author in authors)
    for column, good, wanted in (
        ("title", isinstance(title, str) and title.strip(), "a text that is not empty"),
        ("abstract", isinstance(abstract, str | None), "a text, or null if there is none"),
        ("year", type(year) in (int, type(None)), "a whole number, or null if it is not known"),
        ("authors", are_texts, "a list of texts"),
    ):
        if not good:
            raise ConfigError(f"{place}: {column} is {str(row.get(column))[:50]!r}; it must be {wanted}")
    references = read_ids(place, "references", row["references"])
    return Paper(paper_id, title, abstract or "", year, references, tuple(authors))
