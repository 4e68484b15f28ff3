"""Tools: a name, a description, a JSON schema, and something to call. The calls of a policy are in formats/calls.py.

`tool` makes one from a typed function (function_tools.py). Pydantic is imported with the first tool, since it takes a
third of `import agent_gym`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_gym.formats.calls import Parser, ToolCall, ToolSchema, Turn
from agent_gym.formats.json_calls import FirstCallParser, HermesParser

if TYPE_CHECKING:
    from agent_gym.function_tools import FunctionTool as FunctionTool
    from agent_gym.function_tools import tool as tool

__all__ = [
    "FirstCallParser",
    "FunctionTool",
    "HermesParser",
    "Parser",
    "TextTool",
    "Tool",
    "ToolCall",
    "ToolResult",
    "ToolSchema",
    "Turn",
    "failed_calls",
    "same_text",
    "tool",
]


@dataclass(slots=True)
class ToolResult:
    """The result of one call."""

    text: str  # the text that the policy reads
    error: bool = False  # the call failed through the policy's fault (bad arguments, a division by zero)
    reward: float | None = None  # the tool's own judgement of this call, if any; the environment decides its weight
    metrics: dict[str, float] | None = None  # numbers for the log, if there are any


class Tool:
    """A callable with a schema. Subclass it for a tool with a batch form; `tool` makes one from a function.

    The policy reads the `description` and writes the `name`; `parameters` is a JSON schema of the arguments, an object.
    """

    def __init__(self, name: str, description: str, parameters: Mapping[str, Any]) -> None:
        self.name = name
        self.description = description
        self.parameters = dict(parameters)

    def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Check the arguments and run the tool.

        The policy's mistakes are a `ToolResult` with `error`. An exception means a broken tool: an `EnvFailure`.
        """
        raise TypeError(f"{type(self).__name__} has to define run(arguments)")

    def run_batch(self, batch: Sequence[Mapping[str, Any]]) -> list[ToolResult]:
        """Run several calls at once; override it where that is cheaper than one by one."""
        return [self.run(arguments) for arguments in batch]

    @property
    def schema(self) -> dict[str, Any]:
        """The OpenAI-style function schema that chat templates print."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class TextTool(Tool):
    """A tool whose only argument is a text, `argument`; `do` answers a text, or `do_all` all of one turn at once."""

    def __init__(
        self,
        name: str,
        description: str,
        argument: str,
        about: str,
        do: Callable[[str], ToolResult] | None = None,
        do_all: Callable[[Sequence[str]], list[ToolResult]] | None = None,
    ) -> None:
        properties = {argument: {"type": "string", "description": about}}
        super().__init__(name, description, {"type": "object", "properties": properties, "required": [argument]})
        self.argument, self._do, self._do_all = argument, do, do_all

    def run_batch(self, batch: Sequence[Mapping[str, Any]]) -> list[ToolResult]:
        fits = [list(one) == [self.argument] and isinstance(one[self.argument], str) for one in batch]
        good = [one[self.argument] for one, fit in zip(batch, fits, strict=True) if fit]
        if self._do_all is not None:
            answers = iter(self._do_all(good) if good else ())
        else:
            assert self._do is not None
            answers = map(self._do, good)
        problem = f"Error: {self.name} takes one argument, {self.argument}, a text"
        return [next(answers) if fit else ToolResult(problem, error=True) for fit in fits]

    def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        return self.run_batch([arguments])[0]


def failed_calls(turns: Iterable[tuple[Sequence[Mapping[str, Any]], str | None]]) -> str | None:
    """Describe the failure, in a line, if more than half of an expert's tool calls failed: the tool is then broken.

    `turns` are `tool_calls` and `error` of each turn, as `info` and `Step` have them.
    """
    calls = [(call, error) for made, error in turns for call in made]
    failed = [(call["name"], error) for call, error in calls if call["error"]]
    if 2 * len(failed) <= len(calls):
        return None
    name, error = failed[0]
    return f"{len(failed)} of {len(calls)} tool calls of the expert failed; the first, of {name!r}: {error:.300}"


def same_text(text: str) -> str:
    """Return a query or title in the form that is compared: case and spaces do not matter."""
    return " ".join(text.casefold().split())


def __getattr__(name: str) -> Any:
    if name not in ("FunctionTool", "tool"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agent_gym import function_tools  # late, since a tool of a function is a `Tool`

    return getattr(function_tools, name)
