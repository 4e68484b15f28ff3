"""The fork server: imports once, then forks a confined process per program, watches its clocks and reports its end.

It has one thread, because a fork copies only the thread that forks. It sees neither code nor output (they travel in
files that the caller made), and other processes cannot look into it.
"""

from __future__ import annotations

import gc
import json
import math
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from . import ENVIRONMENT, MAX_MESSAGE_BYTES, Exit, Message, Setup, cpu_clock, kernel, preload, program, seccomp

CHILDREN = mmap.PAGESIZE  # at once: one byte of shared memory each
OVERUSED = {
    2: "memory",
    3: "cpu",
    4: "machine",
}  # the reasons that a child may write there for ending its own processes
_CORES = os.cpu_count() or 1
_LOOK_S = 0.02  # without another reason, no clock is looked at more often
_PARENT_LOOK_S = 5.0
DEVICES = ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"]
NICE = 5  # programs yield to the trainer, and to the fork server, which has to stop them in time


@dataclass
class Confinement:
    """The fork server's preparations for all programs."""

    rules: int | None  # descriptor of Landlock's rules, or None without Landlock
    filter: bytes  # of system calls, without the process id
    address_space: int  # bytes that a program starts with
    loadavg: int | None  # descriptor of /proc/loadavg, or None where programs have separate users
    users: range | None  # ids, one for each program, or None without the right to give them
    keep_effective: bool  # see `kernel.become_nobody`
    flags: mmap.mmap  # memory shared with the children, one byte each: 1 from when it is confined
    pid: int  # of the fork server
    modules: list[str]  # our own. To look for them would write to the pages of all names: 2 ms of copying per program


Job = tuple[Message, list[int], int]  # a program to be run by this process: request, descriptors, and its flag's number


def main(descriptor: int) -> None:
    """Be a fork server for the socket's other end. In the children it forks, run their programs."""
    server = socket.socket(fileno=descriptor)
    prepared = _prepare(server)
    job = RequestServer(server, prepared.flags).serve()
    # Only children come here, with the server's frames gone. Its descriptors are closed now, while they still are the
    # ones that they were: an object that a program's collector finds later would close a file of the program's.
    server.close()
    del server
    _run(job, prepared)


def _prepare(server: socket.socket) -> Confinement:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the thread that started us may have blocked some
    setup: Setup = json.loads(server.recv(MAX_MESSAGE_BYTES))
    notes: dict[str, str] = {}
    try:  # the system should take a program's memory before anybody else's
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError as error:
        notes["oom_score_adj"] = str(error)
    namespaces, hidden = setup["namespaces"], setup["hidden"]
    if namespaces:
        or_give_up(server, kernel.leave_network)
    libraries = preload.libraries()  # of the interpreter; the folders of packages lie next to them
    missing, places = preload.preload(setup["packages"], setup["search"])
    readable = sorted({*setup["readable"], *libraries, *places})
    version = kernel.landlock_abi()
    if not version:
        notes["landlock"] = "not supported by this kernel"
    users = kernel.free_users()
    # Opened now: the root of later may have no /proc.
    loadavg = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC) if users is None else None
    if users is None and os.getuid() == 0:
        notes["threads"] = "not limited: the kernel does not count those of root, and there is no CAP_SETUID"
    with open("/proc/self/statm") as file:
        address_space = int(file.read().split()[0]) * mmap.PAGESIZE
    if namespaces:
        or_give_up(server, lambda: kernel.furnish(readable, hidden, DEVICES))
    prepared = Confinement(
        rules=kernel.landlock_rules(version, _rules(readable, hidden)) if version else None,
        filter=seccomp.template(landlock=version > 0),
        address_space=address_space,
        loadavg=loadavg,
        users=users,
        keep_effective=not all(_anybody_may_read(path, namespaces) for path in readable),
        flags=mmap.mmap(-1, CHILDREN),
        pid=os.getpid(),
        modules=[name for name in sys.modules if name.partition(".")[0] == __package__],
    )
    kernel.drop_bounding_set()
    kernel.undumpable()  # last, because it takes from this process most of /proc/self; no child exists before
    os.chdir("/")
    # Frozen objects are never visited by the children's collectors, so that its pages stay shared.
    gc.collect()
    gc.freeze()
    gc.disable()
    user = "inherited" if users is None else "own, effective root" if prepared.keep_effective else "own"
    report = {"landlock": version, "namespaces": namespaces, "user": user, "missing_packages": missing, "notes": notes}
    server.send(json.dumps({"ready": report}).encode())
    return prepared


def or_give_up(server: socket.socket, step: Callable[[], None]) -> None:
    """Run a step of the entry into namespaces.

    End the process if the system refuses it after allowing the namespaces.
    """
    try:
        step()
    except OSError as error:
        server.send(json.dumps({"no_namespaces": str(error)}).encode())
        os._exit(0)


def _rules(readable: list[str], hidden: list[str]) -> list[tuple[str, int]]:
    rules = [(path, kernel.READ_FILE) for path in DEVICES]
    rules.append(("/dev/null", kernel.WRITE_FILE | kernel.TRUNCATE))
    left = list(readable)
    while left:
        path = left.pop()
        if path in hidden and path not in readable:
            continue
        if any(folder.startswith(path + "/") for folder in hidden):
            rules.append((path, kernel.READ_DIR))  # rules reach all that is beneath, so this one shows names only
            left += [entry.path for entry in os.scandir(path)]
        else:
            rules.append((path, kernel.READ_FILE | kernel.READ_DIR))
    return rules


def _anybody_may_read(path: str, namespaces: bool) -> bool:
    """Whether a user without any rights may read a path, and walk to it; the folders of this root are open."""
    allowed = os.stat(path).st_mode & 0o5
    if allowed != 0o5 and not (allowed == 0o4 and os.path.isfile(path)):
        return False
    while not namespaces and (path := os.path.dirname(path)) != "/":
        if not os.stat(path).st_mode & 0o1:
            return False
    return True


@dataclass
class _Child:
    id: int
    pid: int
    pidfd: int
    flag: int
    cpu_deadline: float = 0.0
    wall_deadline: float = math.inf  # also while a session is stopped
    killed: str | None = None

    def cpu_seconds(self) -> float:
        return time.clock_gettime(cpu_clock(self.pid))

    def begin(self, spent: float, limits: Message) -> None:
        """Start its clocks, from so many CPU seconds on."""
        self.cpu_deadline = spent + limits["cpu_seconds"]
        self.wall_deadline = time.monotonic() + limits["wall_seconds"]

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it was faster
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self, reason: str) -> None:
        self.killed = self.killed or reason
        self.signal(signal.SIGKILL)


@dataclass
class RequestServer:
    """Starts processes, ends the late ones, and reports how each ended."""

    socket: socket.socket
    memory: mmap.mmap  # shared with the children, one byte each: see `Confinement.flags`
    children: dict[int, _Child] = field(default_factory=dict)
    by_pidfd: dict[int, _Child] = field(default_factory=dict)
    flags: list[int] = field(default_factory=lambda: list(range(CHILDREN)))
    poll: select.epoll = field(default_factory=select.epoll)

    def fork(self) -> int:
        """Make a child, and return the result of `os.fork`."""
        return os.fork()

    def serve(self) -> Job:
        """Work until the caller hangs up; return in the children only."""
        self.poll.register(self.socket, select.EPOLLIN)
        parent = os.getppid()
        while True:
            for descriptor, _ in self.poll.poll(self._look_at_clocks()):
                if descriptor in self.by_pidfd:
                    self._reap(self.by_pidfd[descriptor])
                elif (job := self._receive()) is not None:
                    return job
            if os.getppid() != parent:  # another process may still hold a copy of the caller's socket
                self._end()

    def _receive(self) -> Job | None:
        message, descriptors, _, _ = socket.recv_fds(self.socket, MAX_MESSAGE_BYTES, 4)
        if not message:
            self._end()
        return self.handle(json.loads(message), descriptors)

    def handle(self, request: Message, descriptors: list[int]) -> Job | None:
        """Carry out a request; return the program to run in the child of a start only."""
        if request["op"] == "start":
            return self._start(request, descriptors)
        if (one := self.children.get(request["id"])) is None:
            return None
        if request["op"] == "go":
            one.begin(one.cpu_seconds(), request)
            one.signal(signal.SIGCONT)
        elif request["op"] == "stop":
            one.wall_deadline = math.inf
            one.signal(signal.SIGSTOP)
        else:
            one.kill("closed")
        return None

    def _start(self, request: Message, descriptors: list[int]) -> Job | None:
        pid = -1
        if self.flags:
            self.memory[self.flags[-1]] = 0
            with suppress(OSError):
                pid = self.fork()
        if pid == 0:
            return request, descriptors, self.flags[-1]
        for descriptor in descriptors:
            os.close(descriptor)
        if pid < 0:
            self.answer(Exit(id=request["id"], code=-1, killed=None, cpu_seconds=0.0, confined=False))
            return None
        one = _Child(request["id"], pid, os.pidfd_open(pid), self.flags.pop())
        self.children[one.id] = self.by_pidfd[one.pidfd] = one
        self.poll.register(one.pidfd, select.EPOLLIN)
        if not request["session"]:
            one.begin(0.0, request)
        return None

    def _look_at_clocks(self) -> float:
        """End programs that are late; return in how many seconds another one can be."""
        wait = _PARENT_LOOK_S
        for one in self.children.values():
            if one.killed or one.wall_deadline == math.inf:
                continue
            cpu_left, wall_left = one.cpu_deadline - one.cpu_seconds(), one.wall_deadline - time.monotonic()
            if cpu_left <= 0:
                one.kill("cpu")
            elif wall_left <= 0:
                one.kill("wall")
            else:
                # With all cores it can have used up its CPU time so soon.
                wait = min(wait, wall_left, max(cpu_left / _CORES, _LOOK_S))
        return wait + 0.001

    def _reap(self, one: _Child) -> None:
        _, status, usage = os.wait4(one.pid, 0)
        self.poll.unregister(one.pidfd)
        os.close(one.pidfd)
        del self.children[one.id], self.by_pidfd[one.pidfd]
        cpu = usage.ru_utime + usage.ru_stime
        confined = self.memory[one.flag] > 0
        one.killed = one.killed or OVERUSED.get(self.memory[one.flag])
        self.flags.append(one.flag)
        # A program that ends between two looks at its clock is judged like one that did not.
        if one.killed in (None, "wall") and cpu >= one.cpu_deadline > 0:
            one.killed = "cpu"
        code = os.waitstatus_to_exitcode(status)
        self.answer(Exit(id=one.id, code=code, killed=one.killed, cpu_seconds=cpu, confined=confined))

    def answer(self, ended: Exit) -> None:
        """Tell the caller how something ended."""
        try:
            self.socket.send(json.dumps(ended).encode())
        except OSError:
            self._end()

    def _end(self) -> None:
        """The caller is gone, and so is everything that it started."""
        for one in self.children.values():
            one.signal(signal.SIGKILL)
        self.clear()
        os._exit(0)

    def clear(self) -> None:
        """Remove the remains of the children, which have been killed."""


def _run(job: Job, confinement: Confinement) -> None:
    """Confine this process and run the program. Does not return.

    If one step fails the program does not run. The fork server learns of it by the byte of memory that both see, and
    that is taken away from this process when it is confined: an exit code could be forged.
    """
    leave = os._exit  # the program may replace it
    request = job[0]
    try:
        source = _confine(*job, confinement)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
        leave(1)
    del job, confinement
    code, anything = 1, BaseException  # a program may take even this name away
    try:
        if request["session"]:
            program.serve(3, request["seed"])
            code = 0
        else:
            code = program.run(source, request["seed"])
    except anything as error:
        # A program can make functions of ours raise: by a profile function, a signal handler, one that it replaced.
        program.report(error)
        program.flush(1)
    finally:
        leave(code)


def _confine(request: Message, descriptors: list[int], flag: int, confinement: Confinement) -> bytes:
    session = request["session"]
    os.setsid()
    os.nice(NICE)
    kernel.no_new_privileges()
    if confinement.rules is not None:
        kernel.landlock(confinement.rules)
    # Files go where a program looks for them: 0, 1 and 2, and the socket of a session at 3.
    first, *others = descriptors
    source = b"" if session else os.pread(first, os.fstat(first).st_size, 0)
    wanted = [*others, first] if session else others
    kernel.place(wanted)
    # Without separate users, the trainer's threads count as well: then as many as the whole machine has, and more.
    threads = kernel.THREADS
    if confinement.loadavg is not None:
        threads += int(os.pread(confinement.loadavg, 200, 0).split()[3].partition(b"/")[2])
    # Nothing of the server's stays open: sockets, the descriptors of other programs, the rules.
    kernel.close_from(len(wanted))
    backstop = None if session else int(request["cpu_seconds"]) + 2
    memory = confinement.address_space + (int(request["memory_mb"]) << 20)
    kernel.limit(memory, int(request["written_bytes"]), backstop, threads)
    if confinement.users is not None:
        kernel.become_nobody(confinement.users, confinement.keep_effective)
    kernel.drop_capabilities()
    kernel.undumpable()
    kernel.die_with(confinement.pid)
    # Not secrets, but names that `python main.py` would not show.
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    for name in confinement.modules:
        del sys.modules[name]
    # A line at a time: text printed before a program is stopped is not lost.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    gc.enable()
    seccomp.apply(seccomp.for_process(confinement.filter, os.getpid()))
    confinement.flags[flag] = 1
    confinement.flags.close()
    return source
