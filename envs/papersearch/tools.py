"""The tools of paper search: a search engine, and the citations of a paper that it found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent_gym.tools import TextTool, ToolResult

NOTHING = "No results."
ARGUMENTS = {"search": "query", "expand": "paper_id"}
"""The one argument of each tool."""


class Search(TextTool):
    """`search(query)`: the best papers for a query. All searches of one turn are one batch.

    Args:
        search: answers queries with listings, in order; empty where nothing was found.
    """

    def __init__(self, search: Callable[[Sequence[str]], list[str]]) -> None:
        """Describe it as the policy sees it."""
        super().__init__("search", "Search titles and abstracts of papers.", ARGUMENTS["search"], "what to search for")
        self._search = search

    def answer(self, texts: Sequence[str]) -> list[ToolResult]:
        """Search for all queries at once."""
        return [ToolResult(found or NOTHING) for found in self._search(texts)]


class Expand(TextTool):
    """`expand(paper_id)`: the papers that a paper cites, and then those that cite it.

    Args:
        expand: answers an id with a listing, or None where the policy has seen no such paper.
    """

    def __init__(self, expand: Callable[[str], str | None]) -> None:
        """Describe it as the policy sees it."""
        about = "the id of a paper that was shown, without the brackets"
        super().__init__(
            "expand", "List the papers that a paper cites and those that cite it.", ARGUMENTS["expand"], about
        )
        self._expand = expand

    def answer(self, texts: Sequence[str]) -> list[ToolResult]:
        """Expand one paper after the other."""
        return [self._answer(text) for text in texts]

    def _answer(self, text: str) -> ToolResult:
        found = self._expand(text)
        if found is None:
            problem = f"Error: no paper {text[:40]!r} has been shown; search first, then expand an id from the results"
            return ToolResult(problem, error=True)
        return ToolResult(found)
