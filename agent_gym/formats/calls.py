"""A tool call, the protocol of its wire formats, and the reading of JSON in a policy's text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

from agent_gym.errors import clipped, quoted
from agent_gym.messages import copied

ToolSchema = Mapping[str, Any]
"""An OpenAI-style function schema: {"type": "function", "function": {"name", "description", "parameters"}}."""

MAX_DEPTH = 30
"""How deep an argument may nest."""
NOT_JSON = (ValueError, TypeError)  # TypeError: text that has no UTF-8


@dataclass(slots=True)
class ToolCall:
    """One call as the policy wrote it and, once it ran, its result."""

    name: str  # of the tool
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None  # why it cannot run, if it cannot
    answer: str = ""  # the policy's view of it; an environment may shorten or extend the tool's text
    failed: bool = False  # whether it failed, through the policy's fault
    seconds: float = 0.0  # how long it took; calls of one turn run together, and each is charged its share
    offered: bool = False  # whether the policy was shown the tool, where that differs from turn to turn
    id: str | None = None  # as the policy wrote it, in families whose answers repeat it (Kimi, Mistral, Command)

    @property
    def record(self) -> dict[str, Any]:
        """The entry of the call in `info["tool_calls"]` and in trajectories, with a copy of the arguments."""
        arguments = copied(self.arguments)
        offered = {"offered": True} if self.offered else {}
        return {"name": self.name, "arguments": arguments, "error": self.failed, "seconds": self.seconds, **offered}


class Turn(NamedTuple):
    """One turn of a policy: the words around its calls, the calls in their order, and its thoughts."""

    content: str
    calls: list[ToolCall]
    thought: str


class Parser(Protocol):
    """A wire format of tool calls: `HermesParser` and the other families of formats/families.py, tags, ReAct, code.

    A broken call is not dropped: it becomes a `ToolCall` with an `error`, in its place, and the environment answers it.
    """

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


class Keys(NamedTuple):
    """The words of a family for the parts of a JSON call."""

    name: str = "name"
    arguments: str = "arguments"
    id: str | None = None  # of the call, in families that have one
    optional: tuple[str, ...] = ()  # other keys that a call may have
    also: tuple[str, ...] = ()  # other words for the arguments that are read
    id_first: bool = False  # whether the id is written in front

    @property
    def form(self) -> str:
        return f'a tool call is a JSON object with "{self.name}" and "{self.arguments}"'


@cache
def json_reader() -> Callable[..., Any]:
    """Return pydantic's reader: three times as fast as Python's, and imported late, since many commands parse nothing.

    It raises one of `NOT_JSON`, also for NaN, halves of surrogate pairs, huge integers and deep nesting.
    """
    from pydantic_core import from_json

    return from_json


def read_json(text: str) -> Any:
    """Read JSON text.

    Raises:
        ValueError: with the reason in one line.
    """
    try:
        value = json_reader()(text, allow_inf_nan=False)
    except NOT_JSON:
        raise ValueError(problem(text)) from None
    if reason := unfit(value):
        raise ValueError(reason)
    return value


def write_json(value: Any) -> str:
    """Write a value as chat templates do, with characters of other scripts left as they are."""
    return json.dumps(value, ensure_ascii=False)


_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


def skip_space(text: str, start: int) -> int:
    """Return the index of the first character from `start` on that is not white space."""
    match = _SPACE.match(text, start)
    return match.end() if match else start


def json_end(text: str, start: int) -> int:
    """Return the index where the JSON value at `start` ends.

    Raises:
        ValueError: if there is none; `RecursionError` is among the reasons.
    """
    try:
        return _DECODER.raw_decode(text, start)[1]
    except RecursionError:
        raise ValueError("nested too deeply") from None


def named_call(value: Any, keys: Keys) -> ToolCall:
    """Make a call of a decoded JSON value; a value of another form is a call with an error."""
    outer: Mapping[str, Any] = {}
    if isinstance(value, dict) and isinstance(inner := value.get("function"), dict) and keys.name not in value:
        outer, value = value, inner  # OpenAI's form: {"id", "type": "function", "function": {...}}
    if not isinstance(value, dict) or not isinstance(name := value.get(keys.name), str) or not name:
        return ToolCall("", error=keys.form)
    written = next((key for key in (keys.arguments, *keys.also) if key in value), None)
    known = (keys.name, written, keys.id, *keys.optional)
    if other := next((key for key in value if key not in known), None):
        if written is None:
            return ToolCall(name, error=f'the key of the arguments is "{keys.arguments}", not {quoted(other)}')
        return ToolCall(name, error=f"{keys.form}, and no {quoted(other)}")
    number = {**outer, **value}.get(keys.id or "id")
    call = with_arguments(name, {} if written is None else value[written], written or keys.arguments)
    call.id = number if isinstance(number, str) else None if number is None else str(number)
    return call


def with_arguments(name: str, arguments: Any, key: str = "arguments") -> ToolCall:
    """Make a call of a name and decoded arguments, which some models quote once more as JSON text."""
    if not isinstance(arguments, dict):
        try:
            arguments = json_reader()(arguments, allow_inf_nan=False)
        except NOT_JSON:
            arguments = None
        if not isinstance(arguments, dict):
            return ToolCall(name, error=f'"{key}" must be a JSON object')
    for value in arguments.values():
        if not isinstance(value, str) and (reason := unfit(value)):
            return ToolCall(name, error=f"the tool call is not valid JSON: {reason}")
    return ToolCall(name, arguments)


def unfit(value: Any) -> str | None:
    """Name a value that would break a file or pipe later: infinite numbers, and nesting too deep for pickle."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):  # the last one for the innermost brackets
        if any(isinstance(node, float) and math.isinf(node) for node in level):
            return "a number is too large"
        nodes = [node for node in level if isinstance(node, dict | list)]
        level = [child for node in nodes for child in (node.values() if isinstance(node, dict) else node)]
        if not level:
            return None
    return f"nested more than {MAX_DEPTH} deep"


def problem(text: str, limit: int = 80) -> str:
    """Explain why a text is not JSON, in the words of Python's reader, which models and people know better."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a JSON number")

    try:
        json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # RecursionError: ten thousand nested brackets
        return clipped(str(error) or type(error).__name__, limit)
    # Python takes both of these, and the reader above neither.
    return "nested too deeply" if text.count("[") + text.count("{") > MAX_DEPTH else "half of a surrogate pair"
