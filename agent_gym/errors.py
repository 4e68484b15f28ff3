"""The errors of agent_gym, by whose fault they are: the user's (`ConfigError`) or the machinery's.

The policy's mistakes (bad JSON, an unknown tool, a wrong answer) are observations. A failed machine must never look
like a wrong answer, because a reward of 0 teaches and a crash must not.
"""

from __future__ import annotations

import difflib
import errno
import inspect
import operator
import os
import shutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType
from typing import Any

from agent_gym.dependencies import install_command

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The error numbers of an `OSError` for a disk or file-size limit that is reached."""
_NOT_THE_USERS = {"agent_gym", "gymnasium", *sys.stdlib_module_names}


class AgentGymError(Exception):
    """Base of every error that agent_gym raises on purpose."""


class ConfigError(AgentGymError, ValueError):
    """A setting or argument that cannot work. The message names the value, the allowed ones and the cure."""


class EnvFailure(AgentGymError, RuntimeError):
    """The machinery of an environment broke (a dead sandbox, a missing index).

    A function that is a tool raises it for faults that the policy did not cause; any other exception of it is an answer
    that the policy reads. The episode it happens in is marked failed, its reward is NaN, and it is left out of the
    update.
    """


class RolloutError(AgentGymError, RuntimeError):
    """A whole rollout cannot continue, for example because every one of its episodes failed."""


def message_of(error: BaseException) -> str:
    """Return the text of an error, also of one whose `__str__` raises or returns no text."""
    try:
        return str.__str__(str(error))
    except BaseException as broken:  # it is the user's code, and an error in it must not hide the first one
        return f"(no text: its __str__ raised {type(broken).__name__})"


def described(error: BaseException) -> str:
    """Return type and text of an error."""
    return f"{type(error).__name__}: {message_of(error)}"


def causes(error: BaseException) -> list[BaseException]:
    """Return the explicit causes (`raise ... from`) of an error, the innermost first, and then the error."""
    errors: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is one for one in errors):
        errors.insert(0, cause)
        cause = cause.__cause__
    return errors


def where_raised(error: BaseException) -> str:
    """Return "file:line" of the innermost frame outside of agent_gym, gymnasium and the standard library.

    The cause comes first: where a tool broke says more than where that was noticed. Without such a frame it is the
    innermost of all, and without a traceback "".
    """
    places = [[*traceback.walk_tb(one.__traceback__)] for one in causes(error)]
    users = next((mine[-1] for frames in places if (mine := [one for one in frames if _is_users(one[0])])), None)
    innermost = users or next((frames[-1] for frames in places[::-1] if frames), None)
    return f"{innermost[0].f_code.co_filename}:{innermost[1]}" if innermost else ""


def _is_users(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_USERS


def require(module: str, extra: str) -> Any:
    """Import an optional package; a `ConfigError` names the pip extra that brings it, if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(f"this needs the package {module!r}: {install_command(extra)} ({error})") from error


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a setting that counts something, an integer of Python or numpy from `least` to `most`, as an int.

    Raises:
        ConfigError: for anything else, which names the value and the allowed ones.
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} is {quoted(value)}; it must be a whole number {allowed}")
    return number


def one_of(name: str, value: Any, allowed: Iterable[Any], more: str = "") -> Any:
    """Return a setting that is one of some values; for another a `ConfigError` lists these, and then says `more`."""
    known = [*allowed]
    if value not in known:
        raise ConfigError(f"{name} is {quoted(value)}; allowed: {', '.join(map(str, known))}{more}")
    return value


def some_of(name: str, values: Any, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return a setting that is some of the allowed texts, in their order; `ConfigError` for none or unknown ones."""
    if isinstance(values, str) or not values or not set(values) <= set(allowed):
        example = tuple(allowed[:2])
        raise ConfigError(f"{name} is {quoted(values)}; allowed: some of {', '.join(allowed)}, for example {example}")
    return tuple(one for one in allowed if one in values)


def only_embedded(name: str, value: Any, data: Any) -> None:
    """Raise `ConfigError` if a setting of generated tasks was chosen for other data."""
    if value is not None and data != "embedded":
        raise ConfigError(f"{name} is {value!r}, but only data='embedded' has it, and data is {data!r}; leave one out")


def at_difficulty(difficulty: int | None, ladder: Sequence[Mapping[str, Any]], **given: Any) -> dict[str, Any]:
    """Return the settings of a difficulty, 1 to 5 for the rungs of a ladder, or, without one, the given ones.

    Args:
        difficulty: None for no difficulty.
        ladder: settings by default, then of each difficulty.
        given: the caller's choices, by name; None for settings without a choice.

    Raises:
        ConfigError: if the difficulty does not exist, or something that it sets was chosen, too.
    """
    rung = ladder[0 if difficulty is None else whole_number("difficulty", difficulty, 1, len(ladder) - 1)]
    chosen = {name: value for name, value in given.items() if value is not None}
    if difficulty is not None and (both := chosen.keys() & rung):
        name = min(both)
        raise ConfigError(f"difficulty={difficulty} sets {name}, and {name} is {quoted(chosen[name])}; leave one out")
    return {**dict.fromkeys(given), **rung, **chosen}


def unknown_arguments(made: type, given: Iterable[str]) -> str:
    """Name the arguments that a class does not take, the arguments that it takes, and near misses.

    Its constructors pass unknown arguments on as `**kwargs`.
    """
    allowed: dict[str, None] = {}
    for base in made.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        # Subclasses supply the required arguments of a base class.
        names = [one.name for one in parameters if base is made or one.default is not one.empty]
        allowed |= dict.fromkeys(name for name in names if name not in ("args", "kwargs", "unknown"))
        if all(one.kind is not one.VAR_KEYWORD for one in parameters):
            break
    near = {name: difflib.get_close_matches(name, allowed, n=1) for name in given}
    words = [repr(name) + (f" (did you mean {meant[0]!r}?)" if meant else "") for name, meant in near.items()]
    return f"{made.__name__} takes no argument {', '.join(words)}; allowed: {', '.join(allowed)}"


def shown(value: Any) -> str:
    """Return a value and its type for a message."""
    return f"{quoted(value)} ({type(value).__name__})"


def quoted(value: Any, limit: int = 80) -> str:
    """Return a value for a message, as Python writes it: one line, cut with a mark, also if its repr raises."""
    try:
        text = repr(value)
    except Exception:  # such as an integer of more digits than Python prints
        return f"a {type(value).__name__}"
    return clipped(text if isinstance(value, str) else " ".join(text.split()), limit)


def clipped(text: Any, limit: int = 80) -> str:
    """Return a text for a message: its beginning and a mark, where it has more than `limit` characters."""
    text = str(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


@contextmanager
def writing(path: str | Path, cure: str = "name another file") -> Iterator[None]:
    """Turn an error of the operating system while a file or folder is written into one line.

    Raises:
        AgentGymError: if the disk is full.
        ConfigError: if the place cannot be written, for example because it is read-only.
    """
    try:
        yield
    except OSError as error:
        reason = f"cannot write {path}: {error.strerror or error}"
        if error.errno in DISK_FULL:
            raise AgentGymError(f"{reason}; make room") from error
        # A file that was read meanwhile has another name.
        about = "" if error.filename in (None, path, str(path)) else f" ({error.filename})"
        raise ConfigError(f"{reason}{about}; {cure}") from error


@contextmanager
def whole_file(path: str | Path, cure: str = "name another file") -> Iterator[Path]:
    """Give a path to write to. Its file gets the wanted name when the block ends: no kill leaves half of it there.

    The folder is made. A device, such as /dev/stdout, is written as it is.

    Raises:
        AgentGymError: as `writing`.
    """
    path, target = Path(path), Path(os.path.realpath(path))  # a link stays a link, to wherever it leads
    aside = target.with_name(f"{target.name}.{os.getpid()}.part")
    with writing(path, cure):
        if path.exists() and not path.is_file():
            # A pipe that nobody reads is an error here; a writer would wait for ever.
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb") if path.is_fifo() else nullcontext():
                yield path
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield aside
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)


def write_whole(path: str | Path, content: str | bytes, cure: str = "name another file") -> None:
    """Write a `whole_file`."""
    with whole_file(path, cure) as place:
        place.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_folder(out: str | Path) -> Iterator[Path]:
    """Give a folder to write to. It becomes `out`, a new or empty folder, when the block ends.

    Raises:
        ConfigError: if the folder has content, and as `writing`.
    """
    out = Path(out).expanduser()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already; name a new folder, or empty it")
    with writing(out, "name another folder"):
        out.parent.mkdir(parents=True, exist_ok=True)
        # No TemporaryDirectory: it calls itself without end where the system lets it remove nothing (Python 3.11).
        place = mkdtemp(dir=out.parent, prefix=".unfinished-")
        try:
            (aside := Path(place, "folder")).mkdir()
            yield aside
            aside.rename(out)  # also over an empty folder
        finally:
            shutil.rmtree(place, ignore_errors=True)
