"""One sandbox for all environments of a process, and sandboxes by name."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

from agent_gym.errors import ConfigError
from agent_gym.sandbox.base import Sandbox
from agent_gym.sandbox.local import LocalSandbox
from agent_gym.sandbox.remote import RemoteSandbox

_lock = threading.Lock()
_shared: LocalSandbox | None = None


def shared_sandbox() -> LocalSandbox:
    """Return the `LocalSandbox` with standard settings that all environments of this process share.

    Fork servers cost memory and slots stand for cores, so that one per environment would be too many. A process that
    was forked gets fork servers of its own when it first runs something.

    Raises:
        SandboxUnavailable: if this machine cannot hold programs.
    """
    global _shared
    with _lock:
        if _shared is None:
            _shared = LocalSandbox()
        return _shared


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
