"""Calls as a head with the name, and the arguments as one JSON object.

[TOOL_CALLS]add[ARGS]{"a": 1}                                                      Mistral
<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>                       DeepSeek V3.1
<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>   Kimi K2
<|start_function_call>call:add{a:1,b:<escape>x<escape>}<end_function_call>         Gemma, in its own literals
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_gym.errors import ConfigError, clipped
from agent_gym.formats.calls import ToolCall, json_end, read_json, skip_space, unfit, with_arguments, write_json
from agent_gym.formats.literals import Literals
from agent_gym.formats.native import FoundCalls, NativeParser
from agent_gym.formats.traces import marks_of

_WORD = r"[^<>\[\]{}()\"'\s|\uff5c]+?"
_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\n?")
_FENCE_END = re.compile(r"\s*```")
_MAX_FAILURES = 20


class HeadedCalls(NativeParser):
    """A head with the name, then the arguments.

    Args:
        family: its name in the table of families.
        head: how a call begins, with {name} and, in families that have one, {id}.
        tail: how it ends; it may be missing where the arguments are whole.
        marks: the openings of calls.
        first: written in front of all calls of a turn, `last` after them.
        fence: whether the arguments are written as a block ```json.
        pattern: how a call begins, for reading, where that is more than `head`; with groups `name` and `id`.
        between: written between calls.
        pad: written between head, arguments and tail.
        ids: a form of ids with {name} and {number}.
    """

    def __init__(
        self,
        family: str,
        head: str,
        tail: str,
        marks: Sequence[str],
        *,
        first: str = "",
        last: str = "",
        fence: bool = False,
        pattern: str = "",
        between: str = "",
        ids: str = "",
        noise: Sequence[str] = (),
        end: str = "",
    ) -> None:
        around = [one.strip() for one in (first, last, tail)]
        super().__init__(family, marks, (*filter(None, around), *noise), end)
        self.head, self.tail, self.first, self.last = head, tail, first, last
        self.fence, self.between, self.ids = fence, between, ids
        self.traces = marks_of((*self.marks, *self.noise, *re.split(r"\{\w+\}", head)))
        self._head = re.compile(pattern or _pattern(head))

    def _scan(self, text: str) -> Iterator[FoundCalls]:
        position, failures = 0, 0
        while opened := self._head.search(text, position):
            name, number = opened["name"].strip(), opened.groupdict().get("id")
            place = opened.end()
            if fence := _FENCE.match(text, place):
                place = fence.end()
            try:
                arguments, position = self._arguments(text, place)
                call = with_arguments(name, arguments)
                call.id = number.strip() if number else None
            except ValueError as error:
                failures += 1
                after = self._head.search(text, place) if failures <= _MAX_FAILURES else None
                position = after.start() if after else len(text)
                call = ToolCall(name, error=f"the arguments of {clipped(name)} are not valid: {clipped(error)}")
            if fence and (closing := _FENCE_END.match(text, position)):
                position = closing.end()
            after_space = skip_space(text, position)
            if self.tail.strip() and text.startswith(self.tail.strip(), after_space):
                position = after_space + len(self.tail.strip())
            yield FoundCalls(opened.start(), position, call)

    def _arguments(self, text: str, place: int) -> tuple[Any, int]:
        place = skip_space(text, place)
        try:
            stop = json_end(text, place)
        except ValueError as error:
            raise ValueError(str(error) if place < len(text) else "a JSON object is missing") from None
        return read_json(text[place:stop]), stop

    def new_id(self, name: str, number: int) -> str | None:
        return self.ids.format(name=name, number=number) if self.ids else None

    def render_calls(self, calls: Sequence[ToolCall], before: int = 0) -> str:
        written = [self._write(call, before + i) for i, call in enumerate(calls)]
        return f"{self.first}{self.between.join(written)}{self.last}"

    def _write(self, call: ToolCall, number: int) -> str:
        made = self.new_id(call.name, number) or ""
        # An id of another family's form may not have the name in it that Kimi's has.
        heads = [self.head.replace("{id}", one).replace("{name}", call.name) for one in (call.id or made, made)]
        found = [(one, self._head.search(one + "\n{")) for one in heads]
        head = next((one for one, match in found if match and match["name"].strip() == call.name), None)
        if head is None:
            raise ConfigError(
                f"the name of a tool is {call.name!r}; in the form of {self.family} it is a word without markup"
            )
        body = self._write_arguments(call.arguments)
        return head + (f"```json\n{body}\n```" if self.fence else body) + self.tail

    def _write_arguments(self, arguments: Mapping[str, Any]) -> str:
        return write_json(arguments)


class FunctionaryCalls(HeadedCalls):
    """`>>>NAME` and a line with the arguments; `>>>all` is followed by words. The prompt may have written `>>>`."""

    def __init__(self, family: str) -> None:
        pattern = rf"(?:\A\s*|>>>)(?!all\s)(?P<name>{_WORD})\n(?=\s*\{{)"
        super().__init__(family, ">>>{name}\n", "", (">>>",), pattern=pattern)

    def _trace(self, text: str) -> int:
        match = re.search(rf">>>(?!all\s)|^[>\w]?[>\w]?>?(?!all\s){_WORD}\n\s*\{{\s*[\"}}]", text, re.MULTILINE)
        return match.start() if match else -1

    def _content(self, text: str, found: Sequence[FoundCalls]) -> str:
        return super()._content(text, found).removeprefix("all\n")


class GemmaCalls(HeadedCalls):
    """`call:NAME{key:value,...}` between marks, strings in special marks: Gemma 4, functiongemma.

    Args:
        family: its name in the table of families.
        opening: the mark in front of `call:`.
        closing: the mark after the arguments.
        quote: the mark around strings.
    """

    def __init__(self, family: str, opening: str, closing: str, quote: str) -> None:
        pattern = rf"{re.escape(opening)}\s*call:\s*(?P<name>[^{{}}\s<>]+)\s*(?=\{{)"
        super().__init__(family, opening + "call:{name}", closing, [opening], pattern=pattern)
        self.quote = quote
        self._literals = Literals((quote,), bare_keys=True)

    def _arguments(self, text: str, place: int) -> tuple[Any, int]:
        value, stop = self._literals.read(text, place)
        if reason := unfit(value):
            raise ValueError(reason)
        return value, stop

    def _in_argument(self, text: str) -> bool:
        return text.count(self.quote) % 2 == 1

    def _write_arguments(self, arguments: Mapping[str, Any]) -> str:
        written = f"{{{','.join(f'{self._key(key)}:{self._write_value(one)}' for key, one in arguments.items())}}}"
        return written

    def _key(self, key: str) -> str:
        return key if re.fullmatch(r"[^\W\d]\w*", key) else self._text(key)

    def _write_value(self, value: Any) -> str:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return f"{{{','.join(f'{self._key(key)}:{self._write_value(one)}' for key, one in value.items())}}}"
        return f"[{','.join(map(self._write_value, value))}]" if isinstance(value, list | tuple) else write_json(value)

    def _text(self, text: str) -> str:
        if self.quote not in text and self.tail not in text:
            return f"{self.quote}{text}{self.quote}"
        return write_json(text).replace("<", "\\u003c")  # the reader takes JSON strings, too


def _pattern(head: str) -> str:
    pieces = re.split(r"(\{name\}|\{id\}|\s+)", head)
    named = {"{name}": rf"(?P<name>{_WORD})", "{id}": rf"(?P<id>{_WORD})"}
    return "".join(named.get(piece) or (r"\s*" if piece.isspace() else re.escape(piece)) for piece in pieces if piece)
