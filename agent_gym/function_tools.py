"""Tools made of plain functions: `tool`, and `as_tools` for whatever an environment is given.

    def price(item: Annotated[str, "as the catalogue has it"], count: int = 1) -> dict:
        '''Tell the price of some items.'''

The name is the function's, the description the first paragraph of its docstring, and the schema its signature with the
descriptions that the docstring or `Annotated` says of each argument. Pydantic checks the arguments of a call, so that a
wrong type is an observation. So is an exception of the function: "Error: KeyError: 'pen'". `raise EnvFailure` says that
the world broke.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from typing import Any, overload

from agent_gym.argument_schemas import Arguments, read_arguments, title_of
from agent_gym.docstrings import read_docstring
from agent_gym.errors import ConfigError, EnvFailure, clipped, message_of, shown
from agent_gym.tool_results import MAX_RESULT_CHARS, as_text, checked_limit, cut_text, error_text, note_raised
from agent_gym.tools import Tool, ToolResult

Function = Callable[..., Any]
_ROOM = 1 << 26  # bytes
_EMPTY = " ".join((object.__doc__ or "").split())


class FunctionTool(Tool):
    """A tool made from a typed function; see `tool`."""

    def __init__(self, function: Function, *, max_chars: int = MAX_RESULT_CHARS) -> None:
        from pydantic import ValidationError

        name = _checked_name(function)
        summary = _docstring_of(function, name)
        parameters = _parameters(function, name)
        described = read_docstring(summary, parameters)
        if not described.summary:
            cure = "begin its docstring with one"
            raise ConfigError(f"tool {name!r} has no description in front of its arguments; {cure}")
        self._arguments: Arguments = read_arguments(function, name, parameters, described.arguments)
        super().__init__(name, described.summary, self._arguments.schema)
        self._function, self.max_chars = function, checked_limit(max_chars)
        self._invalid = (ValidationError, RecursionError)

    @property
    def place(self) -> str:
        """Where the function is defined, as "file:line"; "" if it is not written in Python."""
        code = getattr(inspect.unwrap(_plain(self._function)), "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else ""

    def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Check the arguments and call the function. An exception of it is a `ToolResult` with `error`.

        Raises:
            EnvFailure: if the function raises it. `MemoryError` of a machine without memory, and SQLite's complaint of
                another thread, pass, too.
            ConfigError: if its result is not a text and cannot be shown as one.
        """
        try:
            checked = self._arguments.validate(arguments)
        except self._invalid as error:
            return ToolResult(f"Error: invalid arguments for {self.name}: {_explain(error)}", error=True)
        try:
            result = self._function(**self._arguments.with_defaults(checked))
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # also SystemExit, as of argparse, and CancelledError of a loop in the function
            if _is_machinery(error):
                raise
            return self._raised(error, arguments)
        return self._answer(result)

    def _answer(self, result: Any) -> ToolResult:
        if inspect.iscoroutine(result):
            result.close()  # else Python warns that nothing awaits it, and `as_text` refuses it in a line
        if not isinstance(result, ToolResult):
            return ToolResult(cut_text(as_text(result, self.name, self.place), self.max_chars))
        if isinstance(result.text, str) and len(result.text) > self.max_chars:
            return ToolResult(cut_text(result.text, self.max_chars), result.error, result.reward, result.metrics)
        return result

    def _raised(self, error: BaseException, arguments: Mapping[str, Any]) -> ToolResult:
        told = error_text(error, arguments)
        note_raised(self.name, error, told)
        return ToolResult(told, error=True, metrics={f"tool/{self.name}/raised": 1.0})

    def run_batch(self, batch: Sequence[Mapping[str, Any]]) -> list[ToolResult]:
        results = [self.run(arguments) for arguments in batch]
        # An environment keeps one metric of a name in a turn, so that the first result carries the sum.
        counted = f"tool/{self.name}/raised"
        raised = [one for one in results if one.metrics and counted in one.metrics]
        for one in raised[1:]:
            raised[0].metrics[counted] += one.metrics.pop(counted)  # type: ignore[index, union-attr]
        return results

    def __getstate__(self) -> dict[str, Any]:
        # The function, or where to find it if the tool is bound to its name, as a decorator puts it there.
        function, found = self._function, self._function
        with suppress(AttributeError, KeyError):
            found = attrgetter(function.__qualname__)(sys.modules[function.__module__])
        if isinstance(found, FunctionTool) and found._function is function:
            return {"place": (function.__module__, function.__qualname__), "max_chars": self.max_chars}
        return {"function": function, "max_chars": self.max_chars}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Read anew: pydantic's model of its arguments stays in its process.
        function = state.get("function")
        if function is None:
            module, name = state["place"]
            function = attrgetter(name)(import_module(module))._function
        FunctionTool.__init__(self, function, max_chars=state["max_chars"])

    def __deepcopy__(self, memo: dict[int, Any]) -> FunctionTool:
        # Shared, since it never changes, unless it has an object that does: a copied environment has another one.
        function = self._function
        if inspect.isfunction(function) or inspect.isbuiltin(function):
            return self
        return type(self)(copy.deepcopy(function, memo), max_chars=self.max_chars)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


@overload
def tool(function: Function, *, max_chars: int = MAX_RESULT_CHARS) -> FunctionTool: ...


@overload
def tool(function: None = None, *, max_chars: int = MAX_RESULT_CHARS) -> Callable[[Function], FunctionTool]: ...


def tool(
    function: Function | None = None, *, max_chars: int = MAX_RESULT_CHARS
) -> FunctionTool | Callable[[Function], FunctionTool]:
    """Make a tool from a typed function with a docstring; usable as a decorator, with or without arguments.

    An exception of the function is an error that the policy reads, and a line on stderr for its author, once for each
    line of code. `EnvFailure` passes: the episode fails.

    Args:
        function: a function, a method, a `functools.partial` or an object that is called. It answers a text, a number,
            a bool, None, a dict, a list, a dataclass, a model of pydantic, or a `ToolResult`.
        max_chars: a longer result is cut, with a mark at its end that says so; at least 100.

    Raises:
        ConfigError: for an async function or generator, a class, one without a docstring or a readable signature, or an
            argument without a type hint or name, or with a hint that has no JSON schema.
    """
    if function is None:
        return lambda function: FunctionTool(function, max_chars=max_chars)
    return FunctionTool(function, max_chars=max_chars)


def as_tools(given: Any, owner: str) -> list[Tool]:
    """Return the tools of an environment, functions made into tools; `ConfigError` if they are not a list of these."""
    if isinstance(given, Tool) or (callable(given) and not isinstance(given, Iterable)):
        name = given.name if isinstance(given, Tool) else title_of(given)
        raise ConfigError(f"tools of {owner} is {shown(given)}; it must be a list: tools=[{name}]")
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(f"tools of {owner} is {shown(given)}; it must be a list of functions and agent_gym.Tool")
    made: list[Tool] = []
    for one in given:
        if not (isinstance(one, Tool) or callable(one)):
            raise ConfigError(f"tools of {owner} holds {shown(one)}; each must be a function or an agent_gym.Tool")
        made.append(one if isinstance(one, Tool) else tool(one))
    return made


def _is_machinery(error: BaseException) -> bool:
    """Whether no policy can have caused an exception. All else may be its mistake, such as a URL that nobody serves."""
    # A connection that was made at import belongs to the main thread, and environments live in others: each call fails.
    thread = type(error).__module__ == "sqlite3" and "created in a thread" in message_of(error)
    return isinstance(error, EnvFailure) or (isinstance(error, MemoryError) and not _has_room()) or thread


def _has_room() -> bool:
    """Whether there is memory, so that an argument such as a width of 10**12 asked for more than any machine has."""
    try:
        return bool(bytearray(_ROOM))
    except MemoryError:
        return False


def _plain(function: Function) -> Any:
    """Return the function that partials or a callable object wrap."""
    while isinstance(function, functools.partial):
        function = function.func
    if not (inspect.isroutine(function) or isinstance(function, type)) and not hasattr(function, "__wrapped__"):
        return type(function).__call__
    return function


def _checked_name(function: Any) -> str:
    """Return the name of a tool; `ConfigError` for an object that cannot be called, or is never awaited."""
    name = title_of(function)
    if not callable(function):
        raise ConfigError(f"a tool is made of {shown(function)}; it must be a function")
    if isinstance(function, Tool):
        raise ConfigError(f"tool {name!r} is an agent_gym.Tool already; hand it over as it is")
    if isinstance(function, type):
        cure = "give a function that makes and uses one, or a method of an object"
        raise ConfigError(f"tool {name!r} is a class, and an object of it is not an answer to a policy: {cure}")
    if name == "<lambda>":
        raise ConfigError("a lambda has no name that a policy could write, and no docstring: define a function by def")
    inner = inspect.unwrap(_plain(function))
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(function):
        raise ConfigError(f"tool {name!r} is async, and nothing awaits it: make it a plain function")
    if hasattr(function, "dispatch") and hasattr(function, "registry"):  # functools.singledispatch
        cure = f"write a function around it: def my_{name}(...)"
        raise ConfigError(f"tool {name!r} chooses its code by an argument without a name, and calls have names: {cure}")
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise ConfigError(f"tool {name!r} is a generator, and nothing iterates over it: return a list")
    return name


def _docstring_of(function: Function, name: str) -> str:
    while isinstance(function, functools.partial):  # its own docstring is that of functools
        function = function.func
    doc = inspect.getdoc(function)
    if not (inspect.isroutine(function) or hasattr(function, "__wrapped__")):
        doc = inspect.getdoc(type(function).__call__) or inspect.getdoc(type(function))
    if not doc or not doc.strip() or " ".join(doc.split()) in (_EMPTY, "Call self as a function."):
        raise ConfigError(f"tool {name!r} has no docstring: write one, whose first paragraph the policy reads")
    return doc


def _parameters(function: Function, name: str) -> dict[str, inspect.Parameter]:
    """Return the arguments that a policy gives, by name: without the ones that a partial has fixed."""
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (ValueError, TypeError) as error:  # of a builtin, or of an object that hides it
        cure = f"write a function around it: def my_{name}(...)"
        raise ConfigError(f"the arguments of tool {name!r} cannot be read ({error}); {cure}") from error
    while isinstance(function, functools.partial):
        parameters = {key: one for key, one in parameters.items() if key not in function.keywords}
        function = function.func
    for key, one in parameters.items():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            stars = "*" if one.kind is one.VAR_POSITIONAL else "**"
            cure = "name each argument, or take a list or a dict"
            raise ConfigError(f"argument {stars}{key} of tool {name!r} cannot be passed by name: {cure}")
        if one.kind is one.POSITIONAL_ONLY:
            cure = "write a function around it, with a type hint for each argument"
            raise ConfigError(f"argument {key!r} of tool {name!r} cannot be passed by name: {cure}")
        if one.annotation is one.empty:
            if key in ("self", "cls"):
                cure = f"give that of an object, as my_object.{name}"
                raise ConfigError(f"tool {name!r} is a method without its object: {cure}")
            raise ConfigError(f"argument {key!r} of tool {name!r} has no type hint: write one, such as {key}: str")
    return parameters


def _explain(error: Any, limit: int = 300) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    # Only place and reason: pydantic's own text repeats the input, which may be a megabyte of digits.
    found = error.errors(include_url=False, include_input=False, include_context=False)
    text = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in found)
    return clipped(text, limit)
