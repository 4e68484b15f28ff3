"""Calls as Python writes them: `[add(a=1, b=2), weather(city="Rome")]`, of Llama 3.2 and 4, LFM2, Olmo 3, MiniCPM 3."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from agent_gym.errors import ConfigError, clipped
from agent_gym.formats.calls import ToolCall, skip_space, unfit
from agent_gym.formats.literals import Literals, quoted
from agent_gym.formats.native import FoundCalls, NativeParser
from agent_gym.formats.typed import property_of, read_value

_NAME = r"[^\s(),\[\]{}'\"=<>|`]+"
_CALL = re.compile(rf"(?P<name>{_NAME})\s*\(\s*")
_KEY = re.compile(rf"\s*(?P<key>{_NAME})\s*=\s*")
_SEPARATORS = re.compile(r"(?:[\s,;]+|```(?:python)?)*")
# Where a value ends whose quotes are not escaped: a key follows, or the end of the call.
_FOLLOWS = rf"(?=\s*(?:,\s*{_NAME}\s*=|\)\s*(?:[\],]|<|```|\n|\Z)))"
_LOOSE = {quote: re.compile(quote + _FOLLOWS) for quote in "'\""}
_BARE = re.compile(rf"(?<!\s){_FOLLOWS}")
_LITERALS = Literals()


class PythonicCalls(NativeParser):
    """Calls in Python's form, between marks or, in a list, alone at the beginning of a line.

    Args:
        family: its name in the table of families.
        opening: the mark in front of the calls; "" for a list alone.
        closing: the mark after them.
        brackets: whether the calls are written in a list.
        separator: the text between calls.
        bare: whether strings may have no quotes, as one template writes them.
        tags: marks that may come before a list alone.
    """

    def __init__(
        self,
        family: str,
        opening: str = "",
        closing: str = "",
        *,
        brackets: bool = True,
        separator: str = ", ",
        bare: bool = False,
        tags: Sequence[str] = (),
    ) -> None:
        marks = (opening.partition("\n")[0],) if opening else tuple(tags)
        self._closing = closing.rpartition("\n")[2]
        super().__init__(family, marks, (self._closing, *tags) if closing else tags)
        self.opening, self.closing, self.brackets, self.separator = opening, closing, brackets, separator
        self.bare = bare
        # After a bracket alone, or a name without its parenthesis: a call that was cut off or lost a character.
        call = rf"\s*(?:(?!\d){_NAME}(?:\s*[(=)]|\Z)|\Z)"
        before = "".join(f"{re.escape(tag)}|" for tag in tags)
        alone = rf"(?:{before}(?:^|(?<=\|>)))\[(?={call})|^\s*(?!\d){_NAME}\((?:\w+=)?(?=[^\n]*\)\]\s*\Z)"
        self._open = re.compile(re.escape(marks[0]) if opening else alone, re.MULTILINE)

    def _scan(self, text: str) -> Iterator[FoundCalls]:
        position = 0
        while opened := self._open.search(text, position):
            start = opened.start()
            place = opened.end() if self.opening or opened[0].endswith("[") else start
            found = self._block(text, start, place)
            yield from found
            position = max(found[-1].stop, opened.end())

    def _trace(self, text: str) -> int:
        """Also a call of a known tool within a line, [add(a=1)], or alone on one without brackets: `add(a=1)`."""
        if (place := super()._trace(text)) >= 0 or self.opening or not self.tools:
            return place
        names = "|".join(map(re.escape, self.tools))
        found = re.search(
            rf"\[\s*(?:{names})\(|^[\s>`]*(?:{names})\((?:\s*{_NAME}\s*=.*)?\)[\s`]*$", text, re.MULTILINE
        )
        return found.start() if found else -1

    def _block(self, text: str, start: int, place: int) -> list[FoundCalls]:
        """Read the calls of one block, at least one; each takes the text before it along."""
        found: list[FoundCalls] = []
        closing = self._closing
        place = _separators(text, place)
        if self.opening and text.startswith("[", place):
            place = _separators(text, place + 1)
        while True:
            done = text.startswith("]", place)
            stop = skip_space(text, place + 1) if done else place
            if closing and text.startswith(closing, stop):
                stop, done = stop + len(closing), True
            if done or place >= len(text):
                if not found:
                    found.append(FoundCalls(start, stop, ToolCall("", error="a list of tool calls is empty")))
                elif not done:
                    error = f"the tool calls are not closed by {closing or ']'}"
                    found.append(FoundCalls(start, stop, ToolCall("", error=error)))
                else:
                    found[-1] = found[-1]._replace(stop=stop)
                return found
            try:
                call, after = self._call(text, place)
            except ValueError as error:
                end = text.find(closing, place) if closing else -1
                stop = len(text) if end < 0 else end + len(closing)
                found.append(FoundCalls(start, stop, ToolCall("", error=f"the call is not valid: {clipped(error)}")))
                return found
            place = _separators(text, after)
            found.append(FoundCalls(start, place, call))
            start = place

    def _call(self, text: str, place: int) -> tuple[ToolCall, int]:
        opened = _CALL.match(text, place)
        if opened is None:
            raise ValueError(f"name(argument=value) is expected, and not {text[place : place + 20]!r}")
        name, place = opened["name"], opened.end()
        arguments: dict[str, Any] = {}
        while True:
            place = _separators(text, place)
            if text.startswith(")", place):
                break
            key = _KEY.match(text, place)
            if key is None:
                raise ValueError(f"in {name:.40}() argument=value is expected, and not {text[place : place + 20]!r}")
            arguments[key["key"]], place = self._value(text, key.end(), name, key["key"])
        reason = unfit(arguments) if arguments else None
        return (ToolCall(name, error=f"a value of {name:.40} is {reason}") if reason else ToolCall(name, arguments)), (
            place + 1
        )

    def _value(self, text: str, place: int, name: str, key: str) -> tuple[Any, int]:
        try:
            value, stop = _LITERALS.read(text, place)
            follows = text[skip_space(text, stop) :][:1] if stop >= len(text) else text[skip_space(text, stop)]
            if not isinstance(value, str) and not self.bare or follows in (",", ")") or _KEY.match(text, stop):
                return value, stop
            problem = f"{follows!r} follows a string"
        except (ValueError, IndexError) as error:
            problem = str(error)
        first = text[place : place + 1]
        if first in _LOOSE:
            end = _LOOSE[first].search(text, place + 1)
            if end is not None:
                return text[place + 1 : end.start()], end.end()
        elif self.bare and (end := _BARE.search(text, place)):
            schema = self.tools.get(name)
            return read_value(text[place : end.start()], property_of(schema, key), schema), end.start()
        raise ValueError(problem)

    def render_calls(self, calls: Sequence[ToolCall], before: int = 0) -> str:
        written = self.separator.join(map(self._write, calls))
        return f"{self.opening}{f'[{written}]' if self.brackets else written}{self.closing}"

    def _write(self, call: ToolCall) -> str:
        for word in (call.name, *call.arguments):
            if not re.fullmatch(_NAME, word):
                raise ConfigError(f"{word!r} is not a word; in the form of {self.family} names and arguments are words")
        return f"{call.name}({', '.join(f'{key}={quoted(value)}' for key, value in call.arguments.items())})"


def _separators(text: str, start: int) -> int:
    match = _SEPARATORS.match(text, start)
    return match.end() if match else start
