"""`LocalSandbox`: programs in confined processes of this machine."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.sandbox import streams
from agent_gym.sandbox.base import Execution, Limits, SandboxError, SandboxUnavailable
from agent_gym.sandbox.inside import Message, seccomp
from agent_gym.sandbox.process import ForkServer, Lost, NoNamespaces, make_setup
from agent_gym.sandbox.selftest import PROPERTIES, check
from agent_gym.sandbox.session import Session
from agent_gym.search.base import ForkSafe

_MOST_SERVERS = 8
_ATTEMPTS = 3


class LocalSandbox(ForkSafe):
    """Runs programs in processes that may compute, print, and nothing else. Safe to call from several threads.

    A fork server, started once, has numpy and sympy imported; each program runs in a fork of it, behind Landlock, a
    list of allowed system calls and the limits of the kernel, and behind namespaces where the system lets users make
    them. The constructor has a program try what it must not be able to do, and refuses where something succeeds.

    A copy is the sandbox itself. So is a pickle, in a process that has a sandbox with the same settings; elsewhere it
    makes one. A forked process starts fork servers of its own when it first needs them. The fork servers of a sandbox
    end when nothing refers to it any more.

    Args:
        limits: of each program.
        packages: installed packages that programs can import, with what these import; others are not there for them.
            All are imported once, in this order, before the first program. Those that are missing or fail are in
            `report["missing_packages"]`.
        servers: fork servers. By default one per core, at most 8.
        slots: programs that run at the same time; others wait, and their clocks do not run. By default two per core.
        namespaces: whether to use them where possible.
        waive: what may go unenforced, names of `PROPERTIES`.

    Attributes:
        report: what is enforced, and by what.

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
        cores = len(os.sched_getaffinity(0))
        self.servers, self.slots = servers or min(cores, _MOST_SERVERS), slots or 2 * cores
        if self.servers < 1 or self.slots < 1:
            raise ConfigError(f"servers is {servers} and slots {slots}; there must be at least 1 of each")
        if not seccomp.supported():
            raise SandboxUnavailable("everything", f"no table of system calls for {seccomp.MACHINE}")
        for call, descriptor in (
            ("memfd_create", lambda: os.memfd_create("probe")),
            ("pidfd_open", lambda: os.pidfd_open(os.getpid())),
        ):
            try:
                os.close(descriptor())
            except OSError as error:
                reason = f"the system call {call} cannot be made: {error}"
                raise SandboxUnavailable("everything", reason) from error
        self.limits, self.packages, self.waive = limits or Limits(), tuple(packages), frozenset(waive)
        self._settings = {
            "limits": self.limits,
            "packages": self.packages,
            "servers": self.servers,
            "slots": self.slots,
            "namespaces": namespaces,
            "waive": self.waive,
        }
        self._ids = itertools.count(1)
        self._setup = make_setup(self.packages, namespaces)
        self._without_namespaces = ""
        self.report: Mapping[str, Any] = {}
        super().__init__()
        _made.add(self)
        try:
            self._verify()
        except BaseException:
            self.close()
            raise

    def run(self, code: str, *, seed: int = 0, stdin: str = "", limits: Limits | None = None) -> Execution:
        """Run a program with nothing of earlier ones.

        Args:
            code: the program; whatever is wrong with it is a matter of the result.
            seed: of `random` and `numpy.random`.
            stdin: what the program can read. Nothing by default, so that `input()` raises EOFError.
            limits: instead of those of the sandbox.

        Raises:
            SandboxError: if the sandbox failed, and not the program.
        """
        limits = limits or self.limits
        with self.slot, streams.Streams(code, stdin) as files:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    server = self.server()
                    descriptors = [files.source, files.stdin, files.stdout, files.stderr]
                    ended = server.wait(server.start(self.request(seed, limits, session=False), descriptors), limits)
                except Lost:
                    # What was lost has no verdict, and nothing outside of the process was touched: try again.
                    if attempt == _ATTEMPTS:
                        raise
                    files.clear()
                    continue
                if ended["confined"]:
                    return streams.judge(files, ended, limits)
                reason = os.pread(files.stderr, 1000, 0).decode(errors="replace")
                if attempt == _ATTEMPTS or reason:
                    raise SandboxError(f"a program could not be confined, and did not run: {reason or 'fork failed'}")
        raise AssertionError("the last attempt returns or raises")

    def session(self, *, seed: int = 0) -> Session:
        """Begin a session; see `agent_gym.sandbox.Session`."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return Session(self, seed)
            except Lost:
                continue
        return Session(self, seed)

    def close(self) -> None:
        """End all programs and fork servers. The next program starts them again."""
        with self._lock:
            pool = list(self._pool)
            self._pool.clear()
        _end(pool)

    def request(self, seed: int, limits: Limits, session: bool) -> Message:
        """Make what a fork server reads to start a program, or a session that waits for its first one."""
        return {
            "op": "start",
            "id": next(self._ids),
            "seed": seed,
            "session": session,
            "cpu_seconds": limits.cpu_seconds,
            "wall_seconds": limits.wall_seconds,
            "memory_bytes": int(limits.memory_mb) << 20,
            "output_bytes": int(limits.written_bytes),
        }

    def server(self) -> ForkServer:
        """Return the fork server with the least to do; replace those that have ended."""
        with self._lock:
            if len(self._pool) < self.servers or not all(server.alive for server in self._pool):
                self._pool[:] = [server for server in self._pool if server.alive]
                with ThreadPoolExecutor(self.servers) as starting:
                    missing = self.servers - len(self._pool)
                    self._pool += starting.map(lambda _: self._start_server(), range(missing))
            return min(self._pool, key=lambda server: server.load)

    def _start_server(self) -> ForkServer:
        try:
            server = ForkServer(self._setup)
        except NoNamespaces as refusal:
            # Landlock and the filter do not need them. Where there is no Landlock either, the self-test refuses.
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
            enforced, reasons = check(self, landlock=report["landlock"] > 0)
        except SandboxError as error:
            raise SandboxUnavailable("everything", str(error)) from error
        self.report = {**report, "enforced": enforced}
        for name in PROPERTIES:
            if not enforced[name] and name not in self.waive:
                raise SandboxUnavailable(name, f"{reasons.get(name, 'a test program succeeded')}; {report['notes']}")

    _finalizer: weakref.finalize[..., LocalSandbox]

    def renew(self) -> None:
        if hasattr(self, "_pool"):  # a forked process, whose parent goes on using its servers
            self._finalizer.detach()
            for server in self._pool:
                server.forget()
        self._lock = threading.RLock()
        self._pool: list[ForkServer] = []
        self._finalizer = weakref.finalize(self, _end, self._pool)
        self._finalizer.atexit = False  # with this process its fork servers end by themselves
        self.slot = threading.BoundedSemaphore(self.slots)

    def __reduce__(self) -> Any:
        return _remake, (type(self), self._settings)


_made: weakref.WeakSet[LocalSandbox] = weakref.WeakSet()


def _remake(kind: type[LocalSandbox], settings: dict[str, Any]) -> LocalSandbox:
    for sandbox in list(_made):
        if type(sandbox) is kind and sandbox._settings == settings:
            return sandbox
    return kind(**settings)


def _end(pool: list[ForkServer]) -> None:
    for server in pool:
        server.close()


_shared_lock = threading.Lock()
_shared: LocalSandbox | None = None


def shared_sandbox() -> LocalSandbox:
    """Return the `LocalSandbox` with standard settings that all environments of this process share.

    Fork servers cost memory and slots stand for cores, so that one per environment would be too many.

    Raises:
        SandboxUnavailable: if this machine cannot hold programs.
    """
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = LocalSandbox()
        return _shared
