"""Calls in tags whose values nest: MiniMax M3.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="add">]<]minimax[>[<a>1]<]minimax[>[</a>]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

A special token comes before each tag. The name of an argument is its tag. An object has a tag per key, a list
one called `item` per entry, and other values are texts without types (typed.py). The model's chat template writes no
null and no empty object; JSON in the place of a value says both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_gym.errors import ConfigError, quoted
from agent_gym.formats.calls import ToolCall, skip_space, unfit, write_json
from agent_gym.formats.native import FoundCalls, NativeParser
from agent_gym.formats.typed import escaped, property_of, read_value, referred, same, types_of, write_value

_MAX_FAILURES = 5  # after that many calls without an end a turn is given up, so that time stays linear
_DEEPEST = 32  # levels of tags in a value
_ITEM = "item"


class NestedCalls(NativeParser):
    """Tags around names and values, each behind the same `prefix`, and the tag `block` around all calls of a turn."""

    def __init__(self, family: str, prefix: str, block: str) -> None:
        self.prefix = prefix
        self._first, self._last = f"{prefix}<{block}>", f"{prefix}</{block}>"
        self._end = f"{prefix}</invoke>"
        super().__init__(family, (self._first, f"{prefix}<invoke"), (self._last, self._end))
        at = re.escape(prefix)
        self._call = re.compile(rf'{at}<invoke\s+name="(?P<name>[^<>"|{{}}\[\]()\s]+)"\s*>')
        self._open = re.compile(rf"{at}<(?P<key>[^<>/\n][^<>\n]*)>")

    def _scan(self, text: str) -> Iterator[FoundCalls]:
        position, failures = 0, 0
        while opened := self._call.search(text, position):
            name = opened["name"]
            try:
                schema = self.tools.get(name)
                arguments, stop = self._children(text, opened.end(), len(text), self._end, schema, schema or {}, 0)
                if reason := unfit(arguments):
                    raise _Unread(f"an argument is {reason}")
                call = ToolCall(name, arguments)
            except _Unread as broken:
                end = text.find(self._end, opened.end())
                stop = len(text) if end < 0 else end + len(self._end)
                call = ToolCall(name, error=str(broken))
                failures += 1
                if failures > _MAX_FAILURES:
                    stop = len(text)
            yield FoundCalls(opened.start(), stop, call)
            position = stop

    def _children(
        self, text: str, place: int, stop: int, end: str, schema: Mapping[str, Any] | None, root: Mapping[str, Any],
        depth: int,
    ) -> tuple[Any, int]:  # fmt: skip
        """Read tags up to `end`, or up to `stop` if it is empty, as an object or a list, and return where they end."""
        if depth > _DEEPEST:
            raise _Unread(f"a value is nested more than {_DEEPEST} levels deep")
        schema = _resolved(schema, root)
        pairs: list[tuple[str, Any]] = []
        entries = schema.get("items") if isinstance(schema, Mapping) else None
        while True:
            place = skip_space(text, place)
            if place >= stop and not end:
                break
            if end and text.startswith(end, place):
                place += len(end)
                break
            opened = self._open.match(text, place, stop)
            if opened is None:
                seen = text[place : min(place + 20, stop)]
                raise _Unread(f"in a tool call <NAME> or {end or 'the end of a value'} is expected, and not {seen!r}")
            key = opened["key"]
            inside = self._value_end(text, opened.end(), stop, key)
            known = property_of(schema, key)
            if known is None and key == _ITEM and isinstance(entries, Mapping):
                known = entries
            pairs.append((key, self._value(text, opened.end(), inside, known, root, depth)))
            place = inside + len(self.prefix) + len(key) + 3
        names = [name for name, _ in pairs]
        allowed = types_of(schema, root) if schema is not None else None
        if depth and {*names} == {_ITEM} and (allowed is None or "array" in allowed or len(names) > 1):
            return [value for _, value in pairs], place
        if len({*names}) < len(names):
            raise _Unread(f"the argument {quoted(next(one for one in names if names.count(one) > 1))} is given twice")
        return dict(pairs), place

    def _value_end(self, text: str, start: int, stop: int, key: str) -> int:
        """Return where the value of a tag ends: tags of the same name in it are in pairs, or the first end counts."""
        opening, closing = f"{self.prefix}<{key}>", f"{self.prefix}</{key}>"
        first = place = text.find(closing, start, stop)
        if first < 0:
            raise _Unread(f"the tool call is not closed by {closing}")
        depth, inner = 1, text.find(opening, start, stop)
        while place >= 0:
            while 0 <= inner < place:
                depth, inner = depth + 1, text.find(opening, inner + 1, stop)
            depth -= 1
            if not depth:
                return place
            place = text.find(closing, place + 1, stop)
        return first

    def _value(
        self, text: str, start: int, stop: int, schema: Mapping[str, Any] | None, root: Mapping[str, Any], depth: int
    ) -> Any:
        found = _resolved(schema, root)
        allowed = types_of(found, root) if found is not None else None
        if allowed != {"string"} and self._open.match(text, skip_space(text, start), stop):
            return self._children(text, start, stop, "", schema, root, depth + 1)[0]
        if start == stop and allowed is not None and "string" not in allowed:
            return {} if "object" in allowed else [] if "array" in allowed else ""
        return read_value(text[start:stop], found, root)

    def _in_argument(self, text: str) -> bool:
        return text.count(f"{self.prefix}<") > text.count(f"{self.prefix}</") + 1  # the call is open

    def render_calls(self, calls: Sequence[ToolCall], before: int = 0) -> str:
        written = "".join(f"{self._write(call.name, call.arguments)}\n" for call in calls)
        return f"{self._first}\n{written}{self._last}"

    def _write(self, name: str, arguments: Mapping[str, Any]) -> str:
        head, schema = f'{self.prefix}<invoke name="{name}">', self.tools.get(name)
        if not self._call.fullmatch(head):
            form = f"in the form of {self.family} it is a word without markup"
            raise ConfigError(f"the name of a tool is {name!r}; {form}")
        pieces = [head]
        for key, value in arguments.items():
            pieces.append(self._argument(key, value, schema, head))
        return "".join([*pieces, self._end])

    def _argument(self, key: str, value: Any, schema: Mapping[str, Any] | None, head: str) -> str:
        """Write an argument in the first form that is read back as it: tags, and JSON where these cannot say it."""
        known, root = property_of(schema, key), schema or {}
        json = re.sub(r"[<>]", lambda match: f"\\u{ord(match[0]):04x}", write_json(value))
        forms = [value, escaped(value)] if isinstance(value, str) else [self._tags(value, known, root), json]
        for form in forms:
            written = self._tag(key, form)
            whole = head + written + self._end
            try:
                again, stop = self._children(whole, len(head), len(whole), self._end, schema, root, 0)
            except _Unread:
                continue
            if stop == len(whole) and same(again, {key: value}):
                return written
        raise ConfigError(f"the argument {key!r} cannot be written in the form of {self.family}: {quoted(value)}")

    def _tags(self, value: Any, schema: Mapping[str, Any] | None, root: Mapping[str, Any]) -> str:
        found = _resolved(schema, root)
        if isinstance(value, Mapping) and value:
            return "".join(self._tag(key, self._tags(one, property_of(found, key), root)) for key, one in value.items())
        if isinstance(value, list) and value:
            entries = found.get("items") if isinstance(found, Mapping) else None
            return "".join(self._tag(_ITEM, self._tags(one, entries, root)) for one in value)
        return write_value(value, found, root)

    def _tag(self, key: str, inside: str) -> str:
        return f"{self.prefix}<{key}>{inside}{self.prefix}</{key}>"


class _Unread(ValueError):
    """Why a call cannot be read."""


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema that a "$ref" into the root names, or the one of several that is no null; else the schema."""
    for _ in range(8):
        if not isinstance(schema, Mapping):
            return None
        if isinstance(place := schema.get("$ref"), str):
            schema = referred(place, root)
            continue
        parts = [one for one in schema.get("anyOf") or schema.get("oneOf") or () if isinstance(one, Mapping)]
        parts = [one for one in parts if one.get("type") != "null"]
        if len(parts) != 1 or parts[0].get("type") not in ("object", "array", None):
            return schema
        (schema,) = parts
    return None
