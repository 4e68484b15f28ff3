"""Observations that fit: short enough for the observation space, and writable as UTF-8."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent_gym.images import PLACEHOLDER, Content, text_of

if TYPE_CHECKING:
    from agent_gym.chat import Message

MAX_OBSERVATION_CHARS = 1 << 16
_CUT = "\n[cut: too long]"
_content = operator.itemgetter("content")


def fit(messages: list[Message], joint: str) -> tuple[list[Message], str]:
    """Bound what the messages say together to `MAX_OBSERVATION_CHARS`; images stay as they are.

    Args:
        messages: what to bound.
        joint: stands between two of them in the text of all.

    Returns:
        The messages, those given if nothing is wrong with them, and their texts as one.
    """
    try:
        said = messages[0]["content"] if len(messages) == 1 else joint.join(map(_content, messages))
        plain = said.isascii()
    except (AttributeError, TypeError):  # parts, with images among them
        return _fit_parts(messages, joint)
    limit = MAX_OBSERVATION_CHARS
    if len(said) + len(joint) > limit:
        limit = limit // len(messages) - len(joint)
    elif plain:
        return messages, said
    messages = [{**message, "content": _cut(message["content"], limit)} for message in messages]
    return messages, joint.join(map(_content, messages))


def encodable(text: str) -> str:
    """Replace lone surrogates, which no tokenizer and no file can encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _fit_parts(messages: Sequence[Message], joint: str) -> tuple[list[Message], str]:
    limit = MAX_OBSERVATION_CHARS
    if len(joint.join(text_of(message["content"]) for message in messages)) + len(joint) > limit:
        count = sum(1 if isinstance(message["content"], str) else len(message["content"]) for message in messages)
        limit = limit // count - max(len(joint), len(PLACEHOLDER))

    def fitted(content: Content) -> Content:
        if isinstance(content, str):
            return _cut(content, limit)
        return [{**part, "text": _cut(part["text"], limit)} if part["type"] == "text" else part for part in content]

    bounded = [{**message, "content": fitted(message["content"])} for message in messages]
    return bounded, joint.join(text_of(message["content"]) for message in bounded)


def _cut(text: str, limit: int) -> str:
    return encodable(text if len(text) <= limit else text[: limit - len(_CUT)] + _CUT)
