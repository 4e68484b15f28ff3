"""Tool calls as plain tags, the format of Search-R1 and its like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gym.tools import ToolCall, ToolSchema


class TagParser:
    """Plain tags: `<search>who wrote it</search>` calls the tool `search` with the text as its one argument.

    Args:
        arguments: tool name (= tag name) to the name of its single argument.
    """

    stop: tuple[str, ...]
    in_templates = False

    def __init__(self, arguments: Mapping[str, str]) -> None:
        self.arguments = dict(arguments)
        self.stop = tuple(f"</{name}>" for name in self.arguments)
        names = "|".join(re.escape(name) for name in self.arguments)
        self._block = re.compile(rf"<({names})>(.*?)(</\1>|\Z)", re.DOTALL)

    def parse(self, text: str) -> list[ToolCall]:
        calls = []
        for block in self._block.finditer(text):
            name = block[1]
            if not block[3]:
                calls.append(ToolCall(name, error=f"<{name}> is not closed by </{name}>"))
            else:
                calls.append(ToolCall(name, {self.arguments[name]: block[2].strip()}))
        return calls

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"<{name}>{arguments[self.arguments[name]]}</{name}>"

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        lines = []
        for function in (tool["function"] for tool in tools):
            name = function["name"]
            if name in self.arguments:
                lines.append(f"<{name}>{self.arguments[name]}</{name}>: {function['description']}")
        return "You may call a tool by writing one of these tags:\n" + "\n".join(lines)
