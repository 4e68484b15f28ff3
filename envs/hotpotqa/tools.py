"""The tools of a search environment. All calls of one turn are one batched search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_gym.retrieval import Document
from agent_gym.tools import Tool, ToolResult

Find = Callable[[Sequence[str], int], list[list[Document]]]
"""Queries and k to documents per query."""
NOTHING = "No results."
_CANDIDATES = 10  # a paragraph that a search for its own title does not put among the first ten has another title


class TextTool(Tool):
    """A tool with one text as its only argument.

    Args:
        name: its name.
        description: what it does.
        argument: the name of the argument.
        about: what the argument is.
    """

    def __init__(self, name: str, description: str, argument: str, about: str) -> None:
        """Make the schema."""
        properties = {argument: {"type": "string", "description": about}}
        super().__init__(name, description, {"type": "object", "properties": properties, "required": [argument]})
        self.argument = argument

    def answer(self, texts: Sequence[str]) -> list[ToolResult]:
        """Answer all calls of a turn that are well-formed."""
        raise TypeError(f"{type(self).__name__} has to define answer(texts)")

    def run_batch(self, batch: Sequence[Mapping[str, Any]]) -> list[ToolResult]:
        """Answer calls, broken ones with what is wrong with them."""
        good = [arguments[self.argument] for arguments in batch if self._fits(arguments)]
        answers = iter(self.answer(good) if good else [])
        problem = f"Error: {self.name} takes one argument, {self.argument}, a text"
        return [next(answers) if self._fits(arguments) else ToolResult(problem, error=True) for arguments in batch]

    def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Answer one call."""
        return self.run_batch([arguments])[0]

    def _fits(self, arguments: Mapping[str, Any]) -> bool:
        return set(arguments) == {self.argument} and isinstance(arguments[self.argument], str)


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


def same_text(text: str) -> str:
    """Return what queries and titles are compared by: case and spaces do not matter."""
    return " ".join(text.casefold().split())
