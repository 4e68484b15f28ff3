"""Files and names that others made: their shape is checked once, where they are read, and they steer no terminal.

A shape is a type, a list `[shape]`, fields `{name: shape}` (a name with "?" may be missing, further fields may be
there), `Values(shape)` for a mapping with any names, a function that tells whether a value fits, or a tuple of
alternatives.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, AnyStr

from agent_gym.errors import quoted

MAX_BYTES = 64 << 20
"""Of a file of JSON or yaml that is read as a whole; trajectories are read line by line."""
MAX_LINE = 256 << 20
MAX_DEPTH = 100
MAX_NODES = 5_000_000
"""Of a yaml file with aliases, each of which counts as often as it is used."""
NONE = type(None)
_MOST = 1e100

_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
# The higher controls have no pictures, nor have marks that turn the direction of writing around (U+202E and the like),
# nor halves of surrogate pairs, which no terminal takes.
_MARKS = (range(0x80, 0xA0), range(0x2028, 0x202F), range(0x2066, 0x206A), range(0xD800, 0xE000))
_PICTURES |= dict.fromkeys(chain(*_MARKS), 0xFFFD)


def harmless(text: Any) -> str:
    """Return a text in which nothing steers the terminal."""
    return str(text).replace("\r\n", "\n").translate(_PICTURES)


def say(*words: Any, sep: str = " ") -> None:
    """Print words to stdout; names in them may come from files of others."""
    print(harmless(sep.join(map(str, words))))


@dataclass(frozen=True)
class Values:
    """The shape of a mapping with any names, whose values have one shape."""

    shape: Any


def number(value: Any) -> bool:
    """Whether this is a finite number that can be printed and drawn, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST <= value <= _MOST


def count(value: Any) -> bool:
    """Whether this is a whole number from 0 to 2^53."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1 << 53


def misfit(value: Any, shape: Any, where: str = "") -> str | None:
    """Return the fault in a value, for example `steps[3].reward is "high"`; None if it has the shape."""
    if isinstance(shape, Mapping):
        return _misfit_of_fields(value, shape, where)
    if isinstance(shape, Values):
        if not isinstance(value, dict):
            return f"{where} is {_short(value)}, not an object"
        found = (misfit(item, shape.shape, f"{where}[{_short(name)}]") for name, item in value.items())
        return next((wrong for wrong in found if wrong), None)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is {_short(value)}, not a list"
        (inner,) = shape
        if _is_types(inner) and all(isinstance(item, inner) for item in value):
            return None  # thousands of tokens
        found = (misfit(item, inner, f"{where}[{i}]") for i, item in enumerate(value))
        return next((wrong for wrong in found if wrong), None)
    if _is_types(shape):
        fits = isinstance(value, shape)
    elif isinstance(shape, tuple):
        problems = [misfit(value, one, where) for one in shape]
        if None in problems:
            return None
        inner = next((text for text in problems if text and not text.startswith(f"{where} is ")), None)
        return inner or f"{where} is {_short(value)}"
    else:
        fits = shape(value)
    return None if fits else f"{where or 'it'} is {_short(value)}"


def _misfit_of_fields(value: Any, shape: Mapping[str, Any], where: str) -> str | None:
    if not isinstance(value, dict):
        return f"{where or 'it'} is {_short(value)}, not an object"
    for name, inner in shape.items():
        name, optional = name.removesuffix("?"), name.endswith("?")
        path = f"{where}.{name}" if where else name
        if name not in value and not optional:
            return f"no {path}"
        if name in value and (wrong := misfit(value[name], inner, path)):
            return wrong
    return None


def _is_types(shape: Any) -> bool:
    return isinstance(shape, type) or (isinstance(shape, tuple) and all(isinstance(one, type) for one in shape))


def _short(value: Any) -> str:
    return "null" if value is None else harmless(quoted(value, 40))


def parse_json(text: str) -> Any:
    """Read JSON that others wrote; halves of surrogate pairs, which no file takes, become "?".

    Raises:
        ValueError: for anything that is not JSON, or is nested more than `MAX_DEPTH` deep.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_depth(value)
    return _encodable(value) if "\\u" in text else value


def check_depth(value: Any) -> None:
    """Raise `ValueError` for a value that is nested more than `MAX_DEPTH` deep or has too many parts."""
    level, nodes = [value], 0
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        if nodes > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} values")
        level = list(chain.from_iterable(map(_children, level)))
        if not level:
            return
    raise ValueError(f"nested more than {MAX_DEPTH} deep")


def _children(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ValueError: if it cannot be read, is not UTF-8, or is larger than `MAX_BYTES`, in words that do not name it.
    """
    try:
        with open_regular(path) as file:
            if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
                raise ValueError(f"it has {size:,} bytes; at most {MAX_BYTES:,} are read")
            return file.read(MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to read it; raises `ValueError` for a pipe, which one would wait for, and a device without end."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise ValueError("it is no regular file")


def lines_of(file: IO[AnyStr]) -> Iterator[AnyStr]:
    """Read lines, which may be parts of a file larger than the memory, such as one with holes or a compressed one.

    Raises:
        ValueError: for a line of more than `MAX_LINE` bytes, or characters of a text.
    """
    while line := file.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise ValueError(f"a line has more than {MAX_LINE:,} bytes")
        yield line


def read_json(path: Path, shape: Any = None) -> Any:
    """Return the content of a file of JSON.

    Raises:
        ValueError: as `read_text`, for text that is not JSON, and for a value without the shape.
    """
    value = parse_json(read_text(path))
    if shape is not None and (wrong := misfit(value, shape)):
        raise ValueError(wrong)
    return value


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries of a mapping that are numbers to draw."""
    return {name: value for name, value in values.items() if number(value)}


LeftOut = Callable[[str], object]
"""Takes the line that names a file, or an entry of one, that was left out, with the reason."""
