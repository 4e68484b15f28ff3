"""Calls in XML-like tags, one for each argument.

    <tool_call>                                  Qwen3-Coder, Qwen3.5
    <function=add>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

    <tool_call>add                               GLM-4.5
    <arg_key>a</arg_key>
    <arg_value>1</arg_value>
    </tool_call>

Values have no types (typed.py). A value ends at its closing tag if an argument or the end of the call follows; tags in
pairs inside of a value, such as a whole call, are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_gym.errors import ConfigError, clipped, quoted
from agent_gym.formats.calls import ToolCall, read_json, skip_space, unfit
from agent_gym.formats.native import FoundCalls, NativeParser
from agent_gym.formats.traces import marks_of
from agent_gym.formats.typed import escaped, property_of, read_value, same, write_value

_MAX_FAILURES = 5  # after that many values or calls without an end a turn is given up, so that time stays linear


@dataclass(frozen=True)
class Tags:
    """The tags of a family.

    {name} is that of the tool, {number} that of the call in its turn, {key} the name of an argument, {type} a word for
    the type of its value.
    """

    call: str
    call_end: str
    key: str
    value_end: str
    before: str = ""  # written in front of each call, and `after` after it
    after: str = ""
    first: str = ""  # written in front of all calls of a turn, and `last` after them
    last: str = ""
    line: str = ""  # written after `call` and each argument
    pad: str = ""  # written around a value; one on each side is not a part of it
    text_type: str = ""  # the `{type}` of strings; "" for families without types
    other_type: str = ""
    cdata: bool = False  # whether values may be wrapped in <![CDATA[...]]>


class XmlCalls(NativeParser):
    """Tags around names and values; see `Tags` and families.py."""

    def __init__(self, family: str, tags: Tags, marks: Sequence[str], noise: Sequence[str] = (), end: str = "") -> None:
        self.tags = tags
        written = [one.strip() for one in (tags.before, tags.after, tags.first, tags.last)]
        super().__init__(family, marks, (*filter(None, written), *noise), end)
        pieces = (*re.split(r"\{\w+\}", tags.call), tags.call_end, *re.split(r"\{\w+\}", tags.key), tags.value_end)
        self.traces = marks_of((*self.marks, *self.noise, *pieces))
        self._call = re.compile(_pattern(tags.call, r"[^<>\"\s|{}\[\]()]+"))
        key = _pattern(tags.key, r"[^<>\"\n]+?")
        self._key = re.compile(key)
        self._either = re.compile(f"(?P<end>{re.escape(tags.value_end)})|{key}")

    def _scan(self, text: str) -> Iterator[FoundCalls]:
        position, failures = 0, 0
        while opened := self._call.search(text, position):
            start = opened.start()
            name = opened["name"].strip()
            try:
                arguments, stop = self._arguments(text, opened.end(), name)
                call = ToolCall(name, arguments)
            except _Broken as broken:
                end = text.find(self.tags.call_end, opened.end())
                stop = len(text) if end < 0 else end + len(self.tags.call_end)
                call = ToolCall(name, error=str(broken))
                failures += 1
                if failures > _MAX_FAILURES:
                    stop = len(text)
            yield FoundCalls(start, stop, call)
            position = stop

    def _arguments(self, text: str, place: int, name: str) -> tuple[dict[str, Any], int]:
        schema = self.tools.get(name)
        arguments: dict[str, Any] = {}
        end = self.tags.call_end
        state = _Unbalanced()
        while True:
            place = skip_space(text, place)
            if text.startswith(end, place):
                return arguments, place + len(end)
            key = self._key.match(text, place)
            if key is None:
                known = self.tags.key.format(key="NAME", type=self.tags.text_type).strip()
                seen = text[place : place + 20]
                raise _Broken(f"in a tool call {known} or {end} is expected, and not {seen!r}" if seen else _open(end))
            stop = self._value_end(text, key.end(), state)
            if stop < 0:
                raise _Broken(_open(self.tags.value_end))
            kind = key.groupdict().get("type")
            value = self._typed(text[key.end() : stop], kind, property_of(schema, key["key"]), schema)
            if not isinstance(value, str) and (reason := unfit(value)):
                raise _Broken(f"the value of {quoted(key['key'])} is {reason}")
            arguments[key["key"].strip()] = value
            place = stop + len(self.tags.value_end)

    def _in_argument(self, text: str) -> bool:
        return sum(1 if mark["end"] is None else -1 for mark in self._either.finditer(text)) > 0

    def _in_pairs(self, text: str) -> bool:
        """Whether tags in a value are in pairs; else they could pair with tags of other arguments."""
        depth = 0
        for mark in self._either.finditer(text):
            depth += 1 if mark["end"] is None else -1
            if depth < 0:
                return False
        return depth == 0

    def _value_end(self, text: str, start: int, state: _Unbalanced) -> int:
        """Return where the value at `start` ends; -1 if nothing closes it."""
        depth, first = 1, -1
        for mark in self._either.finditer(text, start):
            if mark["end"] is None:
                depth += 1
                continue
            ends = self._ends_here(text, mark.end())
            if ends and first < 0:
                first = mark.start()
                if state.seen > _MAX_FAILURES:
                    break
            if depth > 1:
                depth -= 1
            elif ends:
                return mark.start()
        state.seen += 1
        return first

    def _ends_here(self, text: str, place: int) -> bool:
        place = skip_space(text, place)
        return text.startswith(self.tags.call_end, place) or self._key.match(text, place) is not None

    def _typed(
        self, text: str, kind: str | None, schema: Mapping[str, Any] | None, root: Mapping[str, Any] | None
    ) -> Any:
        tags = self.tags
        if tags.pad:
            text = text.removeprefix(tags.pad).removesuffix(tags.pad)
        if tags.cdata and text.startswith("<![CDATA[") and text.endswith("]]>"):
            return text[9:-3].replace("]]]]><![CDATA[>", "]]>")
        if kind is None:
            return read_value(text, schema, root)
        if kind == tags.text_type:
            return read_value(text, {"type": "string"})
        try:
            return read_json(text)
        except ValueError as error:
            raise _Broken(f"a value is not valid JSON: {clipped(error)}") from None

    def render_calls(self, calls: Sequence[ToolCall], before: int = 0) -> str:
        tags = self.tags
        written = [self._write(call.name, call.arguments, number) for number, call in enumerate(calls, 1)]
        blocks = [f"{tags.before}{one}{tags.after}" for one in written]
        return f"{tags.first}{chr(10).join(blocks)}{tags.last}"

    def _write(self, name: str, arguments: Mapping[str, Any], number: int) -> str:
        tags, schema = self.tags, self.tools.get(name)
        head = tags.call.replace("{name}", name).replace("{number}", str(number))
        if not (match := self._call.match(head + tags.line + tags.call_end)) or match["name"] != name:
            raise ConfigError(
                f"the name of a tool is {name!r}; in the form of {self.family} it is a word without markup"
            )
        pieces = [head, tags.line]
        for key, value in arguments.items():
            pieces += [self._write_value(name, key, value, schema), tags.line]
        return "".join([*pieces, tags.call_end])

    def _write_value(self, name: str, key: str, value: Any, schema: Mapping[str, Any] | None) -> str:
        tags, known = self.tags, property_of(schema, key)
        kind = tags.text_type if isinstance(value, str) else tags.other_type
        head = tags.key.replace("{key}", key).replace("{type}", kind)
        text = write_value(value, {"type": "string"} if tags.text_type else known, schema)
        forms = [text]
        if isinstance(value, str):
            wrapped = "<![CDATA[" + value.replace("]]>", "]]]]><![CDATA[>") + "]]>"
            forms = [wrapped, escaped(value)] if tags.cdata else [text, escaped(value)]
        else:
            forms.append(re.sub(r"[<>]", lambda match: f"\\u{ord(match[0]):04x}", text))
        opening = tags.call.replace("{name}", name).replace("{number}", "1")
        for form in forms:
            if not self._in_pairs(form):
                continue
            written = f"{head}{tags.pad}{form}{tags.pad}{tags.value_end}"
            try:
                again, _ = self._arguments(opening + written + tags.line + tags.call_end, len(opening), name)
            except _Broken:
                continue
            if same(again, {key: value}):
                return written
        raise ConfigError(
            f"the argument {key!r} of {name} cannot be written in the form of {self.family}: {quoted(value)}"
        )


class _Broken(ValueError):
    """Why a call cannot be read."""


@dataclass
class _Unbalanced:
    """How many values of a call had tags that are not in pairs."""

    seen: int = 0


def _open(end: str) -> str:
    return f"the tool call is not closed by {end}"


def _pattern(tag: str, word: str) -> str:
    pieces = re.split(r"(\{name\}|\{number\}|\{key\}|\{type\}|\s+)", tag)
    named = {"{name}": f"(?P<name>{word})", "{key}": f"(?P<key>{word})", "{type}": r"(?P<type>\w+)", "{number}": r"\d+"}
    return "".join(named.get(piece) or (r"\s*" if piece.isspace() else re.escape(piece)) for piece in pieces if piece)
