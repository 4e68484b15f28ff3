"""From the type hints of a function to a JSON schema of its arguments and to a validator of calls.

The hints are the ones that pydantic knows. Each failure is a `ConfigError` that names the function and the argument,
since pydantic's own message about a function with six arguments does not help its author.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, Union, get_args, get_origin

from typing_extensions import TypedDict  # typing's own TypedDict is refused by pydantic before 3.12

from agent_gym.docstrings import choices
from agent_gym.errors import ConfigError, clipped, message_of, quoted

_UNIONS = (Union, types.UnionType)


class Arguments(NamedTuple):
    """The arguments of a function: a JSON schema, a check, and the defaults that Python does not fill in."""

    schema: dict[str, Any]
    validate: Callable[[Any], dict[str, Any]]
    defaults: dict[str, Callable[[], Any]]

    def with_defaults(self, checked: dict[str, Any]) -> dict[str, Any]:
        """Add the default of a pydantic `Field`: Python would hand over the `Field` itself."""
        return {**{name: make() for name, make in self.defaults.items() if name not in checked}, **checked}


def title_of(function: Any) -> str:
    """Return the name of a tool to be."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def read_arguments(
    function: Callable[..., Any],
    name: str,
    parameters: Mapping[str, inspect.Parameter],
    documented: Mapping[str, str],
) -> Arguments:
    """Read the arguments of a function.

    Args:
        function: the callable of the tool.
        name: of the tool, for messages.
        parameters: the arguments that a policy gives.
        documented: their descriptions in the docstring.

    Raises:
        ConfigError: for a hint that names an unknown type, or has no JSON schema.
    """
    # A `TypedDict`, whose keys may be any words: a model of pydantic keeps names such as `schema` and `_x` to itself.
    from pydantic import ConfigDict, with_config

    fields: dict[str, Any] = {}
    defaults: dict[str, Callable[[], Any]] = {}
    for key, parameter in parameters.items():
        hint = _evaluated(function, name, parameter)
        fields[key] = _field(hint, parameter.default, documented.get(key), key, defaults)
    # Unknown arguments are refused: a policy that invents one believes that it does something.
    settings = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        arguments = with_config(settings)(TypedDict(name, fields))  # type: ignore[operator]
        schema, validate = _built(arguments)
    except Exception as error:  # pydantic raises errors of a dozen types
        raise _named(error, name, fields) from error
    return Arguments({"type": "object", "properties": {}, "required": [], **schema}, validate, defaults)


def _evaluated(function: Any, name: str, parameter: inspect.Parameter) -> Any:
    """Return the hint of an argument, evaluated where it is a text, or has one in it."""
    while isinstance(function, functools.partial):
        function = function.func
    inner = inspect.unwrap(function)
    if not (inspect.isroutine(inner) or hasattr(inner, "__globals__")):
        inner = inspect.unwrap(type(inner).__call__)
    inner = getattr(inner, "__func__", inner)
    known = getattr(inner, "__globals__", vars(sys.modules.get(getattr(inner, "__module__", ""), typing)))
    code = getattr(inner, "__code__", None)
    cells = zip(code.co_freevars, inner.__closure__ or (), strict=True) if code else ()
    local = {key: cell.cell_contents for key, cell in cells if _filled(cell)}
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return typing.get_type_hints(holder, known, local, include_extras=True)["it"]
    except Exception as error:
        reason = f"{type(error).__name__}: {message_of(error)}"
        hint = parameter.annotation if isinstance(parameter.annotation, str) else repr(parameter.annotation)
        cure = "import or define the type in the module of the function, and not under TYPE_CHECKING or in a function"
        raise ConfigError(
            f"the type hint {quoted(hint)} of argument {parameter.name!r} of tool {name!r} cannot be read: {reason}; "
            f"{cure}"
        ) from error


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # it has no value yet
        return False


def _field(hint: Any, default: Any, documented: str | None, key: str, defaults: dict[str, Callable[[], Any]]) -> Any:
    """Return the field of an argument; a default that pydantic has to fill in is put into `defaults`."""
    from pydantic import Field
    from pydantic.fields import FieldInfo

    about, given = _described(hint), default
    more: list[Any] = []
    if isinstance(default, FieldInfo):  # def f(x: int = Field(ge=0, description="..."))
        about = default.description or about
        more = [Field(**{name: value for name, value in default._attributes_set.items() if _is_rule(name)})]
        more += default.metadata
        given = inspect.Parameter.empty if default.is_required() else default.get_default(call_default_factory=True)
        if not default.is_required():
            defaults[key] = functools.partial(default.get_default, call_default_factory=True)
    text, allowed = choices(about or documented or "")
    if given is None and get_origin(hint) is not Annotated:
        hint = Optional[hint]  # noqa: UP045 (not every hint has `|`); def f(x: str = None) means that None is fine
    extra = _enum_of(hint, allowed)
    if isinstance(extra, dict):
        more.append(Field(json_schema_extra=extra))
    elif extra is not None:
        hint = extra
    # Only known facts: a description of None would take away that of `Annotated`.
    words: dict[str, Any] = {"description": text} if text else {}
    shown = ... if given is inspect.Parameter.empty or not _is_json(given) else given
    field: Any = Annotated[hint, *more, Field(shown, **words)]
    return field if given is inspect.Parameter.empty else NotRequired[field]


def _is_rule(name: str) -> bool:
    return name not in ("default", "default_factory", "description", "annotation", "metadata", "validate_default")


def _described(hint: Any) -> str | None:
    """Return an argument's `Field`, text or `Doc` in `Annotated`; also inside of an optional type."""
    if get_origin(hint) is Annotated:
        for one in reversed(hint.__metadata__):
            if found := getattr(one, "description", None) or getattr(one, "documentation", None):
                return str(found)
        texts = [one for one in hint.__metadata__ if isinstance(one, str)]
        return texts[-1] if texts else _described(get_args(hint)[0])
    if get_origin(hint) in _UNIONS:
        return next((found for one in get_args(hint) if (found := _described(one))), None)
    return None


def _enum_of(hint: Any, allowed: list[Any]) -> Any:
    """Return the hint for values that a docstring lists, the addition to its schema instead, or None for no values."""
    if not allowed:
        return None
    base, optional = hint, False
    if get_origin(base) in _UNIONS and type(None) in get_args(base):
        rest = [one for one in get_args(base) if one is not type(None)]
        base, optional = (rest[0] if len(rest) == 1 else base), True
    if base in (str, int, bool) and all(type(one) is base for one in allowed):
        listed: Any = Literal[tuple(allowed)]
        return Optional[listed] if optional else listed  # noqa: UP045
    if get_origin(base) in (list, tuple, set, frozenset) or base is list:
        return {"items": {"enum": allowed}}
    return {"enum": [*allowed, None] if optional else allowed}


def _is_json(value: Any) -> bool:
    """Whether a schema can show a default: pydantic writes many types as JSON, and infinite numbers are none."""
    from pydantic_core import to_jsonable_python

    try:
        json.dumps(to_jsonable_python(value), allow_nan=False)
    except Exception:  # an object of any class
        return False
    return True


def _built(arguments: Any) -> tuple[dict[str, Any], Callable[[Any], dict[str, Any]]]:
    """Return the schema of a `TypedDict` without titles, which would only cost the policy tokens, and its check."""
    from pydantic import TypeAdapter

    def strip(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: strip(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))}
        return [strip(item) for item in node] if isinstance(node, list) else node

    adapter = TypeAdapter(arguments)
    schema = copy.deepcopy(strip(adapter.json_schema()))
    schema.pop("additionalProperties", None)
    json.dumps(schema, allow_nan=False)
    return schema, adapter.validator.validate_python


def _named(error: Exception, name: str, fields: Mapping[str, Any]) -> ConfigError:
    """Return the error with the argument that causes it, which is looked for one by one."""
    for key, field in fields.items():
        try:
            _built(TypedDict("Arguments", {key: field}))  # type: ignore[operator]
        except Exception as one:
            hint = get_args(field)[0] if get_origin(field) is NotRequired else field
            hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
            kind = getattr(hint, "__name__", None) or str(hint).removeprefix("typing.")
            return ConfigError(
                f"argument {key!r} of tool {name!r} has a hint without a JSON schema, {clipped(kind)}: {_reason(one)}"
            )
    return ConfigError(f"the arguments of tool {name!r} have no JSON schema: {_reason(error)}")


def _reason(error: Exception) -> str:
    text = " ".join(message_of(error).partition("\nFor further information")[0].split())
    if "typing_extensions.TypedDict" in text:
        return "import TypedDict from typing_extensions and not from typing (Python below 3.12)"
    if "arbitrary_types_allowed" in text or "CallableSchema" in text or "IsInstanceSchema" in text:
        return "use a text, a number, a list, a dict, an Enum, a dataclass or a pydantic model"
    return clipped(re.sub(r"\s*Set `arbitrary_types_allowed.*", "", text), 200)
