"""The tools of a search environment, and what a policy reads of what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from agent_gym.search import Document
from agent_gym.search.base import TokenLimit
from agent_gym.tools import TextTool, ToolResult, same_text

Find = Callable[[Sequence[str], int], list[list[Document]]]
"""Queries and k to documents per query."""
Write = Callable[[Sequence[Document]], str]
NOTHING = "No results."
_CANDIDATES = 10  # a paragraph that a search for its own title does not put among the first ten has another title


class Search(TextTool):
    """`search(query)`: the best paragraphs for a query. All calls of one turn are one batched search."""

    def __init__(self, find: Find, write: Write, top_k: int) -> None:
        super().__init__("search", "Search an encyclopedia for paragraphs.", "query", "what to search for")
        self._find, self._write, self._top_k = find, write, top_k

    def answer(self, texts: Sequence[str]) -> list[ToolResult]:
        return [ToolResult(self._write(found) or NOTHING) for found in self._find(texts, self._top_k)]


class Lookup(TextTool):
    """`lookup(title)`: the paragraph with exactly this title, whatever its case."""

    def __init__(self, find: Find, write: Write) -> None:
        super().__init__("lookup", "Read the paragraph with this title.", "title", "the exact title")
        self._find, self._write = find, write

    def answer(self, texts: Sequence[str]) -> list[ToolResult]:
        results = []
        for title, found in zip(texts, self._find(texts, _CANDIDATES), strict=True):
            exact = [document for document in found if same_text(document.title) == same_text(title)]
            problem = f"Error: no paragraph has the title {title[:80]!r}"
            results.append(ToolResult(self._write(exact[:1]) if exact else problem, error=not exact))
        return results


def render(documents: Iterable[Document], limit: TokenLimit, max_tokens: int) -> str:
    """Write documents as numbered lines, `[1] Title: text`, each of at most `max_tokens` tokens."""
    lines = [f"[{n}] {_heading(d.title)}{' '.join(d.text.split())}" for n, d in enumerate(documents, 1)]
    return "\n".join(limit.cut(line, max_tokens) for line in lines)


def shown(text: str, title: str, sentence: str = "") -> bool:
    """Whether an observation shows a paragraph with this title, and in it this sentence."""
    begin, wanted = _heading(title), " ".join(sentence.split())
    lines = (line.partition("] ")[2] for line in text.split("\n"))
    return any(line.startswith(begin) and wanted in line for line in lines)


def _heading(title: str) -> str:
    title = " ".join(title.split())
    return f"{title}: " if title else ""
