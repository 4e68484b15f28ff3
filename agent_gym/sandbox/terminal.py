"""Terminals: shells of a policy, each with its own files, and tests of these files that the policy cannot reach.

A session of bash where a command is a tree of processes that ends with its shell. The state that a session keeps from
one command to the next are its files, the folder it is in, and its exported variables.
agent_gym/sandbox/inside/terminal.py is the other side. It needs Linux that lets this process make namespaces: without
them nothing would hold a process that detaches itself, and Landlock alone, which holds single programs, is not enough.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import os
import resource
import secrets
import shutil
import signal
import sys
import tarfile
import threading
import weakref
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Self

from agent_gym.errors import ConfigError
from agent_gym.sandbox.base import Execution, Limits, SandboxError, SandboxUnavailable
from agent_gym.sandbox.inside import Exit, Message, Setup, seccomp
from agent_gym.sandbox.process import ForkServer, ForkServers, Lost, NoNamespaces, Streams, make_setup, out_of_bounds
from agent_gym.threads import cores

MAX_COMMAND_BYTES = 100_000  # the kernel passes at most 128 KiB as one argument
LIMITS = Limits(cpu_seconds=10.0, wall_seconds=30.0, memory_mb=512, output_bytes=1 << 14)
"""Of a command with all that it starts, together; `memory_mb` is resident memory."""
DISK_MB = 32
HOME = "/home/agent"
FOLDERS = ("/app", HOME, "/run", "/tmp")
"""The folders that every session has and may write to."""
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_SYSTEM = (
    "/usr/include",
    "/usr/share/misc",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/share/git-core",
    "/usr/share/perl",
)
_SYSTEM_LINKS = ("/bin", "/lib", "/lib64", "/etc/alternatives")
_PACKAGES = ("*-packages", "ensurepip/_bundled", "python*/*-packages", "python*/ensurepip/_bundled", "*-sdk")
PYTEST = "/usr/local/lib/pytest"
"""Where commands and tests find pytest, which nobody can change."""
PYTEST_VARIABLES = {"PATH": f"{PYTEST}/bin:{ENVIRONMENT['PATH']}", "PYTHONPATH": PYTEST}
_PYTEST_MODULES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
_ALSO = ("typing_extensions",)  # not tomli, which setuptools has in a folder that it adds to sys.path
_CURE = (
    "use Linux that lets this process make namespaces of users, mounts and processes (in Docker: --privileged, or a "
    "profile of seccomp and AppArmor that allows unshare and mount), with bash in /bin"
)
# Each line must fail, or print nothing.
_PROBE = Path(__file__).with_name("probe.txt")


class TerminalUnavailable(SandboxUnavailable):
    """This machine cannot hold a terminal; the message says why, and the cure."""

    def __init__(self, reason: str) -> None:
        self.property = "everything"
        ConfigError.__init__(self, f"no terminal here: {reason}; {_CURE}")


@dataclass(frozen=True)
class Files:
    """The initial files of a session or its tests: an archive, made by `pack`."""

    archive: bytes
    folders: tuple[str, ...]  # that a session may write to


def pack(
    files: Mapping[str, str | bytes],
    folders: tuple[str, ...] = FOLDERS,
    begin: str = "/",
    written: tuple[str, ...] | None = None,
) -> Files:
    """Pack files by their absolute paths, and the folder to begin in. A file that begins with `#!` can be executed.

    Args:
        files: their contents.
        folders: the existing ones, with files or without.
        begin: where the shell begins.
        written: the ones that a session may write to, with all in them; None is `folders`.
    """
    packed = io.BytesIO()
    inner = {parent.as_posix() for path in (*files, f"{begin}/x") for parent in Path(path).parents}
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for folder in sorted({*folders, *inner} - {"/"}):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
            tar.addfile(member, io.BytesIO(data))
    return Files(packed.getvalue(), folders if written is None else written)


class TerminalSandbox(ForkServers):
    """Opens terminals. Safe to call from several threads.

    One fork server holds the files of all sessions, in memory. If it dies, they are lost: `SandboxError`. At most two
    commands per core run at the same time; others wait, and their clocks do not run.

    Raises:
        TerminalUnavailable: if a command could do forbidden actions here.
    """

    def __init__(self) -> None:
        if sys.platform != "linux" or seccomp.MACHINE not in seccomp.COLUMNS:
            raise TerminalUnavailable(f"this is {sys.platform} on {os.uname().machine}")
        if not shutil.which("bash", path="/bin"):
            raise TerminalUnavailable("there is no /bin/bash")
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # each command takes four, and this process some
        self.servers, self.slots = 1, max(1, min(2 * cores(), (files - 32) // 8))
        self._setup = _setup()
        super().__init__()
        self._verify()

    def open(self, files: Files, *, folder: str = "/app", environment: Mapping[str, str] | None = None) -> Terminal:
        """Begin a session in a folder, with files and additional variables; raise `SandboxError` if that fails."""
        return Terminal(self, files, folder, {**ENVIRONMENT, **(environment or {})})

    def start_server(self) -> ForkServer:
        try:
            return ForkServer(self._setup, "terminal")
        except NoNamespaces as refusal:
            raise TerminalUnavailable(f"no namespaces can be made ({refusal})") from refusal

    def _verify(self) -> None:
        """Have a command try forbidden actions."""
        with out_of_bounds() as (canary, port), _Bystander() as bystander:
            names = {"canary": canary, "folder": canary.parent, "port": port}
            names |= {"bystander": bystander.pid, "secret": bystander.secret}
            tests = pack({"/test.sh": "[ -e /app/file ] && echo 1 > /logs/verifier/reward.txt"}, ())
            with closing(self.open(pack({"/app/file": "1\n"}))) as terminal:
                try:
                    held = terminal.run("exec 2>/dev/null\n" + _PROBE.read_text().format(**names))
                    kept = terminal.run("cat file; pgrep -c sleep")
                    tested = terminal.test(tests)
                except SandboxError as error:
                    raise TerminalUnavailable(str(error)) from error
            untouched = canary.read_text() == "canary" and not bystander.signalled()
        found = [*held.stdout.split(), *kept.stdout.split(), tested.stderr.strip()]
        if found != ["42", "1", "0", "1"] or not untouched:
            raise TerminalUnavailable(f"a command could reach what it must not, or not do what it must: {held}, {kept}")


class _Bystander:
    """A process that no command may reach. Its number may mean another process inside of a namespace, so it has marks.

    They are a secret among its variables, and a signal that it keeps when it gets one.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)
        kept = [signal.SIGWINCH]  # which any other process would ignore
        words = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
        self.pid = os.posix_spawn(sys.executable, words, {"SECRET": self.secret}, setsigmask=kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def signalled(self) -> bool:
        status = Path(f"/proc/{self.pid}/status").read_text()
        pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
        return any(bits >> (signal.SIGWINCH - 1) & 1 for bits in pending)


class Terminal:
    """One session. One call at a time."""

    def __init__(self, sandbox: TerminalSandbox, files: Files, folder: str, environment: Mapping[str, str]) -> None:
        self._sandbox, self._server, self._number = sandbox, sandbox.server(), sandbox.next_id()
        self._folder, self._environment, self._folders = folder, dict(environment), files.folders
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._server, self._number)
        self._open(files, tests=False)

    def run(self, command: str, limits: Limits = LIMITS) -> Execution:
        """Run a command; `stdout` of the result has both outputs, in the order in which they were written.

        Raises:
            SandboxError: if the sandbox failed, and not the command.
            ConfigError: for a command that is longer than `MAX_COMMAND_BYTES` or holds a zero byte.
        """
        return self._start(command, limits, self._environment, tests=False)

    def test(
        self,
        tests: Files,
        limits: Limits = LIMITS,
        environment: Mapping[str, str] | None = None,
        shown: Collection[str] = (),
    ) -> Execution:
        """Run `test.sh` of some tests, in a separate process, and end the session.

        They are in /tests, which no command could see or write. Their text in `/logs/verifier/reward.txt` (or else
        reward.json) is `stderr` of the result, "" if nothing. /tmp and /run are empty and theirs alone; of the
        session's the paths in `shown` are there, as links, and all in /logs/session.
        """
        self._open(tests, tests=True)
        # Nothing of the session's influences their names: not its variables, its home, or the content of its folder.
        own = {
            **ENVIRONMENT,
            "HOME": "/logs",
            "PYTHONSAFEPATH": "1",
            "PYTHONNOUSERSITE": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            **PYTEST_VARIABLES,
            "PYTEST_PLUGINS": "pytest_report",
            # Settings of pytest are not read from where the policy can write.
            "PYTEST_ADDOPTS": "-p no:cacheprovider -c /dev/null --rootdir=/tests --confcutdir=/tests",
        }
        try:
            everything = {**own, **(environment or {})}
            return self._start("bash /tests/test.sh", limits, everything, tests=True, shown=shown)
        finally:
            self.close()

    def close(self) -> None:
        """End it: its files are lost."""
        self._finalizer()

    def _open(self, files: Files, tests: bool) -> None:
        with self._sandbox.slot, closing(Streams(files.archive)) as streams:
            request = {"op": "open", "id": self._sandbox.next_id(), "terminal": self._number}
            request |= {"disk_mb": DISK_MB, "tests": tests, "folders": files.folders}
            ended = self._ask(request, [streams.source, streams.stderr], LIMITS)
            if ended["code"]:
                reason = os.pread(streams.stderr, 1000, 0).decode(errors="replace")
                raise SandboxError(f"the files of a session cannot be written: {reason}")

    def _start(
        self,
        command: str,
        limits: Limits,
        environment: Mapping[str, str],
        tests: bool,
        shown: Collection[str] = (),
    ) -> Execution:
        if len(command.encode("utf-8", "surrogatepass")) > MAX_COMMAND_BYTES or "\0" in command:
            raise ConfigError(f"a command has at most {MAX_COMMAND_BYTES} bytes, and no zero byte")
        request = {"op": "start", "id": self._sandbox.next_id(), "terminal": self._number, "session": False}
        request |= {"tests": tests, "folder": self._folder, "folders": self._folders, "disk_mb": DISK_MB}
        request |= {"environment": environment, "shown": sorted(shown), **asdict(limits)}
        with self._sandbox.slot, closing(Streams(command)) as files:
            ended = self._ask(request, [files.source, files.stdin, files.stdout, files.stderr], limits)
            if not ended["confined"]:
                raise files.unconfined()
            if ended["killed"] == "machine":
                raise SandboxError("this machine has hardly any memory left, so that a command was ended")
            if ended["killed"] is None and ended["code"] < 0:
                # No command can signal the first process of its namespace.
                raise SandboxError("a command was killed from outside of it, perhaps because memory is short")
            return files.judge(ended["code"], ended["killed"], ended["cpu_seconds"], limits)

    def _ask(self, request: Message, descriptors: list[int], limits: Limits) -> Exit:
        return self._server.wait(self._server.start(request, descriptors), limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@cache
def _pytest() -> dict[str, str]:
    """Return where the modules of pytest are; nothing if one of them is not installed."""
    found = {}
    for name in (*_PYTEST_MODULES, *_ALSO):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            if name in _PYTEST_MODULES:
                return {}
            continue
        place = Path(spec.origin)
        place = place.parent if spec.submodule_search_locations else place
        found[place.name] = os.path.realpath(place)
    for name in ("pytest", "pluggy"):  # which look up their own versions
        with suppress(importlib.metadata.PackageNotFoundError):
            files = importlib.metadata.distribution(name).files or []
            for metadata in (file.locate() for file in files if file.name == "METADATA"):
                found[Path(metadata).parent.name] = os.path.realpath(Path(metadata).parent)
    return found


def pytest_is_here() -> bool:
    """Whether pytest is installed, so that tests of terminals can use it."""
    return bool(_pytest())


def _setup() -> Setup:
    setup = make_setup((), True)
    setup["pytest"] = _pytest()
    installed = {os.path.realpath(path) for path in _SYSTEM if os.path.isdir(path)}
    # Separate folders, where the system does not link them into /usr.
    installed |= {path for path in _SYSTEM_LINKS if os.path.isdir(path) and not os.path.islink(path)}
    setup["readable"] = sorted({*setup["readable"], *installed, *setup["pytest"].values()})
    # The generator of the tasks lies in the same interpreter, and in any other the package that a task is about.
    packages = [str(path) for top in setup["readable"] for name in _PACKAGES for path in Path(top).glob(name)]
    setup["hidden"] = sorted({*setup["hidden"], str(Path(__file__).resolve().parents[1]), *packages})
    return setup


def _end(maker: int, server: ForkServer, number: int) -> None:
    if os.getpid() == maker:
        with suppress(Lost):
            server.send({"op": "close", "terminal": number})


_shared = cache(TerminalSandbox)
_sharing = threading.Lock()


def shared_terminals() -> TerminalSandbox:
    """Return the `TerminalSandbox` that all environments of this process share."""
    with _sharing:
        return _shared()
