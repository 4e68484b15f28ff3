"""Verdicts on calls of one turn, by the rules of BFCL's `ast_checker` (gorilla, bfcl_eval/eval_checker/ast_eval).

A gold answer is a list of calls. Each gives, by parameter, the values that are right; the empty text among them means
that the parameter may be left out. Texts are compared without case, spaces and the signs ,./-_*^. The rules are kept
with their corners, since numbers of others come from them: tests compare verdicts with the original.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gym.envs.function_calls.data import shown_name

Call = tuple[str, Mapping[str, Any]]
Possible = Mapping[str, Mapping[str, list[Any]]]
_PYTHON: Mapping[str, type[Any]] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
_IGNORED = re.compile(r"[ ,./\-_*^]")


def right_calls(category: str, functions: Sequence[Any], calls: Sequence[Call], golds: Sequence[Possible]) -> bool:
    """Whether calls are the ones of the gold answer; without one, whether there are none.

    Args:
        category: the task's category; in parallel ones the order of calls is free.
        functions: the documents of the functions.
        calls: names, as a policy writes them, and arguments.
        golds: name of a function to the right values by parameter, for each call.
    """
    if len(calls) != len(golds):
        return False
    if "parallel" not in category and "multiple" not in category:
        return not golds or _is_right(functions[0], calls[0], golds[0])
    left = list(calls)
    for gold in golds:
        document = next((one for one in functions if one["name"] == next(iter(gold))), None)
        place = next((at for at, call in enumerate(left) if document and _is_right(document, call, gold)), None)
        if place is None:
            return False
        del left[place]
    return True


def _is_right(document: Mapping[str, Any], call: Call, gold: Possible) -> bool:
    (right,) = gold.values()
    name, arguments = call
    known = document["parameters"]["properties"]
    if name != shown_name(document["name"]) or not arguments.keys() >= {*document["parameters"]["required"]}:
        return False
    if any(parameter not in arguments and "" not in values for parameter, values in right.items()):
        return False
    try:
        return all(
            parameter in known and parameter in right and _fits(known[parameter], value, right[parameter])
            for parameter, value in arguments.items()
        )
    except (AttributeError, TypeError, KeyError, OverflowError, RecursionError):
        return False  # where the original breaks off: a value of another shape than any right one


def _fits(schema: Mapping[str, Any], value: Any, right: list[Any]) -> bool:
    """Whether a value has the type of the parameter, and is one of the right values."""
    kind = schema["type"]
    wanted = _PYTHON[kind]
    inner = _PYTHON[schema["items"]["type"]] if kind in ("array", "tuple") else None
    if kind == "float" and type(value) is int:
        value = float(value)
    if not _has_type(value, right, wanted, inner):
        return False
    if _type_of(right) not in (None, wanted):  # the name of a variable in the place of a value
        return value in right
    if wanted is dict:
        return any(_same_dict(value, one) for one in right if one != "")
    if wanted is list and inner is dict:
        return any(len(value) == len(one) and all(map(_same_dict, value, one)) for one in right)
    if wanted is str:
        return _plain(value) in [_plain(one) for one in right if isinstance(one, str)]
    if wanted is list:
        return [*map(_plain, value)] in [[*map(_plain, one)] for one in right]
    return value in right


def _type_of(right: list[Any]) -> type[Any] | None:
    return next((type(one) for one in right if one != ""), None)


def _has_type(value: Any, right: list[Any], wanted: type[Any], inner: type[Any] | None) -> bool:
    if type(value) is not wanted:
        return type(value) is _type_of(right)
    if inner is None:
        return True
    lists = (not isinstance(one, list) or all(_has_type(each, one, inner, None) for each in value) for one in right)
    return any(lists)


def _same_dict(value: Any, right: Any) -> bool:
    if right == "" or any(key not in value and "" not in some for key, some in right.items()):
        return False
    return all(key in right and _plain(one) in [*map(_plain, right[key])] for key, one in value.items())


def _plain(value: Any) -> Any:
    """Return a text in the form that is compared, and any other value as it is."""
    return _IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


# The expert's calls.


def first_right(functions: Sequence[Any], golds: Sequence[Possible]) -> list[tuple[str, dict[str, Any]]]:
    """Return calls with the first right value of each parameter, without the ones that may be left out."""
    calls = []
    for gold in golds:
        ((name, right),) = gold.items()
        schema = next(one for one in functions if one["name"] == name)["parameters"]
        known, required = schema["properties"], schema["required"]
        arguments = {}
        for parameter, values in right.items():
            if parameter in known and ("" not in values or parameter in required):
                arguments[parameter] = _first(known[parameter], next((one for one in values if one != ""), ""))
        calls.append((shown_name(name), arguments))
    return calls


def _first(schema: Mapping[str, Any], value: Any) -> Any:
    """Return a value of a right answer, in which a dict has the right values by key."""
    if isinstance(value, dict):
        return {key: next(one for one in some if one != "") for key, some in value.items() if "" not in some}
    if isinstance(value, list) and schema.get("items", {}).get("type") == "dict":
        return [_first({}, one) for one in value]
    return value
