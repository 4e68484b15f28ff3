"""Papers and who cites whom, the tools that find them, and how they are shown to the policy.

Each paper is one line that begins with its id in brackets, and no other line does, such as
`[w7-31] Lonuva: Tobila in use (Keroni et al., 1998): Lonuva applies Tobila to a known task. It is tested on Sagu.`
A paper that was shown before is only recalled: `[w7-31] Lonuva: Tobila in use (seen)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from agent_gym.search import Document
from agent_gym.search.base import TokenLimit

NO_CITATIONS = "No paper here is cited by it or cites it."
ARGUMENTS = {"search": "query", "expand": "paper_id"}  # the one of each tool
_ITEM = re.compile(r"^\s*(?:[-*\u2022]|\d+[.)])\s+")
_LISTED = re.compile(r"^\[([^\s,\[\]]+)\]", re.MULTILINE)


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
    """The papers in which a question is searched.

    Attributes:
        papers: by id, in the order of the corpus.
        cites, citing: id to the papers of the library that it cites, in its own order, and that cite it.
    """

    def __init__(self, papers: Iterable[Paper]) -> None:
        self.papers = {paper.id: paper for paper in papers}
        self.cites: dict[str, list[str]] = {}
        self.citing: dict[str, list[str]] = {paper_id: [] for paper_id in self.papers}
        for paper in self.papers.values():
            references = dict.fromkeys(paper.references)
            self.cites[paper.id] = [one for one in references if one in self.papers and one != paper.id]
            for one in self.cites[paper.id]:
                self.citing[one].append(paper.id)

    @cached_property
    def documents(self) -> list[Document]:
        """The indexed text of a paper: title and abstract, and neither authors nor references."""
        return [Document(paper.id, paper.title, paper.abstract) for paper in self.papers.values()]

    def around(self, paper_id: str) -> list[str]:
        """Return the papers that a paper cites and then the papers that cite it; one that does both comes twice."""
        return self.cites[paper_id] + self.citing[paper_id]


def lines(papers: Iterable[Paper], known: dict[str, None], limit: TokenLimit, max_tokens: int) -> str:
    """Write papers, each in at most `max_tokens` tokens: the `known` ones briefly, and the others become so."""
    written = []
    for paper in papers:
        line = f"[{paper.id}] {' '.join(paper.title.split())}"
        if paper.id in known:
            line += " (seen)"
        else:
            year = "" if paper.year is None else str(paper.year)
            source = ", ".join(filter(None, (cited_as(paper.authors), year)))
            line = f"{line}{f' ({source})' if source else ''}: {' '.join(paper.abstract.split())}".rstrip(": ")
        written.append(limit.cut(line, max_tokens))
        known[paper.id] = None
    return "\n".join(written)


def cited_as(authors: Sequence[str]) -> str:
    """Return the short name of a paper of these authors: the last name of the first, and whether there are others."""
    people = " ".join(authors[0].split()).rpartition(" ")[2] if authors else ""
    return people + (" et al." if len(authors) > 1 else "")


def citations(library: Library, paper_id: str, page: int, size: int, write: Callable[[Sequence[str]], str]) -> str:
    """Write a page of the papers around a paper, the ones that it cites first; after the last page they begin again."""
    around, cited = library.around(paper_id), len(library.cites[paper_id])
    if not around:
        return NO_CITATIONS
    start = page * size % (-(-len(around) // size) * size)
    stop = start + size
    groups = {"cites": around[start : min(stop, cited)], "is cited by": around[max(start, cited) : stop]}
    blocks = [f"{paper_id} {verb}:\n{write(papers)}" for verb, papers in groups.items() if papers]
    if stop < len(around):
        blocks.append(f"{len(around) - stop} more: expand {paper_id} again.")
    return "\n".join(blocks)


def listed(text: str) -> list[str]:
    """Return the ids of the papers whose lines a text holds. A line may be cut short, but not within the id."""
    return _LISTED.findall(text)


def clean_id(text: str) -> str:
    """Return the id that a policy means: it may have copied the brackets, quoted it, or made it an item of a list."""
    return _ITEM.sub("", text).strip().strip("[]'\"\u201c\u201d`*. ")
