"""The code on the other side: in the fork server, and in the processes it forks for the policy's programs.

These modules are imported by a bare interpreter as the package `inside`, without agent_gym and its dependencies: they
use the standard library alone and import each other relatively.

The messages between the caller and its fork server are JSON over a socket that keeps their borders. The first is a
`Setup`. A request that starts a program carries four descriptors: its source (or, of a session, the control socket),
its standard input, and files for its standard output and error. So the fork server sees neither code nor output.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

MAX_MESSAGE_BYTES = 1 << 16
PID_BYTES, TOKEN_BYTES = 4, 8  # of the messages of a session, see program.py
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/", "LANG": "C.UTF-8", "TZ": "UTC"}  # all that a program sees

Message = dict[str, Any]  # {"op": "start", "id": ...}; the fields of a start are in `LocalSandbox.request`


def cpu_clock(pid: int) -> int:
    """Return the number of a process's CPU clock, as clock_getcpuclockid(3) computes it."""
    return (~pid << 3) | 2


class Setup(TypedDict):
    """The settings of the fork server."""

    packages: list[str]
    search: list[str]  # where the packages are installed
    readable: list[str]  # files and folders, by their real paths
    hidden: list[str]  # folders of installed packages, which may lie inside of readable ones
    namespaces: bool
    pytest: NotRequired[dict[str, str]]  # where the modules of pytest are, for tests in a terminal


class Exit(TypedDict):
    """How a program ended: the answer to a start."""

    id: int
    code: int  # as `os.waitstatus_to_exitcode` has it
    killed: str | None  # why the fork server ended it, if it did: "cpu", "wall", "memory" or "closed"
    cpu_seconds: float
    confined: bool  # whether it ever ran: without, the failure is the sandbox's
