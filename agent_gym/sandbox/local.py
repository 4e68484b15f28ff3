"""`LocalSandbox`: programs in confined processes of this machine."""

from __future__ import annotations

import json
import os
import sys
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError, whole_number
from agent_gym.sandbox.base import Execution, Limits, SandboxError, SandboxUnavailable
from agent_gym.sandbox.inside import Message, seccomp
from agent_gym.sandbox.process import ForkServer, ForkServers, Lost, NoNamespaces, Streams, make_setup, out_of_bounds
from agent_gym.sandbox.session import Session
from agent_gym.threads import cores

_MOST_SERVERS = 8
_ATTEMPTS = 3

PROPERTIES = tuple("fs_read fs_write network signals processes environment syscalls memory output cpu".split())
"""The rules that a sandbox enforces: no reading of files outside the standard library and the packages, no change of
any file, no network, no signal to another process, no other process, nothing of another process's environment, no
system call that is not on the list, and the limits."""

# Each attempt must be refused by the system. Any other error is a mistake of the test, and counts as not enforced.
_PROGRAM = Path(__file__).with_name("attempts.txt")


class LocalSandbox(ForkServers):
    """Runs programs in processes that may compute, print, and nothing else. Safe to call from several threads.

    A fork server, started once, has numpy and sympy imported; each program runs in a fork of it, under Landlock, a list
    of allowed system calls, the limits of the kernel, and namespaces where the system lets users make them. The
    constructor has a program try forbidden actions, and refuses where something succeeds.

    A copy is the sandbox itself. So is a pickle, in a process that has a sandbox with the same settings; elsewhere it
    makes one. A forked process starts its own fork servers. They end when nothing refers to the sandbox any more.

    Programs can import the packages, with their imports; others do not exist for them. All are imported once, in this
    order. Failed imports are in `report["missing_packages"]`. By default there is a fork server per core, at most 8
    `servers`, and for each core two `slots` for programs that run at the same time; others wait, and their clocks do
    not run. Namespaces are used where possible. `waive` names `PROPERTIES` that may go unenforced.

    Raises:
        SandboxUnavailable: if something that is not waived cannot be enforced here.
        ConfigError: for settings that cannot be.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        packages: Sequence[str] = ("numpy", "mpmath", "sympy"),
        servers: int | None = None,
        slots: int | None = None,
        namespaces: bool = True,
        waive: Collection[str] = (),
    ) -> None:
        if isinstance(waive, str) or set(waive) - set(PROPERTIES):
            raise ConfigError(f"waive is {waive!r}; it must be a set of names among {', '.join(PROPERTIES)}")
        if sys.platform != "linux":
            raise SandboxUnavailable("everything", f"this is {sys.platform}, and the mechanisms are Linux's")
        self.servers = whole_number("servers", servers or min(cores(), _MOST_SERVERS), 1)
        self.slots = whole_number("slots", slots or 2 * cores(), 1)
        if seccomp.MACHINE not in seccomp.COLUMNS:
            raise SandboxUnavailable("everything", f"no table of system calls for {seccomp.MACHINE}")
        for call, argument in (("memfd_create", "probe"), ("pidfd_open", os.getpid())):
            try:
                os.close(getattr(os, call)(argument))
            except OSError as error:
                reason = f"the system call {call} cannot be made: {error}"
                raise SandboxUnavailable("everything", reason) from error
        self.limits, self.waive = limits or Limits(), frozenset(waive)
        self._settings = {"limits": self.limits, "packages": tuple(packages), "servers": self.servers}
        self._settings |= {"slots": self.slots, "namespaces": namespaces, "waive": self.waive}
        self._setup = make_setup(packages, namespaces)
        self._without_namespaces = ""
        self.report: Mapping[str, Any] = {}  # the enforced limits, and their means
        super().__init__()
        _made.add(self)
        try:
            self._verify()
        except BaseException:
            self.close()
            raise

    def run(self, code: str, *, seed: int = 0, stdin: str = "", limits: Limits | None = None) -> Execution:
        """Run a program with nothing of earlier ones; whatever is wrong with it is a matter of the result.

        The seed is for `random` and `numpy.random`. By default the input is empty, so that `input()` raises EOFError,
        and the limits are the sandbox's. Raises `SandboxError` if the sandbox failed, and not the program.
        """
        limits = limits or self.limits
        with self.slot, closing(Streams(code, stdin)) as files:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    server = self.server()
                    descriptors = [files.source, files.stdin, files.stdout, files.stderr]
                    ended = server.wait(server.start(self.request(seed, limits, session=False), descriptors), limits)
                except Lost:
                    # A lost program has no verdict, and nothing outside of the process was touched: try again.
                    if attempt == _ATTEMPTS:
                        raise
                    files.clear()
                    continue
                if ended["confined"]:
                    return files.judge(ended["code"], ended["killed"], ended["cpu_seconds"], limits)
                if attempt == _ATTEMPTS or os.fstat(files.stderr).st_size:
                    raise files.unconfined()
        raise AssertionError("the last attempt returns or raises")

    def session(self, *, seed: int = 0) -> Session:
        """Begin a session; see `agent_gym.sandbox.Session`."""
        for _ in range(_ATTEMPTS - 1):
            with suppress(Lost):
                return Session(self, seed)
        return Session(self, seed)

    def request(self, seed: int, limits: Limits, session: bool) -> Message:
        """Make the request that starts a program, or a session that waits for its first one."""
        return {"op": "start", "id": self.next_id(), "seed": seed, "session": session, **asdict(limits)}

    def start_server(self) -> ForkServer:
        try:
            server = ForkServer(self._setup)
        except NoNamespaces as refusal:
            # Landlock and the filter do not need them. Without Landlock, too, the self-test refuses.
            self._without_namespaces = str(refusal)
            self._setup = {**self._setup, "namespaces": False}
            server = ForkServer(self._setup)
        if self._without_namespaces:
            server.report["notes"]["namespaces"] = self._without_namespaces
        # The self-test speaks for servers like the one it ran in.
        for mechanism in ("landlock", "namespaces", "user"):
            if self.report and server.report[mechanism] != self.report[mechanism]:
                server.close()
                raise SandboxError(f"a new fork server has other {mechanism}: {server.report} and not {self.report}")
        return server

    def _verify(self) -> None:
        try:
            report = self.server().report
            enforced, failure = self._test()
        except SandboxError as error:
            raise SandboxUnavailable("everything", str(error)) from error
        self.report = {**report, "enforced": enforced}
        for name in PROPERTIES:
            if not enforced[name] and name not in self.waive:
                reason = failure or "a test program succeeded"
                if name == "fs_read" and not report["landlock"]:
                    reason = "neither Landlock nor namespaces of mounts can be used"
                raise SandboxUnavailable(name, f"{reason}; {report['notes']}")

    def _test(self) -> tuple[dict[str, bool], str]:
        """Try everything once; return for each of `PROPERTIES` whether it held, and why the test did not run."""
        with out_of_bounds() as (canary, port):
            program = _PROGRAM.read_text().format(
                canary=str(canary),
                caller=os.getpid(),
                port=port,
                memory=(int(self.limits.memory_mb) + 64) << 20,
                written=int(self.limits.written_bytes),
            )
            done = self.run(program)
            spinning = self.run("while True: pass", limits=Limits(cpu_seconds=0.1))
            untouched = os.listdir(canary.parent) == ["canary"] and canary.read_text() == "canary"
        enforced = dict.fromkeys(PROPERTIES, False)
        try:
            enforced |= json.loads(done.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            return enforced, f"the test program ended with {done.status}: {done.stderr[-500:]}"
        enforced["fs_write"] = enforced["fs_write"] and untouched
        enforced["cpu"] = spinning.status == "cpu_limit"
        return enforced, ""

    def __reduce__(self) -> Any:
        return _remake, (type(self), self._settings)


_made: weakref.WeakSet[LocalSandbox] = weakref.WeakSet()


def _remake(kind: type[LocalSandbox], settings: dict[str, Any]) -> LocalSandbox:
    alike = (one for one in list(_made) if type(one) is kind and one._settings == settings)
    return next(alike, None) or kind(**settings)


_shared = cache(LocalSandbox)
_sharing = threading.Lock()


def shared_sandbox() -> LocalSandbox:
    """Return the `LocalSandbox` with standard settings that all environments of this process share.

    Fork servers cost memory and slots represent cores, so that one per environment would be too many.
    """
    with _sharing:
        return _shared()
