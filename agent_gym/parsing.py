"""Reading tool calls out of what the policy wrote.

One small class per wire format (ReAct's is in react.py). Each can `parse` a turn into calls, `render` a call back to
text (the expert and the tests write with it) and state its `instructions` for models whose chat template
does not show tools. Broken calls are not dropped: they come back as a `ToolCall` with an `error`, in order, and the
environment answers them, because a policy that is not told about its mistake cannot learn from it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

ToolSchema = Mapping[str, Any]
"""An OpenAI-style function schema: {"type": "function", "function": {"name", "description", "parameters"}}."""


@dataclass(slots=True)
class ToolCall:
    """One call as the policy wrote it; `error` says why it cannot run, if it cannot."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


class Parser(Protocol):
    """A wire format for tool calls."""

    stop: tuple[str, ...]
    """Strings after which generation may stop because a turn is complete; usually empty."""
    in_templates: bool
    """Whether a chat template that is given tools asks for this format; else the system prompt has to."""

    def parse(self, text: str) -> list[ToolCall]:
        """Return the calls of one turn in order; an empty list means that the turn calls nothing."""

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Write a call as the policy would."""

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        """Describe tools and format for a system prompt."""


class HermesParser:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5 and Qwen3."""

    stop: tuple[str, ...] = ()
    in_templates = True
    _open, _close = "<tool_call>", "</tool_call>"

    def parse(self, text: str) -> list[ToolCall]:
        """Return the calls of one turn in order, broken ones with their error."""
        calls = []
        start = text.find(self._open)
        while start >= 0:
            start += len(self._open)
            stop = text.find(self._close, start)
            if stop < 0:
                calls.append(ToolCall("", error=f"the tool call is not closed by {self._close}"))
                break
            calls.append(self._parse_body(text[start:stop]))
            start = text.find(self._open, stop)
        return calls

    def _parse_body(self, body: str) -> ToolCall:
        try:
            call = _read_json(body)
        except (ValueError, RecursionError) as error:  # RecursionError: ten thousand nested brackets
            return ToolCall("", error=f"the tool call is not valid JSON: {_brief(error)}")
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return ToolCall("", error='a tool call is a JSON object with "name" and "arguments"')
        arguments = call.get("arguments", {})
        if isinstance(arguments, str):  # some models quote the arguments once more
            try:
                arguments = _read_json(arguments)
            except (ValueError, RecursionError):
                arguments = None
        if not isinstance(arguments, dict):
            return ToolCall(call["name"], error='"arguments" must be a JSON object')
        return ToolCall(call["name"], arguments)

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Write a call with the line breaks of Qwen's chat template."""
        body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
        return f"<tool_call>\n{body}\n</tool_call>"

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        """Describe tools and format for a system prompt."""
        listing = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        example = '<tool_call>\n{"name": <tool name>, "arguments": <arguments as a JSON object>}\n</tool_call>'
        return f"You may call these tools:\n{listing}\n\nWrite each call as:\n{example}"


class TagParser:
    """Plain tags: `<search>who wrote it</search>` calls the tool `search` with the text as its one argument.

    Args:
        arguments: tool name (= tag name) to the name of its single argument.
    """

    stop: tuple[str, ...]
    in_templates = False

    def __init__(self, arguments: Mapping[str, str]) -> None:
        """Compile one pattern for all tags; generation may stop at any closing tag."""
        self.arguments = dict(arguments)
        self.stop = tuple(f"</{name}>" for name in self.arguments)
        names = "|".join(re.escape(name) for name in self.arguments)
        self._block = re.compile(rf"<({names})>(.*?)(</\1>|\Z)", re.DOTALL)

    def parse(self, text: str) -> list[ToolCall]:
        """Return the calls of one turn in order, broken ones with their error."""
        calls = []
        for block in self._block.finditer(text):
            name = block[1]
            if not block[3]:
                calls.append(ToolCall(name, error=f"<{name}> is not closed by </{name}>"))
            else:
                calls.append(ToolCall(name, {self.arguments[name]: block[2].strip()}))
        return calls

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Write a call as the policy would."""
        return f"<{name}>{arguments[self.arguments[name]]}</{name}>"

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        """Describe format and tools for a system prompt; a tool that has no tag cannot be called and is left out."""
        lines = []
        for function in (tool["function"] for tool in tools):
            name = function["name"]
            if name in self.arguments:
                lines.append(f"<{name}>{self.arguments[name]}</{name}>: {function['description']}")
        return "You may call a tool by writing one of these tags:\n" + "\n".join(lines)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _read_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:20]} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_read_float)
_SPACE = " \t\n\r"  # what JSON counts as such
_MAX_DEPTH = 32


def _read_json(text: str) -> Any:
    """Read what a policy wrote as JSON, and only what can be written, copied and sent on as JSON again.

    Python's own reader takes NaN, numbers that overflow to infinity, halves of surrogate pairs, and nesting that is
    just short of its own recursion limit but not of pickle's; each of them would break a file or a pipe much later.
    """
    # `decode` does the same, but skips the space before and after with a regular expression each.
    value, stop = _DECODER.raw_decode(text, len(text) - len(text.lstrip(_SPACE)))
    if rest := text[stop:].lstrip(_SPACE):
        raise json.JSONDecodeError("Extra data", text, len(text) - len(rest))
    if text.count("{") + text.count("[") > _MAX_DEPTH and _deeper_than(_MAX_DEPTH, value):
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair") from None
    return value


def _deeper_than(limit: int, value: Any) -> bool:
    level = [value]
    for _ in range(limit + 1):
        nodes = [node for node in level if isinstance(node, dict | list)]
        level = [child for node in nodes for child in (node.values() if isinstance(node, dict) else node)]
    return bool(level)


def _brief(error: Exception, limit: int = 80) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= limit else text[:limit] + "..."
