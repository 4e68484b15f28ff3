"""The policy's view of a function: its result as text, or the exception that it raised as one line.

A result has to be a text, or something that JSON can hold. Anything else (a generator, a coroutine, an object of a
class) has a repr with an address in it, which tells a policy nothing and is another one in each run.

An exception may quote facts that a policy must not read: folders, keys, addresses of memory. They are taken out.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import json
import math
import numbers
import pathlib
import re
import sys
import threading
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from agent_gym.errors import ConfigError, clipped, described, message_of, shown, where_raised, whole_number
from agent_gym.public import public_text

MAX_RESULT_CHARS = 16_384
"""Characters of a result of a function, of an MCP server's tool or of a wrapped world, unless `max_chars` says
otherwise. All answers to one turn share the 65,536 of `agent_gym.chat.MAX_OBSERVATION_CHARS`."""
_LEAST_CHARS = 100  # room for the mark of a cut
_MAX_ERROR_CHARS = 300
_MAX_DEPTH = 60
_MAX_NAMED = 200  # places that are remembered
_TEXTS = (datetime.date, datetime.time, datetime.timedelta, uuid.UUID, pathlib.PurePath)
_SECRETS = (
    (re.compile(r"(?<=://)[^/@\s'\"]+@"), "...@"),  # the user and password of an address
    (re.compile(r"\b(?:sk|pk|rk|hf|ghp|gho|xox[a-z]|glpat|AKIA)[-_A-Za-z0-9]{12,}"), "..."),
    (re.compile(r"(?i)(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}"), r"\1..."),
    (re.compile(r"(?i)((?:api[_-]?key|token|secret|passw(?:or)?d|pwd)['\"]?\s*[=:]\s*['\"]?)[^\s'\"&,;)]+"), r"\1..."),
)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_PATH = re.compile(r"(?<![\w:/.])(?:~|/|[A-Za-z]:[\\/])[^\s'\"<>|:*?,;()\[\]]*[\\/]([^\s'\"<>|:*?,;()\[\]\\/]*)")
_QUOTED_PATH = re.compile(r"(?P<mark>['\"])(?:~|/|[A-Za-z]:[\\/])[^'\"\n]*[\\/](?P<name>[^'\"\n\\/]*)(?P=mark)")


class NoText(Exception):
    """A value that cannot be shown to a policy."""


def checked_limit(max_chars: Any) -> int:
    """Return a limit of characters, which has to leave room for the mark of a cut; else `ConfigError`."""
    return whole_number("max_chars", max_chars, _LEAST_CHARS)


def cut_text(text: str, max_chars: int) -> str:
    """Return a text of at most so many characters; a mark at its end tells how much was cut off."""
    if len(text) <= max_chars:
        return text
    mark = f"\n[cut: the result has {len(text):,} characters, and its first {max_chars:,} are shown less this line]"
    return text[: max_chars - len(mark)] + mark


def as_text(value: Any, name: str, place: str = "") -> str:
    """Return the result of the function `name` as text: a dict or list as JSON, a number as Python has it.

    Dataclasses, models of pydantic, named tuples and rows of SQLite are objects of JSON; sets are sorted; a number that
    JSON does not know is a text ("NaN"); dates, UUIDs, paths and members of an enum are their texts.

    Raises:
        ConfigError: for anything else. It names the function and `place`, where that is.
    """
    if isinstance(value, str):
        return str.__str__(value)
    try:
        plain = plain_value(value)
    except NoText as wrong:
        within = "" if wrong.args[0] is value else f", with {shown(wrong.args[0])} in it"
        kinds = "a text, number, bool, None, dict, list, dataclass, pydantic model or agent_gym.ToolResult"
        where = f" ({place})" if place else ""
        raise ConfigError(f"tool {name!r} returned {shown(value)}{within}; return {kinds}{where}") from None
    if isinstance(plain, dict | list):
        return json.dumps(plain, ensure_ascii=False)
    return str(plain)


def plain_value(value: Any, depth: int = 0) -> Any:
    """Return a value in JSON's types; `NoText` with the part that it cannot."""
    if value is None or isinstance(value, bool | int) or type(value) is str:
        return value
    if isinstance(value, Enum):
        return plain_value(value.value, depth + 1)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        if depth and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return float(value)
    if depth > _MAX_DEPTH:  # it may contain itself
        raise NoText(value)
    if isinstance(value, _TEXTS):
        return str(value)
    if isinstance(value, decimal.Decimal | numbers.Complex):
        return str(value)
    return _plain_container(value, depth + 1)


def _plain_container(value: Any, depth: int) -> Any:
    if isinstance(value, type) or callable(getattr(value, "__next__", None)):  # an iterator is used up by being shown
        raise NoText(value)
    if dataclasses.is_dataclass(value):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return {name: plain_value(one, depth) for name, one in fields.items()}
    if callable(dump := getattr(value, "model_dump", None)):
        return plain_value(dump(), depth)
    if callable(names := getattr(value, "_asdict", None)):
        return plain_value(names(), depth)
    if isinstance(value, Mapping) or (callable(getattr(value, "keys", None)) and hasattr(value, "__getitem__")):
        return {_key(key): plain_value(value[key], depth) for key in value.keys()}  # noqa: SIM118 (a row of SQLite)
    if isinstance(value, set | frozenset):
        return sorted((plain_value(one, depth) for one in value), key=lambda one: (str(type(one)), str(one)))
    if isinstance(value, list | tuple | deque):
        return [plain_value(one, depth) for one in value]
    if type(value).__module__.partition(".")[0] in ("numpy", "torch") and callable(getattr(value, "tolist", None)):
        return plain_value(value.tolist(), depth)
    raise NoText(value)


def _key(key: Any) -> str:
    plain = plain_value(key, 1)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def error_text(error: BaseException, arguments: Any = None) -> str:
    """Return the policy's view of an exception: one line without paths, secrets and addresses of the machine.

    A path that the policy wrote itself, in the arguments of its call, stays.
    """
    text = _without_secrets(message_of(error))
    text = _ADDRESS.sub("0x...", text)
    written = repr(arguments)
    for pattern, group in ((_QUOTED_PATH, "name"), (_PATH, 1)):
        text = pattern.sub(lambda match, group=group: _base(match, group, written), text)  # type: ignore[misc]
    return clipped(f"Error: {type(error).__name__}" + (f": {text}" if text else ""), _MAX_ERROR_CHARS)


def _without_secrets(text: str) -> str:
    """Return a text as one line without secrets: the ones that `public_text` knows, and keys by the form they have."""
    text = public_text(" ".join(text.split()))
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def _base(match: re.Match[str], group: str | int, written: str) -> str:
    path = match[0].strip("'\"")
    if path in written:
        return match[0]
    mark = match["mark"] if group == "name" else ""
    return f"{mark}{match[group] or '...'}{mark}"


@dataclasses.dataclass(slots=True)
class Raised:
    """An exception of a function, by the line that raised it: the facts that its author needs."""

    tool: str
    error: str  # type and text, as they are
    place: str  # file:line
    told: str  # the policy's view of the first one
    count: int = 0

    def __str__(self) -> str:
        times = f"{self.count} times " if self.count > 1 else ""
        return f"tool {self.tool!r} raised {times}{self.error} ({self.place})"


_lock = threading.Lock()
_raised: dict[tuple[str, str, str], Raised] = {}


def note_raised(tool: str, error: BaseException, told: str) -> None:
    """Remember the exception of a function; the first one of a line of code is printed on stderr, with its place."""
    place = where_raised(error)
    key = (tool, type(error).__name__, place)
    with _lock:
        one, new = _raised.get(key), False
        if one is None:
            if len(_raised) >= _MAX_NAMED:
                return
            text = _without_secrets(described(error))
            one, new = Raised(tool, clipped(text, 300), place, told), True
            _raised[key] = one
        one.count += 1
    if new:
        cure = "raise agent_gym.EnvFailure for what the policy did not cause"
        line = f"agent-gym: {one}; the policy reads it as an error; {cure}"
        print(line.encode(errors="backslashreplace").decode(), file=sys.stderr, flush=True)


def raised_so_far() -> Sequence[Raised]:
    """Return the exceptions of this process's functions so far, by line."""
    with _lock:
        return [dataclasses.replace(one) for one in _raised.values()]


@contextmanager
def counted_raises() -> Iterator[None]:
    """Print one line on stderr about the calls in which functions of this process raised, if there were any."""
    before = Counter({(one.tool, one.error, one.place): one.count for one in raised_so_far()})
    try:
        yield
    finally:
        raised = [(one.count - before[one.tool, one.error, one.place], one) for one in raised_so_far()]
        if count := sum(times for times, _ in raised):
            calls = f"{count:,} tool {'call' if count == 1 else 'calls'} raised an exception that the policy read"
            _, most = max(raised, key=lambda pair: pair[0])
            line = f"agent-gym: {calls}; most often {most.error} of {most.tool!r} ({most.place})"
            print(line.encode(errors="backslashreplace").decode(), file=sys.stderr, flush=True)
