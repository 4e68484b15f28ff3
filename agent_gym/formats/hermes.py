"""Tool calls as JSON between `<tool_call>` tags, the format of Hermes, Qwen2.5 and Qwen3."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gym.tools import ToolCall, ToolSchema

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MAX_DEPTH = 30  # of an argument
_NOT_JSON = (ValueError, TypeError)  # TypeError: text that has no UTF-8


class HermesParser:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5 and Qwen3."""

    stop: tuple[str, ...] = ()
    in_templates = True

    def __init__(self) -> None:
        # Three times as fast as Python's reader; not imported above, since many commands parse nothing.
        from pydantic_core import from_json

        self._from_json = from_json

    def parse(self, text: str) -> list[ToolCall]:
        calls: list[ToolCall] = []
        closed = text.split(_CLOSE)
        rest = closed.pop()
        for part in closed:
            _, opened, body = part.partition(_OPEN)
            if opened:
                calls.append(self._parse_body(body))
        if _OPEN in rest:
            calls.append(ToolCall("", error=f"the tool call is not closed by {_CLOSE}"))
        return calls

    def _parse_body(self, body: str) -> ToolCall:
        try:
            call = self._from_json(body, allow_inf_nan=False)
        except _NOT_JSON:
            return ToolCall("", error=f"the tool call is not valid JSON: {_problem(body)}")
        if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
            return ToolCall("", error='a tool call is a JSON object with "name" and "arguments"')
        arguments = call.get("arguments", {})
        if not isinstance(arguments, dict):
            try:
                arguments = self._from_json(arguments, allow_inf_nan=False)  # some models quote them once more
            except _NOT_JSON:
                arguments = None
            if not isinstance(arguments, dict):
                return ToolCall(name, error='"arguments" must be a JSON object')
        for value in arguments.values():
            if not isinstance(value, str) and (problem := _unfit(value)):
                return ToolCall(name, error=f"the tool call is not valid JSON: {problem}")
        return ToolCall(name, arguments)

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
        return f"<tool_call>\n{body}\n</tool_call>"

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        listing = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        example = '<tool_call>\n{"name": <tool name>, "arguments": <arguments as a JSON object>}\n</tool_call>'
        return f"You may call these tools:\n{listing}\n\nWrite each call as:\n{example}"


def _unfit(value: Any) -> str | None:
    """Name what would break a file or pipe later: the reader takes infinite numbers and nesting too deep for pickle."""
    level = [value]
    for _ in range(_MAX_DEPTH + 1):  # the last one for what stands in the innermost brackets
        if any(isinstance(node, float) and math.isinf(node) for node in level):
            return "a number is too large"
        nodes = [node for node in level if isinstance(node, dict | list)]
        level = [child for node in nodes for child in (node.values() if isinstance(node, dict) else node)]
        if not level:
            return None
    return f"nested more than {_MAX_DEPTH} deep"


def _problem(text: str, limit: int = 80) -> str:
    """Explain why a text is no JSON, in the words of Python's reader, which models and people know better."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a JSON number")

    try:
        json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # RecursionError: ten thousand nested brackets
        problem = str(error) or type(error).__name__
        return problem if len(problem) <= limit else problem[:limit] + "..."
    # Python takes both of these, and the reader above neither.
    return "nested too deeply" if text.count("[") + text.count("{") > _MAX_DEPTH else "half of a surrogate pair"
