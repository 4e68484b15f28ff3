"""The border of an environment: what a subclass returns is checked, and what `info` reports of it is written.

An `info` holds plain values and copies: its numbers are Python floats, and it shares no dict or list with the
environment, which may change what it returned. So an `info` stays as it was written, and can be written as JSON.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.images import Content, Image
from agent_gym.parsing import ToolCall
from agent_gym.transcript import Opening, OpeningFields, Turn, TurnFields

if TYPE_CHECKING:
    from agent_gym.chat import Message

MOST_REWARD = 1e15
"""The largest size of a reward. Trainers sum squares of rewards in float32, which ends at 3.4e38: with a larger reward
advantages become 0 or infinite, and nothing says why."""


@dataclass(slots=True)
class Reply:
    """What the world answers to one action. `info` gets copies, so that its dicts and lists may be used again.

    Attributes:
        text: the observation, or its parts if there are images among them (`images.parts`). Empty is fine for an
            action that ends the episode.
        messages: the same as chat messages where one text is not enough; `text` then stays empty.
        terms: raw reward terms by name, all of them in `reward_weights`; the environment multiplies them by its weights
            and sums. Numbers of numpy and torch are fine.
        terminated: the task itself is over (answered, won, bought).
        success: whether the task was solved; only read when the episode ends.
        tool_calls: the calls that ran. Where there is neither a text nor messages, their answers are the observation.
        metrics: numbers for the log.
        error: what the policy did wrong, in a word or two, if anything.
    """

    text: Content = ""
    messages: list[Message] | None = None
    terms: dict[str, float] = field(default_factory=dict)
    terminated: bool = False
    success: bool = False
    tool_calls: Sequence[ToolCall] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None


def plain_number(value: Any, what: str, where: str, most: float = math.inf) -> float:
    """Return a number of Python, numpy or torch as a float.

    Args:
        value: the number; an array or tensor must have no dimensions.
        what: its name, for the message.
        where: environment and task, for the message.
        most: the largest size that is allowed.

    Raises:
        EnvFailure: if no finite float can be made of it, or it is too large. The world gave it, not the policy.
    """
    number = math.nan
    try:
        if not getattr(value, "ndim", 0):
            plain = value.item() if hasattr(value, "item") else value
            number = math.nan if isinstance(plain, str | bytes) else float(plain)
    except Exception:  # a class of its own may raise anything
        pass
    if math.isfinite(number) and abs(number) <= most:
        return number
    allowed = f"a finite number of size {most:g} at most" if most < math.inf else "a finite number"
    raise EnvFailure(f"{what} is {shown(value)} in {where}; it must be {allowed}")


def plain_numbers(values: Mapping[str, Any], what: str, where: str) -> dict[str, float]:
    """Return numbers by name as floats in a new dict; see `plain_number`."""
    return {name: plain_number(value, f"{what} {name!r}", where) for name, value in values.items()}


def check_action(action: Any) -> str:
    """Return an action as a plain `str`.

    Raises:
        TypeError: if it is no text.
    """
    if not isinstance(action, str):
        raise TypeError(
            f"an action is the policy's text, a str, but step got {shown(action)}; decode token ids and bytes first, "
            "or hand ids over beside their text as agent_gym.Sampled"
        )
    return action if type(action) is str else str.__str__(action)


def check_content(content: Any, what: str) -> None:
    """Raise `ConfigError` unless this is a text, or parts as `images.parts` makes them."""
    if isinstance(content, str):
        return
    if isinstance(content, list) and all(map(_is_part, content)):
        return
    raise ConfigError(f"{what} is {shown(content)}; it must be a text, or what agent_gym.images.parts makes")


def check_reply(reply: Any, method: str, weights: Mapping[str, float]) -> None:
    """Check what `respond` returned, apart from its numbers.

    Args:
        reply: what it returned.
        method: as "MyEnv.respond", for the message.
        weights: the reward terms that the environment has.

    Raises:
        ConfigError: that names the value and what is allowed.
    """
    check_is_reply(reply, method)
    where = f"the Reply of {method}"
    check_content(reply.text, f"text in {where}")
    for name in ("terminated", "success"):
        if not _is_bool(getattr(reply, name)):
            raise ConfigError(f"{name} in {where} is {shown(getattr(reply, name))}; it must be True or False")
    if not (reply.error is None or isinstance(reply.error, str)):
        raise ConfigError(f"error in {where} is {shown(reply.error)}; it must be a text or None")
    for name in ("terms", "metrics"):
        numbers = getattr(reply, name)
        if not isinstance(numbers, Mapping) or not all(isinstance(key, str) for key in numbers):
            raise ConfigError(f"{name} in {where} is {shown(numbers)}; it must be a dict from names to numbers")
    for name in reply.terms:
        if name not in weights:
            raise ConfigError(
                f"term {name!r} is not in reward_weights of {method.partition('.')[0]}; allowed: "
                f"{', '.join(weights) or 'none'}"
            )
    if not _all_are(reply.tool_calls, lambda call: isinstance(call, ToolCall)):
        raise ConfigError(f"tool_calls in {where} is {shown(reply.tool_calls)}; it must be a list of ToolCall")
    if reply.messages is None:
        return
    if not _all_are(reply.messages, lambda one: isinstance(one, Mapping) and isinstance(one.get("role"), str)):
        raise ConfigError(
            f"messages in {where} is {shown(reply.messages)}; it must be None or a list of chat messages, dicts with "
            "role and content"
        )
    for message in reply.messages:
        check_content(message.get("content"), f"the content of a message in {where}")


def check_is_reply(reply: Any, method: str) -> None:
    """Raise `ConfigError` unless a method returned a `Reply`."""
    if not isinstance(reply, Reply):
        raise ConfigError(f"{method} returned {shown(reply)}; it must return an agent_gym.Reply")


def _is_part(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    return isinstance(part.get("text"), str) if part.get("type") == "text" else isinstance(part.get("image"), Image)


def _is_bool(value: Any) -> bool:
    """Whether this is a bool of Python, numpy or torch."""
    return isinstance(value, bool) or (str(getattr(value, "dtype", "")).endswith("bool") and not value.ndim)


def _all_are(values: Any, fits: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(map(fits, values))


def shown(value: Any) -> str:
    """A value and its type for a message: one line of bounded length, whatever its repr does."""
    try:
        said = " ".join(repr(value).split())
    except Exception:  # such as an integer of more digits than Python prints
        said = "a value"
    return f"{said if len(said) <= 80 else said[:77] + '...'} ({type(value).__name__})"


def reset_info(
    fields: OpeningFields,
    messages: list[Message] | None,
    tools: Sequence[dict[str, Any]],
    stop: Sequence[str],
    task_id: str,
    categories: Mapping[str, Any],
    tokens: bool,
) -> dict[str, Any]:
    """Write the `info` of `TextEnv.reset`.

    Args:
        fields: of the `Opening`, what stands before the first turn.
        messages: the same as messages of its own, which nobody changes; None if they have the same words.
        tools: the schemas of the tools.
        stop: strings after which a turn is complete.
        task_id: which task it is.
        categories: what kinds it is of.
        tokens: whether there is a tokenizer, and ids to be told.
    """
    opening = Opening(*fields)
    if messages is None:
        messages = [{"role": segment.source, "content": segment.text} for segment in opening.segments]
    info: dict[str, Any] = {
        "messages": messages,
        "tools": [*tools],
        "stop": [*stop],
        "task_id": task_id,
        "categories": {str(name): str(kind) for name, kind in categories.items()},
        "spans": opening.spans,
    }
    if tokens:
        info["token_ids"], info["token_spans"] = [*opening.token_ids], opening.token_spans
    return info


def step_info(
    fields: TurnFields,
    answers: list[Message],
    reply: Reply,
    terms: dict[str, float],
    process_reward: float,
    metrics: dict[str, float],
    over: bool,
    tokens: bool,
) -> dict[str, Any]:
    """Write the `info` of `TextEnv.step`.

    Args:
        fields: of the `Turn`, the action and the world's answer.
        answers: that answer as messages of its own, which nobody changes.
        reply: what the world answered.
        terms: weighted reward terms by name.
        process_reward: the part of their sum that judges the way and not the outcome.
        metrics: numbers for the log.
        over: whether the episode is.
        tokens: whether there is a tokenizer, and ids to be told.
    """
    turn = Turn(*fields)
    info: dict[str, Any] = {
        "messages": [{"role": "assistant", "content": turn.action}, *answers],
        "spans": turn.spans,
        "reward_terms": terms,
        "process_reward": process_reward,
        "tool_calls": copy.deepcopy([call.record for call in reply.tool_calls]),
        "metrics": metrics,
        "error": reply.error,
    }
    if over:
        info["is_success"] = bool(reply.success)
    if tokens:
        info["token_ids"] = [*turn.action_ids, *turn.answer_ids]
        info["token_spans"] = turn.token_spans if turn.answer_ids else turn.token_spans[:1]
    return info


def call_messages(calls: Sequence[ToolCall], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Write the answers of calls as one message each."""
    known = [tool["function"]["name"] for tool in tools]
    # A name that the policy made up stays out of the template, which would print it as it stands.
    return [
        {"role": "tool", "name": call.name if call.name in known else "error", "content": call.answer} for call in calls
    ]
