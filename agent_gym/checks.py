"""What an environment returns is checked here, and cut to what the observation space allows.

An `info` holds plain values and copies: its numbers are Python floats, and it shares no dict or list with the
environment, which may change what it returned. So an `info` stays as it was written, and can be written as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.formats import ToolCall
from agent_gym.images import PLACEHOLDER, Content, Image, text_of

if TYPE_CHECKING:
    from agent_gym.chat import Message
    from agent_gym.env import Reply

MAX_OBSERVATION_CHARS = 1 << 16
MAX_REWARD = 1e15
"""The largest size of a reward. Trainers sum squares of rewards in float32, which ends at 3.4e38: with a larger reward
advantages become 0 or infinite without a warning."""
_CUT = "\n[cut: too long]"


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
    number = value if isinstance(value, float) else _as_float(value)
    if math.isfinite(number) and abs(number) <= most:
        return float(number)
    allowed = f"a finite number of size {most:g} at most" if most < math.inf else "a finite number"
    raise EnvFailure(f"{what} is {shown(value)} in {where}; it must be {allowed}")


def plain_numbers(values: Mapping[str, Any], what: str, where: str) -> dict[str, float]:
    """Return numbers by name as floats in a new dict; see `plain_number`."""
    return {name: plain_number(value, f"{what} {name!r}", where) for name, value in values.items()}


def _as_float(value: Any) -> float:
    """Return a number of any class as a float; NaN for what is no number."""
    try:
        plain: Any = value.item() if hasattr(value, "item") and not value.ndim else value
        return math.nan if isinstance(plain, (str, bytes)) or getattr(plain, "ndim", 0) > 0 else float(plain)
    except Exception:  # a class of its own may raise anything
        return math.nan


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


def check_reply(reply: Reply, method: str, weights: Mapping[str, float]) -> None:
    """Check the fields of a `Reply`, apart from its numbers.

    Args:
        reply: what `respond` returned.
        method: as "MyEnv.respond", for the message.
        weights: the reward terms that the environment has.

    Raises:
        ConfigError: that names the value and what is allowed.
    """
    where = f"the Reply of {method}"
    check_content(reply.text, f"text in {where}")
    for name, flag in (("terminated", reply.terminated), ("success", reply.success)):
        if not _is_bool(flag):
            raise ConfigError(f"{name} in {where} is {shown(flag)}; it must be True or False")
    if not (reply.error is None or isinstance(reply.error, str)):
        raise ConfigError(f"error in {where} is {shown(reply.error)}; it must be a text or None")
    for name, numbers in (("terms", reply.terms), ("metrics", reply.metrics)):
        if not isinstance(numbers, Mapping) or any(not isinstance(key, str) for key in numbers):
            raise ConfigError(f"{name} in {where} is {shown(numbers)}; it must be a dict from names to numbers")
    if not reply.terms.keys() <= weights.keys():
        unknown = next(name for name in reply.terms if name not in weights)
        raise ConfigError(
            f"term {unknown!r} is not in reward_weights of {method.partition('.')[0]}; allowed: "
            f"{', '.join(weights) or 'none'}"
        )
    if not _is_list_of(ToolCall, reply.tool_calls):
        raise ConfigError(f"tool_calls in {where} is {shown(reply.tool_calls)}; it must be a list of ToolCall")
    if reply.messages is None:
        return
    if not _is_list_of(Mapping, reply.messages) or any(not isinstance(one.get("role"), str) for one in reply.messages):
        raise ConfigError(
            f"messages in {where} is {shown(reply.messages)}; it must be None or a list of chat messages, dicts with "
            "role and content"
        )
    for message in reply.messages:
        check_content(message.get("content"), f"the content of a message in {where}")


def check_type(value: Any, wanted: type, method: str) -> None:
    """Raise `ConfigError` unless a method returned what it has to, a `Reply` or a `ToolResult`."""
    if not isinstance(value, wanted):
        raise ConfigError(f"{method} returned {shown(value)}; it must return an agent_gym.{wanted.__name__}")


def _is_part(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    return isinstance(part.get("text"), str) if part.get("type") == "text" else isinstance(part.get("image"), Image)


def _is_bool(value: Any) -> bool:
    """Whether this is a bool of Python, numpy or torch."""
    return isinstance(value, bool) or (str(getattr(value, "dtype", "")).endswith("bool") and not value.ndim)


def _is_list_of(kind: type, values: Any) -> bool:
    return isinstance(values, (list, tuple)) and all(isinstance(value, kind) for value in values)


def shown(value: Any) -> str:
    """Return a value and its type for a message: one line of bounded length, also if its repr raises."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # such as an integer of more digits than Python prints
        text = "a value"
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def copied(value: Any) -> Any:
    """Copy nested dicts and lists; what they hold (texts, numbers, images) never changes and is shared."""
    if isinstance(value, dict):
        return {name: copied(entry) for name, entry in value.items()}
    return [copied(entry) for entry in value] if isinstance(value, list) else value


def truncate(messages: list[Message], joint: str) -> tuple[list[Message], str]:
    """Cut the texts of messages so that they have at most `MAX_OBSERVATION_CHARS` characters together.

    Lone surrogates are replaced, see `encodable`. Images stay as they are.

    Args:
        messages: what to cut.
        joint: stands between two of them in their joint text.

    Returns:
        The messages and their joint text.
    """
    contents = [message["content"] for message in messages]
    text = joint.join(map(text_of, contents))
    limit = MAX_OBSERVATION_CHARS
    if len(text) + len(joint) > limit:
        plain = all(isinstance(content, str) for content in contents)
        pieces = sum(1 if isinstance(content, str) else len(content) for content in contents)
        limit = limit // pieces - (len(joint) if plain else max(len(joint), len(PLACEHOLDER)))
    elif text.isascii():
        return messages, text
    messages = [{**message, "content": _cut_content(message["content"], limit)} for message in messages]
    return messages, joint.join(text_of(message["content"]) for message in messages)


def encodable(text: str) -> str:
    """Replace lone surrogates, which no tokenizer and no file can encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _cut_content(content: Content, limit: int) -> Content:
    if isinstance(content, str):
        return _cut(content, limit)
    return [{**part, "text": _cut(part["text"], limit)} if part["type"] == "text" else part for part in content]


def _cut(text: str, limit: int) -> str:
    return encodable(text if len(text) <= limit else text[: limit - len(_CUT)] + _CUT)
