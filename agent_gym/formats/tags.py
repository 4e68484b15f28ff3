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
        stop: what ends a turn; None for the closing tags.
    """

    in_templates = False

    def __init__(self, arguments: Mapping[str, str], stop: tuple[str, ...] | None = None) -> None:
        self.arguments = dict(arguments)
        self.stop = tuple(f"</{name}>" for name in self.arguments) if stop is None else stop
        names = "|".join(re.escape(name) for name in self.arguments)
        self._block = re.compile(rf"<({names})>(.*?)(</\1>|\Z)", re.DOTALL)

    def parse(self, text: str) -> list[ToolCall]:
        return [
            ToolCall(name, {self.arguments[name]: content.strip()})
            if closed
            else ToolCall(name, error=f"<{name}> is not closed by </{name}>")
            for name, content, closed in self._block.findall(text)
        ]

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"<{name}>{arguments[self.arguments[name]]}</{name}>"

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        known = [tool["function"] for tool in tools if tool["function"]["name"] in self.arguments]
        shown = {argument: argument for argument in self.arguments.values()}
        lines = [f"{self.render(one['name'], shown)}: {one['description']}" for one in known]
        return "You may call a tool by writing one of these tags:\n" + "\n".join(lines)
