"""Harmony, the form of gpt-oss: a turn is a row of messages on channels, and a call is a message to a function.

    <|channel|>analysis<|message|>I have to add.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>

The recipient comes before or after the channel. Messages on the analysis channel are thoughts; one there that is
addressed to a function does not run. The end `<|call|>` is an end-of-turn token, so that it may be missing.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress

from agent_gym.errors import clipped
from agent_gym.formats.calls import ToolCall, Turn, json_end, read_json, skip_space, with_arguments, write_json
from agent_gym.formats.native import FoundCalls, NativeParser

_RECIPIENT = re.compile(r"\bto=(?P<name>[^\s<]*)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(?P<name>\w*)")
_ENDS = re.compile(r"<\|(?:end|call|return)\|>")
_START, _BODY, _CALL = "<|start|>", "<|message|>", "<|call|>"
_FUNCTIONS = "functions."
# Words of a head that only calls have; a character of "<|channel|>" may be missing.
_MEANT = re.compile(r"<\|constrain\|>|commentary\s+json|\bjson\s*\Z")


class HarmonyParser(NativeParser):
    """Messages of gpt-oss; see the module."""

    def __init__(self) -> None:
        super().__init__("harmony", ("to=functions", "<|constrain|>"), (), _CALL)

    def parse(self, text: str) -> list[ToolCall]:
        return self.split(text).calls

    def split(self, text: str, prefill: str = "") -> Turn:
        texts: dict[str, list[str]] = {"analysis": [], "final": []}
        found = [one.call for one in self._scan(prefill + text if "<|channel|>" in prefill else text, texts)]
        if not found and not texts["final"] and (self._trace(text) >= 0) and not texts["analysis"]:
            found = [ToolCall("", error=self._no_call(text))]
        joined = {key: "\n".join(filter(None, (one.strip() for one in value))) for key, value in texts.items()}
        return Turn(joined["final"], found, joined["analysis"])

    def _scan(self, text: str, texts: dict[str, list[str]] | None = None) -> Iterator[FoundCalls]:
        position = 0
        starts = [*(match.start() for match in re.finditer(re.escape(_START), text)), len(text)]
        bodies = [*(match.start() for match in re.finditer(re.escape(_BODY), text)), len(text)]
        while position < len(text):
            opened = bodies[bisect_left(bodies, position)]
            after = starts[bisect_right(starts, position)]
            if after <= opened:  # no message, or a head without its message
                stop = after
                head, body, begin = text[position:stop], None, stop
            else:
                head, begin = text[position:opened], opened + len(_BODY)
                stop = self._end(text, begin, head, starts)
                body = text[begin:stop]
            ended = _ENDS.match(text, stop)
            place = ended.end() if ended else stop
            yield from self._message(head, body, position, place, texts)
            position = max(place, position + 1)

    def _end(self, text: str, begin: int, head: str, starts: Sequence[int]) -> int:
        """Return where a message ends; marks in the JSON of a call are text."""
        if _RECIPIENT.search(head):
            with suppress(ValueError):
                begin = json_end(text, skip_space(text, begin))
        started = starts[min(bisect_left(starts, begin), len(starts) - 1)]
        ended = _ENDS.search(text, begin, started)
        return ended.start() if ended else started

    def _message(
        self, head: str, body: str | None, start: int, stop: int, texts: dict[str, list[str]] | None
    ) -> Iterator[FoundCalls]:
        channel, recipient = _CHANNEL.search(head), _RECIPIENT.search(head)
        named = channel["name"] if channel else ""
        if recipient is None:
            if body is not None and (_FUNCTIONS in head or _MEANT.search(head)):
                error = "a call is written <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}"
                yield FoundCalls(start, stop, ToolCall("", error=error))
            elif texts is not None:
                words = head if channel is None else ""
                words = words.replace(_START, "").replace("<|end|>", "").strip()
                words = "" if words == "assistant" else words
                texts["analysis" if named == "analysis" else "final"] += [words, body or ""]
            return
        name = recipient["name"].removeprefix(_FUNCTIONS)
        yield FoundCalls(start, stop, self._call(name, body, named))

    def _call(self, name: str, body: str | None, channel: str) -> ToolCall:
        if body is None:
            return ToolCall(name, error="the tool call has no <|message|> with its arguments")
        if not name or name == "functions":
            return ToolCall("", error="the tool call names no function: to=functions.NAME")
        if channel == "analysis":
            return ToolCall(name, error="calls on the analysis channel do not run; write them on commentary")
        try:
            return with_arguments(name, read_json(body.strip()))
        except ValueError as error:
            return ToolCall(name, error=f"the arguments of {clipped(name)} are not valid JSON: {clipped(error)}")

    def render_calls(self, calls: Sequence[ToolCall], before: int = 0) -> str:
        messages = [
            f" to=functions.{call.name}<|channel|>commentary json{_BODY}{write_json(call.arguments)}{_CALL}"
            for call in calls
        ]
        return f"{_START}assistant".join(messages)
