"""A fork server, seen from the process that uses it, and the files through which it passes data to programs."""

from __future__ import annotations

import fcntl
import importlib.util
import itertools
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from agent_gym.sandbox.base import Execution, Limits, SandboxError, Status, shorten, status_of
from agent_gym.sandbox.inside import ENVIRONMENT, MAX_MESSAGE_BYTES, Exit, Message, Setup
from agent_gym.search.base import ForkSafe

SLACK_S = 30.0  # by so much a fork server may be late with an answer before it counts as stuck
_START_S = 120.0  # to import sympy on a machine that is busy with something else
_CODE = "import sys; sys.path.insert(0, {0!r}); from inside import {1}; del sys.path[0]; {1}.main({2})"

_LIMITS: dict[str, Status] = {"cpu": "cpu_limit", "wall": "wall_limit", "memory": "memory_limit"}

# Where the interpreter and its libraries lie, if anything names it. Programs do not see it.
_PASSED_ON = ("LD_LIBRARY_PATH", "PYTHONHOME")

# Else all there is: nothing of the caller's, such as keys. Equal sets have equal order in all programs. Linear algebra
# gets one thread, because a fork would not take others along.
_ENVIRONMENT = {
    **ENVIRONMENT,
    "PYTHONHASHSEED": "0",
    "PYTHONIOENCODING": "utf-8:strict",
    "MALLOC_ARENA_MAX": "2",  # each arena takes 64 MiB of address space
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class Lost(SandboxError):
    """The fork server ended while something ran in it."""


class NoNamespaces(SandboxError):
    """This system does not let a fork server make the namespaces that it was to make."""


def encode(text: str) -> bytes:
    """Encode as UTF-8. Lone surrogates become invalid bytes, which Python refuses in a source with a SyntaxError."""
    return text.encode("utf-8", "surrogatepass")


class Streams:
    """Source (None for a session), input and outputs of one process, until they are closed.

    They are files in memory (memfd) of limited size, read when all is over: a pipe would have to be emptied in time,
    and text written before a kill is in them.
    """

    def __init__(self, source: str | bytes | None, stdin: str = "") -> None:
        self._open: list[int] = []
        content = encode(source) if isinstance(source, str) else source
        try:
            self.source = -1 if content is None else self._file("source", content)
            self.stdin = self._file("stdin", encode(stdin))
            self.stdout, self.stderr = self._file("stdout"), self._file("stderr")
        except OSError as error:
            self.close()
            raise SandboxError(f"no file in memory can be made for a program: {error}") from error

    def clear(self) -> None:
        os.lseek(self.stdin, 0, os.SEEK_SET)
        for file in (self.stdout, self.stderr):
            os.ftruncate(file, 0)

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _file(self, name: str, content: bytes | None = None) -> int:
        file = os.memfd_create(name, os.MFD_CLOEXEC)
        self._open.append(file)
        if content is None:
            # Two writers, standard output and a thread at its end, must not overwrite each other.
            fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
        else:
            with open(file, "wb", closefd=False) as writer:
                writer.write(content)
            os.lseek(file, 0, os.SEEK_SET)
        return file

    def unconfined(self) -> SandboxError:
        """Return the error for a program that did not run."""
        reason = os.pread(self.stderr, 1000, 0).decode(errors="replace")
        return SandboxError(f"a program could not be confined, and did not run: {reason or 'fork failed'}")

    def judge(self, code: int, killed: str | None, cpu_seconds: float, limits: Limits) -> Execution:
        """Read the outputs and judge how the program ended; `code` and `killed` as in `Exit`."""
        written = [os.pread(file, int(limits.written_bytes), 0) for file in (self.stdout, self.stderr)]
        full = any(len(data) >= limits.written_bytes for data in written)
        (stdout, less_out), (stderr, less_err) = (shorten(data, int(limits.output_bytes)) for data in written)
        status: Status
        if killed is not None:
            status = _LIMITS.get(killed, "killed")
        elif code != 0 and full:
            status = "output_limit"
        else:
            status = status_of(code, stderr)
        exit_code = code if killed is None else None
        return Execution(status, stdout, stderr, exit_code, cpu_seconds, full or less_out or less_err)


class ForkServer:
    """One fork server. Safe to call from several threads of the process that made it.

    It is a fresh interpreter and no fork of this process: that may hold threads, a GPU, gigabytes, and secrets. If it
    does not start this raises `SandboxError`; `NoNamespaces`, if it was to have some, and cannot. Its `module` of The
    program that it runs, in agent_gym/sandbox/inside: "forkserver" or "terminal".
    """

    def __init__(self, setup: Setup, module: str = "forkserver") -> None:
        # A session may be collected, and closed through this server, wherever memory is asked for, here as well.
        self._lock = threading.RLock()
        self._waiting: dict[int, Future[Exit]] = {}
        self.alive = True
        with ExitStack() as here, ExitStack() as failed:
            try:
                errors = os.memfd_create("errors", os.MFD_CLOEXEC)
                here.callback(os.close, errors)
                self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                failed.callback(self._socket.close)
                with theirs:
                    code = _CODE.format(str(Path(__file__).parent), module, theirs.fileno())
                    self._process = subprocess.Popen(
                        # -S: the code of .pth files is for the installation, not for programs.
                        [sys.executable, "-S", "-s", "-P", "-B", "-c", code],
                        env=_ENVIRONMENT | {name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                        cwd="/",
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=errors,
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,  # Ctrl-C is for the caller
                    )
            except OSError as error:
                raise SandboxError(f"the fork server of the sandbox cannot be started: {error}") from error
            self.pid = self._process.pid
            reason = "it ended"
            try:
                self._socket.settimeout(_START_S)
                self._socket.send(json.dumps(setup).encode())
                answer = self._socket.recv(MAX_MESSAGE_BYTES)
                self._socket.settimeout(None)
            except OSError as error:
                answer, reason = b"", str(error)
            if not answer:
                self._process.kill()
                self._process.wait()
                printed = os.pread(errors, 4000, 0).decode(errors="replace").strip()
                raise SandboxError(f"the fork server of the sandbox did not start ({reason}): {printed}")
            ready: Message = json.loads(answer)
            if "no_namespaces" in ready:
                self._process.wait()
                raise NoNamespaces(ready["no_namespaces"])
            failed.pop_all()
        self.report: dict[str, Any] = ready["ready"]
        threading.Thread(target=self._listen, name="sandbox", daemon=True).start()

    @property
    def load(self) -> int:
        return len(self._waiting)

    def start(self, request: Message, descriptors: Sequence[int]) -> Future[Exit]:
        """Start a program; the future knows how it ended."""
        future: Future[Exit] = Future()
        with self._lock:
            if not self.alive:
                raise Lost("the fork server of the sandbox has ended")
            self._waiting[request["id"]] = future
        self.send(request, descriptors)
        return future

    def wait(self, future: Future[Exit], limits: Limits) -> Exit:
        """Learn how a program ended. A fork server that is far beyond the limits is stuck, and ended."""
        try:
            return future.result(limits.wall_seconds + SLACK_S)
        except TimeoutError as error:
            self.close()
            raise SandboxError("a fork server of the sandbox does not answer; it was ended") from error

    def send(self, request: Message, descriptors: Sequence[int] = ()) -> None:
        try:
            with self._lock:
                socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
        except OSError as error:
            self._fail()
            raise Lost("the fork server of the sandbox has ended") from error

    def close(self) -> None:
        self.alive = False
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Let go of it in a forked process, whose parent keeps using it."""
        self.alive = False
        self._socket.close()
        self._process.returncode = 0  # not our child: nothing to wait for

    def _listen(self) -> None:
        with suppress(OSError):
            while message := self._socket.recv(MAX_MESSAGE_BYTES):
                ended: Exit = json.loads(message)
                with self._lock:
                    future = self._waiting.pop(ended["id"])
                future.set_result(ended)
        self._fail()
        self._socket.close()
        self._process.wait()

    def _fail(self) -> None:
        with self._lock:
            self.alive = False
            lost = list(self._waiting.values())
            self._waiting.clear()
        for future in lost:
            with suppress(InvalidStateError):  # a session that was collected meanwhile found out, too
                future.set_exception(Lost("the fork server of the sandbox ended while a program ran"))


class ForkServers(ForkSafe):
    """Fork servers that are started when they are needed, and begun anew in a forked process.

    They end when nothing refers to this any more. A subclass sets how many `servers` there are and how many `slots`,
    one of which (`slot`) is to be held while a program runs; and defines `start_server`.
    """

    servers: int
    slots: int
    _finalizer: weakref.finalize[..., ForkServers]

    def renew(self) -> None:
        if hasattr(self, "_pool"):  # a forked process, whose parent keeps using its servers
            self._finalizer.detach()
            for server in self._pool:
                server.forget()
        self._lock = threading.RLock()
        self._pool: list[ForkServer] = []
        self._finalizer = weakref.finalize(self, _end, self._pool)
        self._finalizer.atexit = False  # with this process its fork servers end by themselves
        self._ids = itertools.count(1)
        self.slot = threading.BoundedSemaphore(self.slots)

    def start_server(self) -> ForkServer:
        """Start one more."""
        raise NotImplementedError

    def server(self) -> ForkServer:
        """Return the fork server with the least to do; replace ended ones."""
        with self._lock:
            self._pool[:] = [server for server in self._pool if server.alive]
            if missing := self.servers - len(self._pool):
                with ThreadPoolExecutor(missing) as starting:
                    self._pool += starting.map(lambda _: self.start_server(), range(missing))
            return min(self._pool, key=lambda server: server.load)

    def next_id(self) -> int:
        """Return a number that no other program or session of this process has."""
        return next(self._ids)

    def close(self) -> None:
        """End all programs, sessions and fork servers. The next program starts them again."""
        with self._lock:
            pool = list(self._pool)
            self._pool.clear()
        _end(pool)


def _end(pool: list[ForkServer]) -> None:
    for server in pool:
        server.close()


@contextmanager
def out_of_bounds() -> Iterator[tuple[Path, int]]:
    """Give a file that any user may change and a port that answers, for a self-test: only the sandbox can refuse."""
    try:
        place = tempfile.TemporaryDirectory(prefix="sandbox-")
    except OSError:  # a read-only container
        place = tempfile.TemporaryDirectory(prefix="sandbox-", dir="/dev/shm")
    with place as folder, socket.socket() as listener:
        os.chmod(folder, 0o777)
        canary = Path(folder).resolve() / "canary"
        canary.write_text("canary")
        canary.chmod(0o666)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield canary, listener.getsockname()[1]


_SYSTEM = (
    "/etc/ld.so.cache",  # where the loader finds shared libraries
    "/usr/share/zoneinfo",
    "/etc/localtime",
    "/etc/mime.types",
    "/usr/lib/locale",
)
_INSTALLED = ("site-packages", "dist-packages")  # the second is Debian's


def make_setup(packages: Sequence[str], namespaces: bool) -> Setup:
    """Find the paths that programs may read: the standard library and the requested packages.

    The fork server adds the folders of the shared libraries that these load. A folder site-packages is hidden: it also
    holds agent_gym with its generators of tasks and answers.
    """
    library = os.path.dirname(os.__file__)
    # Where the compiled modules are: usually lib-dynload, on some systems under lib64.
    compiled = importlib.util.find_spec("_json")
    standard = {library, os.path.dirname((compiled and compiled.origin) or os.__file__)}
    aside = [os.path.join(library, name) for name in _INSTALLED]
    installed = _real([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *aside, *sys.path])
    hidden = [folder for folder in installed if os.path.basename(folder) in _INSTALLED]
    inside_hidden = tuple(folder + "/" for folder in hidden)
    readable = [
        path
        for path in _real([*standard, *_SYSTEM, sys.executable])
        if path not in hidden and not path.startswith(inside_hidden)
    ]
    search: dict[str, None] = {}
    for package in packages:
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
            if spec is not None and spec.origin is not None:
                place = os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin
                search[os.path.realpath(os.path.dirname(place))] = None
    return Setup(packages=list(packages), search=list(search), readable=readable, hidden=hidden, namespaces=namespaces)


def _real(candidates: Iterable[str]) -> list[str]:
    return sorted({os.path.realpath(path) for path in candidates if path and os.path.exists(path)})
