"""What runs on the other side: in the fork server, and in the processes it forks for the policy's programs.

These modules are imported by a bare interpreter as the package `inside`, without agent_gym, its dependencies and the
installed packages' start-up code. So they use the standard library alone and import each other relatively.

Here are the messages between the caller and its fork server: JSON over a socket that keeps their borders. A request
that starts a program carries four descriptors: its source (or, of a session, the control socket), its standard input,
and files for its standard output and error. So the fork server sees neither code nor output, and there is no pipe that
could fill up.
"""

from __future__ import annotations

from typing import Any, TypedDict

MAX_MESSAGE_BYTES = 1 << 16
TOKEN_BYTES = 8  # of the messages of a session, see program.py


class Setup(TypedDict):
    """The first message: what the fork server is to be."""

    packages: list[str]
    search: list[str]  # where the packages are installed
    readable: list[str]  # files and folders, by their real paths
    hidden: list[str]  # folders of installed packages, which may lie inside of readable ones
    namespaces: bool


class Start(TypedDict):
    """Start a program, or a session that waits for the first one."""

    op: str  # "start"
    id: int
    seed: int
    session: bool
    cpu_seconds: float
    wall_seconds: float
    memory_bytes: int
    output_bytes: int


class Exit(TypedDict):
    """How a program ended.

    `code` is as `os.waitstatus_to_exitcode` has it, `killed` why we ended it ("cpu", "wall", "closed"), if we did, and
    `confined` whether it ever ran: without, the failure is ours.
    """

    id: int
    code: int
    killed: str | None
    cpu_seconds: float
    confined: bool


Message = dict[str, Any]
