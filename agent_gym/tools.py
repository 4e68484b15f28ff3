"""Tools: a name, a description, a JSON schema, and something to call. The calls of a policy are in formats/calls.py.

`tool` makes one from a typed function. The schema is read from the signature and the `Args:` section of the docstring.
Pydantic checks the arguments of a call, so that a wrong type is an observation ("count: Input should be a valid
integer") and never an exception. It is imported with the first tool, since it takes a third of `import agent_gym`.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict  # typing's own TypedDict is refused by pydantic before 3.12

from agent_gym.errors import ConfigError
from agent_gym.formats.calls import Parser, ToolCall, ToolSchema, Turn
from agent_gym.formats.json_calls import FirstCallParser, HermesParser

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

    text: str  # what the policy reads
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


class FunctionTool(Tool):
    """A tool made from a typed function; see `tool`."""

    def __init__(self, function: Callable[..., str | ToolResult]) -> None:
        from pydantic import TypeAdapter, ValidationError

        summary, documented = _read_docstring(function)
        adapter = TypeAdapter(_argument_type(function, documented))
        super().__init__(function.__name__, summary, _plain_schema(adapter))
        self._function = function
        self._validate = adapter.validator.validate_python
        self._invalid = (ValidationError, RecursionError)

    def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            checked = self._validate(arguments)
        except self._invalid as error:
            return ToolResult(f"Error: invalid arguments for {self.name}: {_explain(error)}", error=True)
        result = self._function(**checked)
        return result if isinstance(result, ToolResult) else ToolResult(str(result))

    def __getstate__(self) -> dict[str, Any]:
        # The function, or where to find it if the tool stands under its name, as a decorator puts it there.
        function, found = self._function, self._function
        with suppress(AttributeError, KeyError):
            found = attrgetter(function.__qualname__)(sys.modules[function.__module__])
        if isinstance(found, FunctionTool) and found._function is function:
            return {"place": (function.__module__, function.__qualname__)}
        return {"function": function}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Read anew: what pydantic made of its arguments stays in its process.
        function = state.get("function")
        if function is None:
            module, name = state["place"]
            function = attrgetter(name)(import_module(module))._function
        FunctionTool.__init__(self, function)

    def __deepcopy__(self, memo: dict[int, Any]) -> FunctionTool:
        # Shared, since it never changes, unless it is a method: that of a copied object is another one.
        if not inspect.ismethod(self._function):
            return self
        return type(self)(copy.deepcopy(self._function, memo))

    def __call__(self, *args: Any, **kwargs: Any) -> str | ToolResult:
        return self._function(*args, **kwargs)


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


def tool(function: Callable[..., str | ToolResult]) -> FunctionTool:
    """Make a tool from a typed function with a Google-style docstring; usable as a decorator.

    Raises:
        ConfigError: for an async function or one without a docstring, or an argument without type hint or name.
    """
    return FunctionTool(function)


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into its summary paragraph and the descriptions of its arguments."""
    name = getattr(function, "__name__", repr(function))
    doc = inspect.getdoc(function)
    if not doc:
        raise ConfigError(f"tool {name!r} has no docstring: its first paragraph is what the policy reads")
    head, _, rest = doc.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", rest)[0]
    entries = re.findall(r"^ {4}(\w+)[^:\n]*: *(.*(?:\n {8,}.*)*)", section, re.MULTILINE)
    arguments = {key: " ".join(text.split()) for key, text in entries}
    return " ".join(head.strip().split("\n\n")[0].split()), arguments


def _argument_type(function: Callable[..., Any], documented: Mapping[str, str]) -> Any:
    # A `TypedDict`, whose keys may be any words: a model of pydantic keeps names such as `schema` and `_x` to itself.
    from pydantic import ConfigDict, Field, with_config

    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"tool {function.__name__!r} is async, and nothing awaits it: make it a plain function")
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"argument {name!r} of tool {function.__name__!r} cannot be passed by name")
        if parameter.annotation is inspect.Parameter.empty:
            raise ConfigError(f"argument {name!r} of tool {function.__name__!r} has no type hint")
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[name] = Annotated[parameter.annotation, Field(default, description=documented.get(name))]
        if default is not ...:
            fields[name] = NotRequired[fields[name]]
    arguments = TypedDict(function.__name__, fields)  # type: ignore[misc]
    # Unknown arguments are refused: a policy that invents one believes that it does something.
    return with_config(ConfigDict(extra="forbid"))(arguments)


def _plain_schema(adapter: Any) -> dict[str, Any]:
    def strip(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: strip(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))}
        return [strip(item) for item in node] if isinstance(node, list) else node

    schema = strip(adapter.json_schema())  # without titles, which would only cost the policy tokens
    schema.pop("additionalProperties", None)
    return {"type": "object", "properties": {}, "required": [], **schema}


def _explain(error: Any, limit: int = 300) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    # Only place and reason: pydantic's own text repeats the input, which may be a megabyte of digits.
    found = error.errors(include_url=False, include_input=False, include_context=False)
    text = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in found)
    return text if len(text) <= limit else text[:limit] + "..."
