"""The shown parts of a row: the text of its question, the conversation before it, and the paragraphs that it is about.

Contents may be texts, parts (`[{"type": "text", "text": ...}]`) or the messages of a chat. Images have no place in a
text and are refused. The frame that other programs write around a question is taken off, since it asks for their
formats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agent_gym.row_golds import Fault, is_number, object_of, plain_name

Message = dict[str, Any]
CONTEXTS = ("context", "contexts", "passage", "passages", "paragraph", "paragraphs", "article", "support", "story",
            "premise")  # fmt: skip
"""The columns that hold the subject of a question, as `plain_name` writes them."""
_ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "chatgpt", "bot"), "assistant"),
}
_TITLES = ("title", "name", "wikititle")
_TEXTS = ("text", "paragraphtext", "passagetext", "paragraph", "passage", "sentences", "content", "contents", "snippet",
          "body", "contexts")  # fmt: skip
_LEVELS = 6
_IMAGE = re.compile(r"<(?:image|img)[ _]?\d*>|<\|(?:image|vision_start)[^|>]*\|>|\[IMAGE\]|!\[[^\]]*\]\(")
_MARK = re.compile(
    r"<\|(?:im_start|im_end|start_header_id|eot_id|endoftext|user|assistant|system)\|>|\[/?INST\]|<start_of_turn>"
)
_FRAMES = (  # text before and after a question in a prompt
    (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\n",
        '\n\nRemember to put your answer on its own line after "Answer:".',
    ),  # DAPO-Math-17k
    ("Answer the given question. You must conduct reasoning inside <think>", "\n"),  # Search-R1, up to "Question: "
    ("Question: ", "\nYou FIRST think about the reasoning process as an internal monologue"),  # Agent-R1
    ("", " Let's think step by step and output the final answer"),  # verl's GSM8K and MATH
)


def text_of(value: Any, what: str) -> str:
    """Return the text of a value: a text, a number, or parts; "" for an empty one.

    Raises:
        Fault: for anything else.
    """
    if isinstance(value, str):
        return value if value.strip() else ""
    if is_number(value):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes) and value and all(map(_is_text_part, value)):
        return "".join(part["text"] for part in value)
    if value is None or (isinstance(value, Sequence) and not len(value)):
        return ""
    if isinstance(value, Sequence) and any(isinstance(part, Mapping) and _shows_image(part) for part in value):
        raise Fault(f"the {what} holds an image or a sound, and only texts can be shown")
    raise Fault(f"the {what} is no text but {type(value).__name__}", value)


def _is_text_part(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str) and part.get("type", "text") in _TEXT_TYPES


_TEXT_TYPES = ("text", "input_text", None)


def _shows_image(part: Mapping[str, Any]) -> bool:
    return any(word in str(part.get("type")) for word in ("image", "audio", "video")) or "image" in part


class PromptTurns(NamedTuple):
    """A prompt: the last question, the messages before it, and the turn of the assistant after it, "" for none."""

    before: tuple[Message, ...]
    asked: str
    stated: str


def conversation_of(value: Any) -> PromptTurns | None:
    """Return the conversation of a prompt, a text or messages; None for an empty one.

    Raises:
        Fault: as `_messages`, and if nothing is asked.
    """
    messages = _messages(value)
    if messages is None:
        text = text_of(value, "prompt") if isinstance(value, str) else ""
        return PromptTurns((), text, "") if text else None
    stated = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
    if not messages or messages[-1]["role"] != "user":
        raise Fault("the prompt has no turn of the user at its end, so that nothing is asked")
    return PromptTurns(tuple(messages[:-1]), messages[-1]["content"], stated)


def completion_of(value: Any) -> str:
    """Return the turn of the assistant that a conversation ends with, as in data for SFT; "" for none."""
    try:
        talk = conversation_of(value) if has_roles(value) else None
    except Fault:
        return ""
    return talk.stated if talk else ""


def has_roles(value: Any) -> bool:
    """Whether a value is a list of messages, or a text that holds such a list as JSON."""
    if isinstance(value, str):
        return value.lstrip().startswith("[{")
    first = value[0] if isinstance(value, Sequence) and not isinstance(value, bytes) and value else None
    return isinstance(first, Mapping) and bool(first.get("role") or first.get("from"))


def _messages(value: Any) -> list[Message] | None:
    """Return the messages of a conversation: `role` and `content`, or ShareGPT's `from` and `value`; None for no list.

    Raises:
        Fault: for a message without a known role or a text, and for turns with tools, which only an environment plays.
    """
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
        return None
    if all(map(_is_text_part, value)) and not any("role" in part for part in value):
        return [{"role": "user", "content": text_of(value, "prompt")}]
    messages: list[Message] = []
    for one in value:
        if not isinstance(one, Mapping) or not (one.get("role") or one.get("from")):
            raise Fault("the prompt holds something that is not a message with a role", one)
        role = str(one.get("role") or one.get("from")).lower()
        if role not in _ROLES or one.get("tool_calls"):
            raise Fault(f"the prompt holds a turn of {role[:20]!r} or of tools; system, user and assistant are shown")
        text = text_of(one.get("content", one.get("value")), "content of a message")
        if not text:
            raise Fault("the prompt holds a message without a text")
        messages.append({"role": _ROLES[role], "content": text})
    return messages


def unframed(prompt: str) -> str:
    """Return the question in the prompt of a program that is known."""
    for before, behind in _FRAMES:
        if prompt.startswith(before) and behind in prompt:
            inside = prompt.removeprefix(before).rpartition(behind)[0]
            return inside.rpartition("Question: ")[2]
    return prompt


def oddities(question: str) -> list[str]:
    """Return the peculiarities of a question that its author has to know: images, and marks of a chat template."""
    found = []
    if _IMAGE.search(question):
        found.append("name an image, which is not shown")
    if mark := _MARK.search(question):
        found.append(f"hold marks of a chat template, such as {mark[0]}")
    return found


def context_of(value: Any) -> str:
    """Return the paragraphs of a context as one text, titles before them; "" for an empty one.

    Read are a text, a list of texts, of pairs of a title and sentences or of objects with a title and a text, and the
    hub's objects of lists.

    Raises:
        Fault: for anything else.
    """
    return "\n\n".join(filter(None, _paragraphs(value, 0)))


def _paragraphs(value: Any, level: int) -> Iterator[str]:
    value = object_of(value)
    if isinstance(value, str) and value.startswith("[") and level == 0:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            pass
    if value is None or level > _LEVELS:
        return
    if isinstance(value, str):
        yield value.strip()
    elif isinstance(value, Mapping):
        keys = {plain_name(str(key)): one for key, one in value.items()}
        titles = next((keys[name] for name in _TITLES if keys.get(name)), None)
        texts = next((keys[name] for name in _TEXTS if keys.get(name)), None)
        if texts is None:
            named = ", ".join(map(str, value))[:100]
            raise Fault(f"the context is an object of a form that is not known (keys: {named})")
        if isinstance(titles, Sequence) and not isinstance(titles, str) and len(titles) == len(texts):
            yield from (_titled(title, text) for title, text in zip(titles, texts, strict=True))
        elif isinstance(texts, Sequence) and not isinstance(texts, str) and titles is None:
            yield from _paragraphs(texts, level + 1)
        else:
            yield _titled(titles, texts)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for one in value:
            if isinstance(one, list | tuple) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], list):
                yield _titled(*one)
            else:
                yield from _paragraphs(one, level + 1)
    else:
        raise Fault(f"the context is no text but {type(value).__name__}", value)


def _titled(title: Any, texts: Any) -> str:
    sentences = [texts] if isinstance(texts, str) else texts
    if not isinstance(sentences, Sequence) or not all(isinstance(one, str) for one in sentences):
        raise Fault("the context holds a paragraph that is not a text", texts)
    text = " ".join(filter(None, map(str.strip, sentences)))
    return f"{title}: {text}" if title else text
