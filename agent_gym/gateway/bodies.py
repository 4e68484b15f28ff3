"""Bodies of requests that grow: the messages that were in an earlier body of the session are not parsed again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, NamedTuple

from agent_gym.chat import Message
from agent_gym.errors import described
from agent_gym.gateway.exchange import Asked, Refused, WireProtocol

_MOST = 4  # conversations of a session that are remembered
_DECODER = json.JSONDecoder()
_NEXT = re.compile(r"\s*([,\]])\s*")
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")  # of surrogate pairs


class _Known(NamedTuple):
    """The part of a body up to the end of its last message."""

    head: str
    start: int  # where the list of messages begins in it
    messages: list[Message]  # as they were read, without an opening that has a field of the body


class Bodies:
    """Reads the bodies of a session."""

    def __init__(self) -> None:
        self._known: list[_Known] = []

    def read(self, protocol: WireProtocol, content: bytes) -> tuple[dict[str, Any], Asked]:
        """Read a body; `Refused` if that cannot be done. Of one that grew the list of messages has the new ones."""
        text = content.decode("utf-8", "replace")
        try:
            found = self._read_news(protocol, text) or _read_whole(protocol, text)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Refused(400, f"the request cannot be read: {described(error)}") from error
        if not found[1].messages:
            raise Refused(400, "the request has no messages")
        return found

    def _read_news(self, protocol: WireProtocol, text: str) -> tuple[dict[str, Any], Asked] | None:
        """Read what follows the longest known part; None where that cannot be told apart, or is refused."""
        begin = re.search(rf'"{protocol.messages}"\s*:\s*\[\s*', text)
        if begin is None:
            return None
        fresh = _Known(text[: begin.end()], begin.end(), [])
        known = max([fresh, *(one for one in self._known if text.startswith(one.head))], key=lambda one: len(one.head))
        news: list[Any] = []
        end = last = len(known.head)
        try:
            while (after := _NEXT.match(text, end)) is None or after[1] == ",":
                if (after is None) != (end == known.start):
                    return None
                message, last = _DECODER.raw_decode(text, after.end() if after else end)
                news.append(_whole_pairs(message, text[end:last]))
                end = last
            rest = text[: known.start] + text[after.start(1) :]
            body = _whole_pairs(json.loads(rest), rest)
            if not isinstance(body, dict) or body.get(protocol.messages) != []:
                return None  # another list than that of the messages
            asked = protocol.read(body := {**body, protocol.messages: news})
        except (Refused, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None  # whose place is told by reading the whole body
        opening = int(bool(protocol.opening and body.get(protocol.opening)))
        if known.messages and known.messages[-1]["role"] == "assistant":
            return None  # which the first of the news may continue
        messages = [*known.messages, *asked.messages[opening:]]
        self._known = [one for one in self._known if one is not known][1 - _MOST :]
        self._known.append(_Known(text[:last], known.start, messages))
        return body, replace(asked, messages=[*asked.messages[:opening], *messages])


def _read_whole(protocol: WireProtocol, text: str) -> tuple[dict[str, Any], Asked]:
    body = _whole_pairs(json.loads(text), text)
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    return body, protocol.read(body)


def _whole_pairs(value: Any, text: str) -> Any:
    """JavaScript cuts a text in the middle of an emoji, and no tokenizer takes half of a surrogate pair."""
    if _HALVES.search(text):
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value
