"""Reads a large JSON file entry by entry, in memory that does not grow with it: the official files have up to 5 GB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError

_PIECE = 1 << 20
_DECODER = json.JSONDecoder()


def entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Give the entries of a file that holds one JSON list or object, each with its key; that of a list is its number.

    Raises:
        ConfigError: if the file cannot be read, or holds something else.
    """
    try:
        with path.open(encoding="utf-8") as file:
            yield from _entries(_Text(file))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or not JSON
        raise ConfigError(f"{path} cannot be read: {error}") from error


class _Text:
    """A text of which as much is held as the next value needs."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._held, self._at = "", 0

    def skip(self, signs: str) -> str:
        """Pass over white space, take the next sign, and check that it is one of these."""
        while True:
            rest = self._held[self._at :].lstrip() if self._at < len(self._held) else ""
            if rest:
                self._held, self._at = rest, 1
                if rest[0] not in signs:
                    raise ValueError(f"{rest[:20]!r} where one of {signs!r} should be")
                return rest[0]
            if not self._more():
                raise ValueError("it ends too early")

    def peek(self) -> str:
        """Return the next sign without taking it."""
        sign = self.skip('[]{}",:-0123456789tfn')
        self._at -= 1
        return sign

    def value(self) -> Any:
        """Take the next value."""
        self.peek()
        while True:
            try:
                value, stop = _DECODER.raw_decode(self._held, self._at)
            except ValueError:
                # It may go on behind what is held; twice as much each time, so that a long value is not read often.
                if not self._more(len(self._held)):
                    raise
                continue
            # A number may go on as well.
            if stop < len(self._held) or not self._more():
                self._at = stop
                return value

    def _more(self, size: int = _PIECE) -> bool:
        piece = self._file.read(max(_PIECE, size))
        self._held, self._at = self._held[self._at :] + piece, 0
        return bool(piece)


def _entries(text: _Text) -> Iterator[tuple[str, Any]]:
    opened = text.skip("[{")
    closing = "]" if opened == "[" else "}"
    if text.peek() == closing:
        return
    number = 0
    while True:
        key = str(number)
        if opened == "{":
            key = text.value()
            text.skip(":")
        yield key, text.value()
        number += 1
        if text.skip("," + closing) == closing:
            return
