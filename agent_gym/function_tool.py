"""Tools made from typed functions.

The schema is read from the signature and the `Args:` section of the docstring, and pydantic checks the arguments a
policy wrote against it, so that a wrong type is an observation the policy can read ("count: Input should be a valid
integer") and never an exception.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # typing's own TypedDict is refused by pydantic before 3.12

from agent_gym.errors import ConfigError
from agent_gym.tools import Tool, ToolResult


class FunctionTool(Tool):
    """A tool made from a typed function. See `agent_gym.tools.tool`."""

    def __init__(self, function: Callable[..., str | ToolResult], name: str | None = None) -> None:
        """Read name, description and arguments from the function.

        Raises:
            ConfigError: see `agent_gym.tools.tool`.
        """
        summary, documented = _read_docstring(function)
        adapter = TypeAdapter(_argument_type(function, documented))
        super().__init__(name or function.__name__, summary, _plain_schema(adapter))
        self._function = function
        self._validate = adapter.validator.validate_python

    def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Check the arguments against the signature and call the function."""
        try:
            checked = self._validate(arguments)
        except (ValidationError, RecursionError) as error:
            return ToolResult(f"Error: invalid arguments for {self.name}: {_explain(error)}", error=True)
        result = self._function(**checked)
        return result if isinstance(result, ToolResult) else ToolResult(str(result))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the function, or where to find it if the tool stands under its name, as a decorator puts it there."""
        function, found = self._function, self._function
        with suppress(AttributeError, KeyError):
            found = attrgetter(function.__qualname__)(sys.modules[function.__module__])
        if isinstance(found, FunctionTool) and found._function is function:
            return {"place": (function.__module__, function.__qualname__), "name": self.name}
        return {"function": function, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read the function anew: what pydantic made of its arguments stays in its process."""
        function = state.get("function")
        if function is None:
            module, name = state["place"]
            function = attrgetter(name)(import_module(module))._function
        FunctionTool.__init__(self, function, state["name"])

    def __deepcopy__(self, memo: dict[int, Any]) -> FunctionTool:
        """Share it, since it never changes, unless it is a method: that of a copied object is another one."""
        if not inspect.ismethod(self._function):
            return self
        return FunctionTool(copy.deepcopy(self._function, memo), self.name)

    def __call__(self, *args: Any, **kwargs: Any) -> str | ToolResult:
        """Call the function as if it had not been wrapped."""
        return self._function(*args, **kwargs)


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
    """The arguments of a function as a `TypedDict`: pydantic checks one in a third of the time of a model.

    Its keys may be any words, too; a model keeps names such as `schema` and `_x` to itself.
    """
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


def _plain_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Pydantic's schema without its titles, which would only cost the policy tokens."""

    def strip(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: strip(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))}
        return [strip(item) for item in node] if isinstance(node, list) else node

    schema = strip(adapter.json_schema())
    schema.pop("additionalProperties", None)
    return {"type": "object", "properties": {}, "required": [], **schema}


def _explain(error: ValidationError | RecursionError, limit: int = 300) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    # Only place and reason: pydantic's own text repeats the input, which may be a megabyte of digits.
    found = error.errors(include_url=False, include_input=False, include_context=False)
    text = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in found)
    return text if len(text) <= limit else text[:limit] + "..."
