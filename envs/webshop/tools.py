"""How a policy acts: two tools, or WebShop's own `search[...]` and `click[...]`; both are always read.

A turn is one action, as in the original. What a policy thinks may stand in front of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.formats import ToolCall, ToolSchema
from agent_gym.formats.hermes import HermesParser
from agent_gym.formats.react import ReActParser
from agent_gym.tools import TextTool, ToolResult

ARGUMENTS = {"search": "keywords", "click": "element"}
"""The tools, and the one argument of each."""
FORMS = ("tool", "text")
_TAG = re.compile(r"</?(?:action|answer)>")

_RULES = (
    "You are shopping. Find the product that fits the instruction best in all that it asks for, choose the options "
    "that it asks for on the product's page, and buy it by Buy Now, which ends the task. "
)
PROMPTS = {
    "tool": _RULES + "Call exactly one tool per turn: search for keywords, or click on a button, product or option.",
    "text": _RULES + "Take exactly one action per turn: search[keywords], or click[a button, product or option].",
}
"""Form to system prompt."""


class ActionParser:
    """Reads both forms, and writes one of them, "tool" or "text"; `ConfigError` for another form."""

    def __init__(self, form: str) -> None:
        if form not in FORMS:
            raise ConfigError(f"commands is {form!r}; allowed: {', '.join(FORMS)}")
        self._as_tool = form == "tool"
        self.in_templates = self._as_tool
        self._calls, self._actions = HermesParser(), ReActParser(ARGUMENTS, finish=None)
        self.stop: tuple[str, ...] = () if self._as_tool else self._actions.stop

    def parse(self, text: str) -> list[ToolCall]:
        """Return the calls of a turn in order, broken ones with their error; without calls, its actions."""
        # Other trainers have policies put actions into tags, where they would not begin a line.
        return self._calls.parse(text) or self._actions.parse(_TAG.sub("\n", text))

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._as_tool:
            return self._calls.render(name, arguments)
        return f"{name}[{arguments[ARGUMENTS[name]]}]"

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        return self._calls.instructions(tools) if self._as_tool else ""


class Act(TextTool):
    """The tool "search" or "click"; `act` returns the page that it leads to and whether there was something to do."""

    def __init__(self, name: str, act: Callable[[str, str], tuple[str, bool]]) -> None:
        described = {
            "search": ("Search the shop.", "what to search for"),
            "click": ("Click on something on the page.", "the text of a button, a product's id, or an option's value"),
        }
        summary, about = described[name]
        super().__init__(name, summary, ARGUMENTS[name], about)
        self._act = act

    def answer(self, texts: Sequence[str]) -> list[ToolResult]:
        results = [self._act(self.name, text) for text in texts]
        return [ToolResult(page, error=not possible) for page, possible in results]
