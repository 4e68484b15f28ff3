"""The interface of sandboxes, local or remote: programs in, outputs and exit codes out."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from agent_gym.errors import ConfigError, EnvFailure

if TYPE_CHECKING:
    from agent_gym.sandbox.session import Session

Status = Literal["ok", "error", "cpu_limit", "wall_limit", "memory_limit", "output_limit", "killed"]

CUT = "\n[output cut here]\n"

# Characters that could move a terminal's cursor or end a string of C: all control characters but tab, newline and
# return.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# The last line of a traceback, for Python's own and numpy's ("numpy._core._exceptions._ArrayMemoryError: Unable to").
_OUT_OF_MEMORY = re.compile(r"[\w.]*MemoryError\b")


class SandboxError(EnvFailure):
    """The sandbox itself failed: that is not a verdict on the program."""


class SandboxUnavailable(ConfigError):
    """This machine cannot hold a program: `property`, one of `agent_gym.sandbox.PROPERTIES` or "everything", fails."""

    def __init__(self, property_: str, reason: str) -> None:
        self.property = property_
        what, waive = reason, ""
        if property_ != "everything":
            what = f"{property_} would not be enforced ({reason})"
            waive = f", or give it up by name: LocalSandbox(waive={{{property_!r}}})"
        super().__init__(
            f"no sandbox here: {what}. Use Linux 5.13 or newer with Landlock, or one that lets users make namespaces, "
            "or run `agent-gym serve sandbox` on a machine that has it and name its address, sandbox='http://host:8080'"
            f"{waive}"
        )


@dataclass(frozen=True)
class Limits:
    """The limits of one program."""

    # CPU time of all its threads, in a session of each call. It alone judges slowness, so that a verdict does not
    # depend on how busy the machine is.
    cpu_seconds: float = 5.0
    wall_seconds: float = 30.0  # from when it begins (not from when it queues), for programs that wait for nothing
    memory_mb: int = 512  # MiB of address space beyond the interpreter with the preloaded packages
    output_bytes: int = 1 << 16  # kept of each of the two outputs; of a longer one the beginning and the end
    written_bytes: int = 1 << 20  # that a program can write to each output before writing fails

    def __post_init__(self) -> None:
        lowest_of = {"cpu_seconds": 0.05, "wall_seconds": 0.05, "memory_mb": 16, "output_bytes": 256}
        for name, lowest in {**lowest_of, "written_bytes": self.output_bytes}.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value < math.inf:
                raise ConfigError(f"limit {name} is {value!r}; it must be a number of at least {lowest}")

    def tightened(self, **wanted: float | None) -> Limits:
        """Return these limits with some lowered, by name; none is ever raised."""
        lower: dict[str, Any] = {name: min(getattr(self, name), value) for name, value in wanted.items() if value}
        return replace(self, **lower)


@dataclass(frozen=True)
class Execution:
    """The result of a program."""

    # "ok": exit code 0; "error": another one; "killed": a signal ended it (a crash, mostly); or the limit it ran into.
    status: Status
    stdout: str  # valid text without control characters other than tab, newline and carriage return
    stderr: str  # the same; an exception ends it with a traceback, in which only the program's own frames are
    exit_code: int | None  # as `subprocess` has it: -N for a signal; None where a limit ended it
    cpu_seconds: float  # CPU time it took, starting it included
    truncated: bool  # whether something is missing from the outputs

    @property
    def succeeded(self) -> bool:
        return self.status == "ok"


def shorten(data: bytes, keep: int) -> tuple[str, bool]:
    """Make text of an output, of a longer one of its beginning and end; return whether something is missing, too."""
    if len(data) <= keep:
        return _clean(data), False
    half = keep // 2
    head = re.sub(rb"[\xc2-\xf4][\x80-\xbf]{0,2}\Z", b"", data[:half])
    tail = re.sub(rb"\A[\x80-\xbf]{1,3}", b"", data[-half:])
    return _clean(head) + CUT + _clean(tail), True


def _clean(data: bytes) -> str:
    return _CONTROL.sub("\ufffd", data.decode("utf-8", "replace"))


def status_of(code: int, stderr: str) -> Status:
    """The status of a program that ended by itself."""
    if code == 0:
        return "ok"
    if code == 1 and _OUT_OF_MEMORY.match(stderr.rstrip("\n").rpartition("\n")[2]):
        return "memory_limit"
    return "killed" if code < 0 else "error"


@runtime_checkable
class Sandbox(Protocol):
    """Runs Python programs that were not reviewed, as `LocalSandbox` does. Safe to call from several threads."""

    def run(self, code: str, *, seed: int = 0) -> Execution: ...

    def session(self, *, seed: int = 0) -> Session: ...

    def close(self) -> None: ...
