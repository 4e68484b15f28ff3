"""The tools of a search environment. All calls of one turn are one batched search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent_gym.retrieval import Document
from agent_gym.tools import TextTool, ToolResult, same_text

Find = Callable[[Sequence[str], int], list[list[Document]]]
"""Queries and k to documents per query."""
NOTHING = "No results."
_CANDIDATES = 10  # a paragraph that a search for its own title does not put among the first ten has another title


class Search(TextTool):
    """`search(query)`: the best paragraphs for a query.

    Args:
        find: the search engine of the episode.
        write: writes paragraphs as text.
        top_k: how many there are at most.
    """

    def __init__(self, find: Find, write: Callable[[Sequence[Document]], str], top_k: int) -> None:
        """Describe it as the policy sees it."""
        super().__init__("search", "Search an encyclopedia for paragraphs.", "query", "what to search for")
        self._find, self._write, self._top_k = find, write, top_k

    def answer(self, texts: Sequence[str]) -> list[ToolResult]:
        """Search for all queries at once."""
        return [ToolResult(self._write(found) or NOTHING) for found in self._find(texts, self._top_k)]


class Lookup(TextTool):
    """`lookup(title)`: the paragraph with exactly this title, whatever its case.

    Args:
        find: the search engine of the episode.
        write: writes paragraphs as text.
    """

    def __init__(self, find: Find, write: Callable[[Sequence[Document]], str]) -> None:
        """Describe it as the policy sees it."""
        super().__init__("lookup", "Read the paragraph with this title.", "title", "the exact title")
        self._find, self._write = find, write

    def answer(self, texts: Sequence[str]) -> list[ToolResult]:
        """Search for the titles and keep what has them."""
        return [self._pick(title, found) for title, found in zip(texts, self._find(texts, _CANDIDATES), strict=True)]

    def _pick(self, title: str, found: Sequence[Document]) -> ToolResult:
        exact = [document for document in found if same_text(document.title) == same_text(title)]
        if not exact:
            return ToolResult(f"Error: no paragraph has the title {title[:80]!r}", error=True)
        return ToolResult(self._write(exact[:1]))
