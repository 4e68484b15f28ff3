"""Literals as models write them in calls: Python's and JSON's words, strings in quotes or in special marks.

    "a", 'b', 5, -1.5e3, True, true, None, null, [1, 2], (1, 2), {"a": 1}, {a: <escape>b<escape>}

A reader by hand: `ast.literal_eval` takes neither `true` nor line breaks in strings nor strings in marks, and Python's
own parser fails on deep brackets with an error of memory.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gym.formats.calls import MAX_DEPTH, skip_space, write_json

_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z_]\w*")
_WORDS: Mapping[str, Any] = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_STRINGS = {quote: re.compile(rf"{quote}[^{quote}\\]*(?:\\.[^{quote}\\]*)*{quote}", re.DOTALL) for quote in "'\""}
_CLOSE = {"[": "]", "(": ")", "{": "}"}
_MAX_DIGITS = 4000  # Python's own limit for the digits of an integer is 4,300


class Literals:
    """A reader of literals.

    Args:
        marks: the delimiters of strings, apart from quotes: `<escape>` or `<|"|>` in Gemma's calls.
        bare_keys: whether keys of objects may have no quotes, up to the colon.
    """

    def __init__(self, marks: Sequence[str] = (), *, bare_keys: bool = False) -> None:
        self.marks, self.bare_keys = tuple(marks), bare_keys
        # A mark in a string is its end if it is where a string can end, or begin a key.
        self._ends = {mark: re.compile(rf"{re.escape(mark)}(?=\s*(?:[,:}}\]]|\Z))") for mark in marks}

    def read(self, text: str, start: int, depth: int = 0) -> tuple[Any, int]:
        """Return the literal at an index, and the index of its end.

        Raises:
            ValueError: with the reason.
        """
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        start = skip_space(text, start)
        first = text[start : start + 1]
        if first in _STRINGS:
            return self.string(text, start)
        if first in _CLOSE and first:
            return self._collection(text, start, depth)
        for mark, ends in self._ends.items():
            if text.startswith(mark, start):
                begin = start + len(mark)
                end = ends.search(text, begin)
                if end is None:
                    raise ValueError(f"a string is not closed by {mark}")
                return text[begin : end.start()], end.end()
        if number := _NUMBER.match(text, start):
            return _number(number[0]), number.end()
        word = _WORD.match(text, start)
        if word and word[0] in _WORDS:
            return _WORDS[word[0]], word.end()
        raise ValueError(f"{text[start : start + 20]!r} is not a value")

    def string(self, text: str, start: int) -> tuple[str, int]:
        """Return the string in quotes at an index, and the index of its end."""
        quoted = _STRINGS[text[start]].match(text, start)
        if quoted is None:
            raise ValueError(f"a string is not closed by {text[start]}")
        return unquoted(quoted[0]), quoted.end()

    def _collection(self, text: str, start: int, depth: int) -> tuple[Any, int]:
        opening = text[start]
        closing = _CLOSE[opening]
        items: list[Any] = []
        pairs: dict[str, Any] = {}
        place = skip_space(text, start + 1)
        while not text.startswith(closing, place):
            if opening == "{":
                key, place = self.key(text, place, depth)
                pairs[key], place = self.read(text, place, depth + 1)
            else:
                value, place = self.read(text, place, depth + 1)
                items.append(value)
            place = skip_space(text, place)
            if text.startswith(",", place):
                place = skip_space(text, place + 1)
            elif not text.startswith(closing, place):
                raise ValueError(f"{opening} is not closed by {closing}")
        return (pairs if opening == "{" else items), place + 1

    def key(self, text: str, start: int, depth: int = 0) -> tuple[str, int]:
        """Return the key at an index, and the index after its colon."""
        strings = text[start : start + 1] in _STRINGS or any(text.startswith(mark, start) for mark in self.marks)
        colon = text.find(":", start)
        if strings or not self.bare_keys:
            key, place = self.read(text, start, depth + 1)
            colon = skip_space(text, place)
        elif colon >= 0:
            key = text[start:colon].strip()
        if not text.startswith(":", colon) or not isinstance(key, str):
            raise ValueError("a key and a colon are missing")
        return key, colon + 1


def unquoted(text: str) -> str:
    """Decode a string in single or double quotes, with the escapes of Python and JSON; line breaks are text."""
    body = text[1:-1]
    if "\\" not in body:
        return _checked(body)
    if text[0] == '"':
        try:
            return _checked(json.loads(text, strict=False))
        except ValueError:
            pass  # an escape of Python's, \x41
    body = body.replace("\r", "\\r").replace("\n", "\\n") if "\\\n" not in body else body
    try:
        value = ast.literal_eval(f"{text[0] * 3}{body}{text[0] * 3}" if body[-1:] != text[0] else text)
    except (SyntaxError, ValueError, MemoryError):
        raise ValueError("a string has an escape that is none") from None
    # Python reads the two halves of a pair in \ud83d\ude00 apart.
    return _checked(value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if "\\u" in body else value)


def quoted(value: Any) -> str:
    """Write a value as a literal of Python; strings in double quotes, with the escapes that JSON has, too."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{write_json(str(key))}: {quoted(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(quoted, value)) + "]"
    return write_json(value) if isinstance(value, str) else repr(value)


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair") from None
    return text


def _number(text: str) -> int | float:
    if len(text) > _MAX_DIGITS:
        raise ValueError("a number is too large")
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return number
