"""Chat messages and their contents: texts, or parts with images (images.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent_gym.errors import ConfigError, shown
from agent_gym.images import PLACEHOLDER, Content, Image

Message = dict[str, Any]
"""A chat message: {"role": "system" | "user" | "assistant" | "tool", "content": str or parts (images.py), ...}."""
MAX_OBSERVATION_CHARS = 1 << 16
_CUT = "\n[cut: too long]"


def text_of(content: Content) -> str:
    """Return the words of a content, with `PLACEHOLDER` for each image."""
    if isinstance(content, str):
        return content
    return "".join(str(part["text"]) if "text" in part else f"<{part.get('type', 'part')}>" for part in content)


def described(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return the words of messages and the digests of their images: equal where they say and show the same."""
    contents = [message["content"] for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    digests = [part["image"].digest for part in parts if part["type"] == "image"]
    return "\0".join([" ".join(map(text_of, contents)), *digests])


def is_answer(message: Message) -> bool:
    """Whether this is a tool's answer to a call. Some environments answer plain turns in the role "tool", too."""
    return bool(message["role"] == "tool" and ("name" in message or "tool_call_id" in message))


def is_content(content: Any) -> bool:
    """Whether this is a text, or parts as `images.parts` makes them."""
    if not isinstance(content, list):
        return isinstance(content, str)
    return all(
        isinstance(part, dict)
        and (isinstance(part.get("text"), str) if part.get("type") == "text" else isinstance(part.get("image"), Image))
        for part in content
    )


def in_parts(message: Message) -> Message:
    """Write the content of a message as parts; MiniMax-M1 has the name of a tool in the part that it answers."""
    content = message["content"]
    named = {"name": message["name"]} if "name" in message else {}
    return {**message, "content": [{"type": "text", "text": content, **named}] if isinstance(content, str) else content}


def check_content(content: Any, what: str) -> None:
    """Raise `ConfigError` unless `is_content`."""
    if not is_content(content):
        raise ConfigError(f"{what} is {shown(content)}; it must be a text, or what agent_gym.images.parts makes")


def copied(value: Any) -> Any:
    """Copy nested dicts and lists; their leaves (texts, numbers, images) never changes and is shared."""
    if isinstance(value, dict):
        return {name: copied(entry) for name, entry in value.items()}
    return [copied(entry) for entry in value] if isinstance(value, list) else value


def cut_to_size(messages: list[Message], joint: str) -> tuple[list[Message], str]:
    """Cut the texts of messages to `MAX_OBSERVATION_CHARS` characters together; return them and their joined text.

    Lone surrogates, which no tokenizer and no file can encode, are replaced. Images stay as they are.
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

    def cut(content: Any) -> Any:
        if isinstance(content, list):
            return [{**part, "text": cut(part["text"])} if part["type"] == "text" else part for part in content]
        short = content if len(content) <= limit else content[: limit - len(_CUT)] + _CUT
        return short.encode("utf-8", "replace").decode("utf-8")

    messages = [{**message, "content": cut(message["content"])} for message in messages]
    return messages, joint.join(text_of(message["content"]) for message in messages)
