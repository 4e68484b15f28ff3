"""An answer of an OpenAI-compatible server that comes piece by piece: server-sent events put together to one choice.

Somebody watches, or nobody would have asked for a stream: each piece is turned into tokens at once. Where the server
takes and gives token ids they are the sampled ones, elsewhere the piece is encoded by itself. The finished choice has
the form of an answer that came as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import urllib3

from agent_gym.chat import ChatRenderer

_DONE = "[DONE]"


def text_of_answer(content: Any) -> str:
    """Return the text of an answer; none at all is the empty text, and half of a surrogate pair a question mark.

    Raises:
        TypeError: if it is something else.
    """
    if content is not None and not isinstance(content, str):
        raise TypeError(f"the content is {content!r:.100}, not a text")
    # No tokenizer takes one, and JSON holds it.
    return (content or "").encode("utf-8", "replace").decode()


def is_stream(answer: urllib3.BaseHTTPResponse) -> bool:
    """Whether a server streams; some ignore that they were asked to, and answer as a whole."""
    return answer.headers.get("Content-Type", "").startswith("text/event-stream")


def read_events(answer: urllib3.BaseHTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the JSON of each event as it arrives.

    Args:
        answer: whose body has not been read.

    Raises:
        ValueError: if an event is no JSON object.
        urllib3.exceptions.HTTPError: if the connection breaks or falls silent.
    """
    rest = b""
    while piece := answer.read1():  # what is there, and not as much as a block holds
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            field, _, value = line.decode().strip().partition(":")
            if field != "data":  # a comment that keeps the connection alive, or the end of an event
                continue
            if value.strip() == _DONE:
                return
            event = json.loads(value)
            if not isinstance(event, dict):
                raise ValueError(f"{value[:300]!r} is no object")
            yield event


class StreamedChoice:
    """One choice, as far as it has come.

    Args:
        renderer: encodes texts.
        token_ids: whether the server gives ids.
        stop: strings that end a text; a server of ids looks for them itself.
    """

    def __init__(self, renderer: ChatRenderer, *, token_ids: bool, stop: Sequence[str]) -> None:
        self._renderer, self._token_ids, self._stop = renderer, token_ids, () if token_ids else tuple(stop)
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._text = ""
        self._finish_reason: str | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing is missing: the server said why it ended, or a stop string is there."""
        return self._finish_reason is not None

    @property
    def choice(self) -> dict[str, Any]:
        """The choice in the form of an answer that came as a whole."""
        if self._token_ids:
            found = {"token_ids": self._ids, "logprobs": {"token_logprobs": self._logprobs}}
        else:
            found = {"message": {"content": self._text}}
        return {**found, "finish_reason": self._finish_reason}

    def add(self, event: Mapping[str, Any]) -> list[int]:
        """Take an event and return its tokens.

        Raises:
            KeyError, TypeError, ValueError: if it is none of a completion, for example because it tells of an error.
        """
        if "error" in event:
            raise ValueError(f"the server failed: {event['error']}")
        tokens: list[int] = []
        for piece in event["choices"]:  # none in an event that counts tokens
            tokens += self._add_ids(piece) if self._token_ids else self._add_text(piece)
            self._finish_reason = self._finish_reason or piece.get("finish_reason")
        return tokens

    def _add_ids(self, piece: Mapping[str, Any]) -> list[int]:
        tokens = list(piece.get("token_ids") or ())
        self._ids += tokens
        if tokens:
            self._logprobs += piece["logprobs"]["token_logprobs"]
        return tokens

    def _add_text(self, piece: Mapping[str, Any]) -> list[int]:
        before, self._text = len(self._text), self._text + text_of_answer(piece["delta"].get("content"))
        ends = [self._text.find(stop) + len(stop) for stop in self._stop if stop in self._text]
        if ends:
            self._text, self._finish_reason = self._text[: min(ends)], "stop"
        new = self._text[before:]
        return self._renderer.encode_action(new, closed=False) if new else []
