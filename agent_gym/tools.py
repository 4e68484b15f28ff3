"""Tools: a name, a description, a JSON schema, and something to call.

`tool` makes one from a typed function (function_tool.py). Pydantic is imported when that happens for the first time,
since it takes a third of what importing agent_gym takes, and most commands make no tool.

A tool answers with a string, or with a `ToolResult` when it has more to say: a failure, a process reward for this
one call, numbers for the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_gym.function_tool import FunctionTool


@dataclass(slots=True)
class ToolResult:
    """What one call gave.

    Attributes:
        text: what the policy reads.
        error: True when the call failed through the policy's fault (bad arguments, a division by zero).
        reward: the tool's own judgement of this call, if it has one; the environment decides its weight.
        metrics: numbers for the log, if there are any.
    """

    text: str
    error: bool = False
    reward: float | None = None
    metrics: dict[str, float] | None = None


class Tool:
    """A callable with a schema.

    Subclass it for tools with state or with a batch form, or make one from a function with `tool`.

    Args:
        name: what the policy writes to call it.
        description: what the policy is told it does.
        parameters: JSON schema of the arguments, an object.
    """

    def __init__(self, name: str, description: str, parameters: Mapping[str, Any]) -> None:
        """Store what the policy is shown."""
        self.name = name
        self.description = description
        self.parameters = dict(parameters)

    def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Check the arguments and run the tool.

        The policy's mistakes come back as a `ToolResult` with `error`. An exception from here is a broken tool, and
        the environment reports it as `EnvFailure`.
        """
        raise TypeError(f"{type(self).__name__} has to define run(arguments)")

    def run_batch(self, batch: Sequence[Mapping[str, Any]]) -> list[ToolResult]:
        """Run several calls at once; override it where that is cheaper than one by one."""
        return [self.run(batch[0])] if len(batch) == 1 else list(map(self.run, batch))

    @property
    def schema(self) -> dict[str, Any]:
        """The OpenAI-style function schema that chat templates print."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class TextTool(Tool):
    """A tool with one text as its only argument; all calls of one turn are one batch.

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


def failed_calls(turns: Iterable[tuple[Sequence[Mapping[str, Any]], str | None]]) -> str | None:
    """Say so if more than half of an expert's tool calls failed: the tool is then broken, and not the expert's idea.

    Args:
        turns: `tool_calls` and `error` of each turn, as `info` and `Step` have them.

    Returns:
        One line with the first failed tool and its error, or None.
    """
    calls = [(call, error) for made, error in turns for call in made]
    failed = [(call["name"], error) for call, error in calls if call["error"]]
    if 2 * len(failed) <= len(calls):
        return None
    name, error = failed[0]
    return f"{len(failed)} of {len(calls)} tool calls of the expert failed; the first, of {name!r}: {error:.300}"


def same_text(text: str) -> str:
    """Return what queries and titles are compared by: case and spaces do not matter."""
    return " ".join(text.casefold().split())


def tool(function: Callable[..., str | ToolResult]) -> FunctionTool:
    """Make a tool from a typed function with a Google-style docstring; usable as a decorator.

    Raises:
        ConfigError: if the function has no docstring, or an argument has no type hint or no name to pass it by.
    """
    from agent_gym.function_tool import FunctionTool

    return FunctionTool(function)
