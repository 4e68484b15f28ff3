"""The shape of a record of a trajectory file.

The shape of a value is a type, a tuple of types, a list `[shape]`, or fields `{name: shape}`; a name with "?" may be
missing. Further entries are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from agent_gym.rollout.episode import EpisodeSpec, Step
from agent_gym.transcript import Source

_NUMBER = (int, float)
_MISSING = type(None)

_SHAPE: Mapping[str, Any] = {
    "spec": {
        "env_id": str,
        "env_kwargs": dict,
        "seed": int,
        "split": (str, _MISSING),
        "index": (int, _MISSING),
        "group": int,
        "member": int,
        "sampling_seed": (int, _MISSING),
    },
    "task_id": str,
    "categories?": dict,
    "reward": (*_NUMBER, _MISSING),
    "reward_terms": dict,
    "success": bool,
    "terminated": bool,
    "truncated": bool,
    "truncation": (str, _MISSING),
    "failure": (str, _MISSING),
    "failure_details?": {"where": str, "traceback": str},
    "seconds": _NUMBER,
    "messages": [{"role": str, "content": (str, list)}],
    "tools": [{"function": {"name": str}}],
    "steps": [
        {
            "row": int,
            "start": int,
            "stop": int,
            "action": str,
            "observation": str,
            "reward": _NUMBER,
            "reward_terms": dict,
            "tool_calls": [{"name": str, "error": (bool, str, _MISSING), "seconds": _NUMBER}],
            "metrics": dict,
            "error": (str, _MISSING),
            "finish_reason": str,
            "env_seconds": _NUMBER,
        }
    ],
    "rows": [{"token_ids": [int], "spans": [list], "logprobs": [_NUMBER], "tokens?": [str]}],
    "images?": [str],
}


def misfit(record: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a record, None if nothing is."""
    if wrong := _misfit(record, _SHAPE, ""):
        return wrong
    if record["failure"] is None and record["reward"] is None:
        return "reward is null, and the episode did not fail"
    for where, found, made in (("spec", record["spec"], EpisodeSpec), *(("steps", s, Step) for s in record["steps"])):
        if unknown := found.keys() - {field.name for field in fields(made)}:
            return f"{where} has {', '.join(sorted(unknown))}, which this version does not know"
    images = len(record.get("images", ()))
    for n, message in enumerate(record["messages"]):
        if isinstance(message["content"], list) and not all(_is_part(part, images) for part in message["content"]):
            return f"messages[{n}] has a part that is neither a text nor an image of the record"
    for n, row in enumerate(record["rows"]):
        length = len(row["token_ids"])
        if any(len(row[name]) != length for name in ("logprobs", "tokens") if name in row):
            return f"rows[{n}] has {length} token_ids, and another number of logprobs or tokens"
        if wrong_span := next((span for span in row["spans"] if not _is_span(span, length)), None):
            return f"rows[{n}] has no span {_short(wrong_span)}"
    for n, step in enumerate(record["steps"]):
        if not 0 <= step["row"] < len(record["rows"]):
            return f"steps[{n}] is in row {step['row']}, which is missing"
    return None


def _is_part(part: Any, images: int) -> bool:
    if not isinstance(part, dict):
        return False
    if part.get("type") == "image":
        return isinstance(part.get("image"), int) and 0 <= part["image"] < images
    return isinstance(part.get("type"), str)


def _is_span(span: list[Any], length: int) -> bool:
    match span:
        case [int(start), int(stop), str(source), int()]:
            return 0 <= start <= stop <= length and source in get_args(Source)
    return False


def _misfit(value: Any, shape: Any, where: str) -> str | None:
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            return f"{where} is {_short(value)}, not an object"
        for name, inner in shape.items():
            name, optional = name.removesuffix("?"), name.endswith("?")
            path = f"{where}.{name}" if where else name
            if name not in value and not optional:
                return f"no {path}"
            if name in value and (wrong := _misfit(value[name], inner, path)):
                return wrong
        return None
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is {_short(value)}, not a list"
        (inner,) = shape
        if isinstance(inner, type | tuple):  # thousands of tokens
            if all(isinstance(item, inner) for item in value):
                return None
        found = (_misfit(item, inner, f"{where}[{i}]") for i, item in enumerate(value))
        return next((wrong for wrong in found if wrong), None)
    return None if isinstance(value, shape) else f"{where} is {_short(value)}"


def _short(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else text[:40] + "..."
