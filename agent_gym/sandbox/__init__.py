"""Runs programs that a policy wrote: fast, the same every time, and where they can do no harm.

This is written by hand because no library does it: bubblewrap and nsjail need namespaces, which Docker's default
profile and restricted pods refuse, and take 15 to 90 ms where a fork takes 7 to 9; interpreters of the language are no
boundary; a container takes hundreds of milliseconds.

The threat is a program that a policy was rewarded for: it may read answers, change the checker, reach the network, end
the trainer, take all memory or forge output. What holds it is Linux: Landlock and namespaces for files and network, a
list of system calls, the limits of processes, an identity of its own (agent_gym/sandbox/inside). The constructor of a
`LocalSandbox` has a program try what it must not be able to do, and refuses where something succeeds. Not held: faults
of the kernel in the calls that are allowed, what timing tells, and the names of files. docs/sandbox.md has more.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from agent_gym.errors import ConfigError
from agent_gym.sandbox.base import Execution, Limits, Sandbox, SandboxError, SandboxUnavailable
from agent_gym.sandbox.local import LocalSandbox, shared_sandbox
from agent_gym.sandbox.remote import RemoteSandbox
from agent_gym.sandbox.selftest import PROPERTIES
from agent_gym.sandbox.session import Session

__all__ = [
    "PROPERTIES",
    "Execution",
    "Limits",
    "LocalSandbox",
    "RemoteSandbox",
    "Sandbox",
    "SandboxError",
    "SandboxUnavailable",
    "Session",
    "make_sandbox",
    "shared_sandbox",
]


def make_sandbox(spec: str | Sandbox | None = None) -> Sandbox:
    """Return the sandbox that a setting means.

    Args:
        spec: "local" or None for the shared one of this process, the address of a server ("http://host:8080") for a
            `RemoteSandbox`, or a sandbox, which is returned as it is.

    Raises:
        ConfigError: for anything else; `SandboxUnavailable`, one of them, if this machine cannot hold programs.
    """
    if spec is None or spec == "local":
        return shared_sandbox()
    if isinstance(spec, str):
        if urlsplit(spec).scheme in ("http", "https"):
            return RemoteSandbox(spec)
    elif isinstance(spec, Sandbox):
        return spec
    raise ConfigError(
        f"sandbox is {spec!r}; it must be 'local', the address of a server such as 'http://127.0.0.1:8080', or an "
        "object with run, session and close"
    )
