"""Runs programs that a policy wrote: fast, the same every time, and where they can do no harm.

This is written by hand because no library does it: bubblewrap and nsjail need namespaces, which Docker's default
profile and restricted pods refuse, and take 15 to 90 ms where a fork takes 7 to 9; a container takes hundreds.

The threat is a program that a policy was rewarded for. It is confined by Linux (agent_gym/sandbox/inside). Not held:
faults of the kernel in the calls that are allowed, timing side channels, and the names of files. docs/sandbox.md has
more.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from agent_gym.errors import ConfigError
from agent_gym.sandbox.base import Execution, Limits, Sandbox, SandboxError, SandboxUnavailable
from agent_gym.sandbox.local import PROPERTIES, LocalSandbox, shared_sandbox
from agent_gym.sandbox.remote import RemoteSandbox
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
    """Return the sandbox that a setting means: "local" or None for the shared one of this process, or an address.

    `ConfigError` for anything else but a sandbox; `SandboxUnavailable`, if this machine cannot hold programs.
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
