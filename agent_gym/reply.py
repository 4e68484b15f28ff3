"""`Reply`: the world's answer to one action of the policy, and the checks of it and of its numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_gym.errors import ConfigError, EnvFailure, shown
from agent_gym.images import Content
from agent_gym.messages import Message, check_content, is_content
from agent_gym.tools import ToolCall
from agent_gym.transcript import Source, kind_of

MAX_REWARD = 1e15
"""The largest size of a reward. Trainers sum squares of rewards in float32, which ends at 3.4e38: with a larger reward
advantages become 0 or infinite without a warning."""


@dataclass(slots=True)
class Reply:
    """The world's answer to one action. `info` gets copies, so that its dicts and lists may be used again."""

    text: Content = ""  # the observation, made by `images.parts` if it has images; empty is fine at the end
    messages: list[Message] | None = None  # the same as chat messages where one text is not enough; no `text` then
    # Raw reward terms by name, all of them in `reward_weights`, which the environment multiplies them by; numbers of
    # numpy and torch are fine.
    terms: dict[str, float] = field(default_factory=dict)
    terminated: bool = False  # the task itself is over (answered, won, bought)
    success: bool = False  # whether the task was solved; only read when the episode ends
    # The calls that ran. Where there is neither a text nor messages, their answers are the observation.
    tool_calls: Sequence[ToolCall] = ()
    metrics: dict[str, float] = field(default_factory=dict)  # numbers for the log
    error: str | None = None  # the policy's mistake, in a word or two, if there is one
    source: Source = "env"  # who answers, for example "user:customer"; never the policy


def check_reply(reply: Any, name: str, weights: Iterable[str]) -> None:
    """Check the return value of `respond` in the environment `name`, which has reward terms of these names.

    Raises:
        ConfigError: unless it is a `Reply` with fields of the right types and known terms.
    """
    if not isinstance(reply, Reply):
        raise ConfigError(f"{name}.respond returned {shown(reply)}; it must return an agent_gym.Reply")
    if wrong := _wrong_field(reply):
        value = shown(getattr(reply, wrong[0]))
        raise ConfigError(f"{wrong[0]} in the Reply of {name}.respond is {value}; it must be {wrong[1]}")
    for term in reply.terms:
        if term not in (known := list(weights)):
            raise ConfigError(
                f"term {term!r} is not in reward_weights of {name}; allowed: {', '.join(known) or 'none'}"
            )
    for message in reply.messages or ():
        check_content(message.get("content"), f"the content of a message in the Reply of {name}.respond")


def _wrong_field(reply: Reply) -> tuple[str, str] | None:
    """Name a field that is not of its type, and the type that it must have."""
    if not is_content(reply.text):
        return "text", "a text, or what agent_gym.images.parts makes"
    if not (_is_bool(reply.terminated) and _is_bool(reply.success)):
        return "success" if _is_bool(reply.terminated) else "terminated", "True or False"
    if not (reply.error is None or isinstance(reply.error, str)):
        return "error", "a text or None"
    if not (isinstance(reply.source, str) and kind_of(reply.source) in ("env", "user")):
        return "source", "env or user, with a name behind a colon if there is one"
    if not isinstance(reply.terms, dict):
        return "terms", "a dict from names to numbers"
    if not (isinstance(reply.metrics, dict) and all([isinstance(name, str) for name in reply.metrics])):
        return "metrics", "a dict from names to numbers"
    calls, messages = reply.tool_calls, reply.messages
    if not (isinstance(calls, (list, tuple)) and all([isinstance(call, ToolCall) for call in calls])):
        return "tool_calls", "a list of ToolCall"
    if not (messages is None or _is_chat(messages)):
        return "messages", "None or a list of chat messages, dicts with role and content"
    return None


def _is_bool(value: Any) -> bool:
    """Whether this is a bool of Python, numpy or torch."""
    return isinstance(value, bool) or (str(getattr(value, "dtype", "")).endswith("bool") and not value.ndim)


def _is_chat(messages: Any) -> bool:
    known = isinstance(messages, (list, tuple)) and all(isinstance(one, Mapping) for one in messages)
    return known and all(isinstance(one.get("role"), str) for one in messages)


def plain_number(
    value: Any,
    quantity: str,
    where: str,
    most: float = sys.float_info.max,
    weight: float | None = None,
    name: str | None = None,
) -> float:
    """Return a number of Python, numpy or torch (without dimensions) as a float, times its weight if it has one.

    Raises:
        EnvFailure: if it is not a finite number, or its size is above `most`; `quantity`, `name` and `where` tell
            which.
    """
    number = value if isinstance(value, float) else _as_float(value)
    if weight is not None:
        number = number * weight + 0.0  # which makes 0.0 of -0.0
    if abs(number) <= most:  # NaN is not
        return float(number)
    named = quantity if name is None else f"{quantity} {name!r}"
    allowed = "a finite number" if most == sys.float_info.max else f"a finite number of size {most:g} at most"
    weighted = "" if weight is None else f", which its weight of {weight:g} multiplies,"
    raise EnvFailure(f"{named} is {shown(value)}{weighted} in {where}; it must be {allowed}")


def plain_numbers(values: Mapping[str, Any], quantity: str, where: str) -> dict[str, float]:
    """Return numbers by name as floats in a new dict; see `plain_number`."""
    return {name: plain_number(value, quantity, where, name=name) for name, value in values.items()}


def sum_by_name(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add numbers of the same name."""
    totals: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


def _as_float(value: Any) -> float:
    try:
        plain: Any = value.item() if hasattr(value, "item") and not value.ndim else value
        return float("nan") if isinstance(plain, (str, bytes)) or getattr(plain, "ndim", 0) > 0 else float(plain)
    except Exception:  # another class may raise anything
        return float("nan")
