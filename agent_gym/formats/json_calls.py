"""Calls as JSON: an object with name and arguments, or a list of them, between marks or alone.

    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>        Hermes, Qwen2.5, Qwen3
    [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]                 Mistral
    {"name": "add", "parameters": {"a": 1}}                              Llama 3

The JSON is read by a decoder from the opening mark on, so that marks in its strings are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_gym.errors import clipped
from agent_gym.formats.calls import (
    NOT_JSON,
    Keys,
    ToolCall,
    json_end,
    json_reader,
    named_call,
    problem,
    read_json,
    skip_space,
    unfit,
    write_json,
)
from agent_gym.formats.literals import Literals
from agent_gym.formats.native import FoundCalls, NativeParser
from agent_gym.formats.thoughts import plain_rest
from agent_gym.formats.traces import is_cut

_LITERALS = Literals()
_BETWEEN = re.compile(r"(?:[\s,;]+|```(?:json)?)*")


class JsonCalls(NativeParser):
    """JSON between marks.

    Args:
        family: its name in the table of families.
        opening: the mark in front of the JSON, or several; the first one is written.
        closing: the mark after it; "" where the end of the JSON is the end of the call.
        keys: the words for name and arguments.
        lists: whether one list holds all calls of a turn; else each object has its own marks.
        closed: whether a call without its closing mark is cut off.
        space: the text between marks and JSON.
        brackets: the marks around the objects of a list.
        ids: a form of ids with {number}, in families whose calls have one.
        python: whether arguments may be written as Python prints them, which some templates do.
        noise: other marks that may surround calls.
        end: see `NativeParser`.
    """

    def __init__(
        self,
        family: str,
        opening: str | Sequence[str],
        closing: str = "",
        *,
        keys: Keys | None = None,
        lists: bool = False,
        closed: bool = True,
        space: str = "",
        brackets: tuple[str, str] = ("[", "]"),
        ids: str = "",
        python: bool = False,
        noise: Sequence[str] = (),
        end: str = "",
    ) -> None:
        marks = (opening,) if isinstance(opening, str) else tuple(opening)
        super().__init__(family, marks, (closing, *noise) if closing else noise, end)
        self.opening, self.closing, self.keys = marks[0], closing, keys or Keys()
        self.lists, self.closed, self.space = lists, closed and bool(closing), space
        self.brackets, self.ids, self.python = brackets, ids, python
        self._opening = re.compile("|".join(map(re.escape, marks)))
        self._from_json = json_reader()

    def parse(self, text: str) -> list[ToolCall]:
        if self.closing and len(self.marks) == 1:  # nearly all turns end here, in a third of the time
            if self.opening not in text:
                return super().parse(text)
            rest = plain_rest(text)
            if rest is not None and (calls := self._plain_calls(rest)):
                return calls
        return super().parse(text)

    def _plain_calls(self, text: str) -> list[ToolCall] | None:
        """Return the calls of a turn in which each is one object with two keys between its marks; else None."""
        calls = []
        name_key, key = self.keys[:2]
        *closed, rest = text.split(self.closing)
        if self.opening in rest:
            return None
        for part in closed:
            _, opened, body = part.partition(self.opening)
            if not opened:
                continue
            try:
                value = self._from_json(body, allow_inf_nan=False)
            except NOT_JSON:
                return None
            if type(value) is not dict or len(value) != 2 or type(name := value.get(name_key)) is not str or not name:
                return None
            if type(arguments := value.get(key)) is not dict:
                return None
            for one in arguments.values():
                if type(one) is not str and type(one) is not int and unfit(one):
                    return None
            calls.append(ToolCall(name, arguments))
        return calls

    def _scan(self, text: str) -> Iterator[FoundCalls]:
        position, end, size, closing = 0, 0, len(self.closing), self.closing
        while opened := self._opening.search(text, position):
            start, begin = opened.span()
            if end >= 0:  # else no closing mark is left
                end = text.find(closing, begin) if size else -1
            if end < 0 and self.closed:
                error = f"the tool call is not closed by {closing}"
                yield FoundCalls(start, len(text), ToolCall("", error=error))
                return
            if end >= 0:
                try:
                    value = self._from_json(text[begin:end], allow_inf_nan=False)
                except NOT_JSON:
                    pass  # several values, a mark in a string, or no JSON
                else:
                    position = end + size
                    yield from self._calls(start, position, value)
                    continue
            found = self._values(text, start, begin, end)
            yield from found
            position = max(found[-1].stop, begin)

    def _values(self, text: str, start: int, begin: int, end: int) -> list[FoundCalls]:
        """Read value after value up to the closing mark; at least one call."""
        found: list[Any] = []
        place, stop, size = begin, -1, len(self.closing)
        limit = len(text) if end < 0 else end + size  # where a broken block ends
        reason = ""
        while stop < 0:
            place = _skip(text, place)
            if size and text.startswith(self.closing, place):
                stop = place + size
            elif text[place : place + 1] not in ("{", "[") or (place > begin and self._opening.match(text, place)):
                stop = place
                reason = problem(text[begin : limit - size]) if self.closed or not found else ""
            else:
                try:
                    value, place = self._value(text, place)
                    found.append(value)
                except ValueError as broken:
                    reason, stop = clipped(broken), max(limit, place)
        if reason and self.closed and not found:
            reason = problem(text[begin : limit - size])
        if reason:
            stop = max(limit, place)
        if self.closed and not reason and not (size and text.startswith(self.closing, stop - size)):
            reason = f"the tool call is not closed by {self.closing}"
        calls = [call for value in found for call in self._calls(start, stop, value)]
        if reason or not calls:
            error = f"the tool call is not valid JSON: {reason}" if reason else self.keys.form
            calls.append(FoundCalls(start, stop, ToolCall("", error=error)))
        return calls

    def _value(self, text: str, place: int) -> tuple[Any, int]:
        try:
            stop = json_end(text, place)
            return read_json(text[place:stop]), stop
        except ValueError:
            if not self.python:
                raise
        return _LITERALS.read(text, place)

    def _calls(self, start: int, stop: int, value: Any) -> Iterator[FoundCalls]:
        if self.lists and isinstance(value, list) and value:
            for one in value:
                yield FoundCalls(start, stop, self.call_of(one))
        else:
            yield FoundCalls(start, stop, self.call_of(value))

    def call_of(self, value: Any) -> ToolCall:
        """Make a call of a decoded JSON value."""
        return named_call(value, self.keys)

    def value_of(self, call: ToolCall, number: int) -> dict[str, Any]:
        """Make the JSON object of a call."""
        written: dict[str, Any] = {self.keys.name: call.name, self.keys.arguments: call.arguments}
        key, one = self.keys.id, call.id or self.new_id(call.name, number)
        if key is None or one is None:
            return written
        return {key: one, **written} if self.keys.id_first else {**written, key: one}

    def new_id(self, name: str, number: int) -> str | None:
        return self.ids.format(name=name, number=number) if self.ids else None

    def render_calls(self, calls: Sequence[ToolCall], before: int = 0) -> str:
        written = [write_json(self.value_of(call, before + i)) for i, call in enumerate(calls)]
        opening, closing = self.brackets
        separator = ", " if opening == "[" else f",{opening[1:]}"
        blocks = [f"{opening}{separator.join(written)}{closing}"] if self.lists else written
        return "\n".join(f"{self.opening}{self.space}{block}{self.space}{self.closing}" for block in blocks)


class HermesParser(JsonCalls):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5 and Qwen3."""

    def __init__(self) -> None:
        super().__init__("hermes", "<tool_call>", "</tool_call>", space="\n")

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        listing = "\n".join(write_json(tool["function"]) for tool in tools)
        example = '<tool_call>\n{"name": <tool name>, "arguments": <arguments as a JSON object>}\n</tool_call>'
        return f"You may call these tools:\n{listing}\n\nWrite each call as:\n{example}"


class FirstCallParser(HermesParser):
    """Of several calls the first one counts."""

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.stop = stop

    def parse(self, text: str) -> list[ToolCall]:
        return super().parse(text)[:1]


class PlainJson(JsonCalls):
    """JSON without marks, at the beginning of a line: Llama 3's objects, xLAM's lists.

    A value without any of the keys of a call is an answer in JSON.

    Args:
        family: its name in the table of families.
        tags: marks that may come before it.
        noise: other marks around calls.
        separator: between several objects.
    """

    def __init__(
        self,
        family: str,
        *,
        keys: Keys | None = None,
        lists: bool = False,
        tags: Sequence[str] = (),
        noise: Sequence[str] = (),
        separator: str = "; ",
        end: str = "",
    ) -> None:
        super().__init__(family, tags or "\0", keys=keys, lists=lists, noise=noise, end=end)
        self.marks, self.tags, self.separator = tuple(tags), tuple(tags), separator
        marks = "".join(f"{re.escape(tag)}|" for tag in tags)
        # A list without its first brace, or its own bracket, has lost a character.
        bracket = r"\[(?=\s*(?:\{|\"|\Z))|\{(?=\s*\")" if lists else r"\{"
        # After a bracket alone: a call that was cut off.
        self._begin = re.compile(rf"(?P<tag>{marks}(?:^|(?<=\|>))(?={bracket})[ \t]*)", re.MULTILINE)
        self._brackets = ("[", "{") if lists else ("{",)
        words = {self.keys.name, self.keys.arguments, *self.keys.also, "name", "arguments", "parameters", "function"}
        self._words = words

    def _scan(self, text: str) -> Iterator[FoundCalls]:
        position, failures = 0, 0
        while opened := self._begin.search(text, position):
            start = opened.start()
            tagged = bool(opened["tag"].strip())
            place = skip_space(text, opened.end())
            position = max(opened.end(), start + 1)
            if not text.startswith(self._brackets, place):
                if tagged:
                    error = f"{opened['tag']} is not followed by {' or '.join(self._brackets)}"
                    yield FoundCalls(start, position, ToolCall("", error=error))
                continue
            while text.startswith(self._brackets, place):
                try:
                    stop = json_end(text, place)
                    value = read_json(text[place:stop])
                except ValueError as error:
                    if tagged or self._means_a_call(text[place : place + 2000]):
                        call = ToolCall("", error=f"the tool call is not valid JSON: {clipped(error)}")
                        yield FoundCalls(start, len(text), call)
                        return
                    failures += 1
                    if failures > 20:  # a megabyte of brackets
                        return
                    break
                if not tagged and not self._is_call(value):
                    position = max(position, stop)
                    break
                yield from self._calls(start, stop, value)
                position = stop
                place = _skip(text, stop)
                start = place

    def _trace(self, text: str) -> int:
        place = super()._trace(text)
        return 0 if place < 0 and is_cut(text) else place

    def _is_call(self, value: Any) -> bool:
        values = value if isinstance(value, list) else [value]
        return any(isinstance(one, dict) and not self._words.isdisjoint(map(str.lower, one)) for one in values)

    def _means_a_call(self, text: str) -> bool:
        """Whether a text that is not JSON has words of a call, or is cut off before it could."""
        if any(f'{word}"' in text or f'"{word}' in text for word in self._words):
            return True
        begun = "".join(text.split())
        return any(f'[{{"{word}"'.startswith(begun) or f'{{"{word}"'.startswith(begun) for word in self._words)

    def render_calls(self, calls: Sequence[ToolCall], before: int = 0) -> str:
        written = [write_json(self.value_of(call, before + i)) for i, call in enumerate(calls)]
        return f"[{', '.join(written)}]" if self.lists else self.separator.join(written)


class TupleCalls(JsonCalls):
    """Objects whose only key is the name: `[{"add": {"a": 1}}]`, the form of Apertus."""

    def _plain_calls(self, text: str) -> None:
        return None

    def call_of(self, value: Any) -> ToolCall:
        if not isinstance(value, dict) or len(value) != 1:
            return ToolCall("", error="a tool call is a JSON object with one key, the name of the tool")
        ((name, arguments),) = value.items()
        return named_call({"name": name, "arguments": arguments}, Keys())

    def value_of(self, call: ToolCall, number: int) -> dict[str, Any]:
        return {call.name: call.arguments}


class OpenAICalls(JsonCalls):
    """`{"id", "type": "function", "function": {"name", "arguments"}}`, the form of Falcon 3 and Monostich."""

    def value_of(self, call: ToolCall, number: int) -> dict[str, Any]:
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id or f"call{number:05d}", "type": "function", "function": function}


def _skip(text: str, start: int) -> int:
    """Return the index after white space, commas, semicolons and marks of a code block."""
    match = _BETWEEN.match(text, start)
    return match.end() if match else start
