"""The fork server of terminals: files of sessions in memory, and a tree of processes for each command.

A session is files. It has no process between two commands, so that nothing goes on while a policy thinks, and nothing
changes its files after the last one. A command runs in namespaces of its own: of processes, of which the first is this
file's `_watch`; of mounts, in which only the system's programs, read-only, and the session's own folders are there; and
of users. When the first process ends, the kernel ends all others, detached, stopped or forking as they may be, and only
then does the fork server learn of it.

Tests run in the same way, with two more folders: their own, which no command has ever had, and one for the reward.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import select
import signal
import socket
import sys
import tarfile
from contextlib import suppress
from dataclasses import dataclass

from . import MAX_MESSAGE_BYTES, Exit, Message, Setup, kernel, preload, seccomp
from .forkserver import CHILDREN, DEVICES, NICE, OVERUSED, Job, Server, or_give_up

_SESSIONS, _TESTS, _LOGS = "/sessions", "/tests", "/logs"
_PRELUDE, _KEPT = "/etc/terminal.bash", "/run/state"
# Bash reads this before each command: the exported variables and the folder that the last one left. A command can
# change them as it likes, since only later commands of its own session read them.
_STATE = f"""unset BASH_ENV
[ -f {_KEPT} ] && . {_KEPT}
trap '{{ export -p; printf "cd -- %q 2>/dev/null && OLDPWD=%q\\n" "$PWD" "${{OLDPWD-$PWD}}"; }} >{_KEPT}' EXIT
"""
_ACCOUNTS = {"passwd": "agent:x:1000:1000::/home/agent:/bin/bash\n", "group": "agent:x:1000:\n"}
_USER = 1000
_PROCESSES = 64
_APART = 997  # between the first users of two fork servers with neighbouring numbers
_LOOK_S = 0.05  # how often the use of memory and CPU time is counted
_REWARDS = ("reward.txt", "reward.json")  # in the order in which Harbor looks for them
_REWARD_BYTES = 4096
_AGAIN = kernel.REMOUNT | kernel.BIND | kernel.READ_ONLY | kernel.NO_SETUID | kernel.NO_DEVICES
_TICK_S, _PAGE = 1 / os.sysconf("SC_CLK_TCK"), mmap.PAGESIZE


@dataclass
class _Ground:
    """What the fork server prepared for all commands."""

    filter: bytes  # of system calls
    users: range | None  # ids of which a session gets one of its own, or None without the right to give them
    flags: mmap.mmap  # see `forkserver.Confinement`
    pidfd: int  # of the fork server: how a child learns whether it has ended


def main(descriptor: int) -> None:
    """Be a fork server for the socket's other end. In the children it forks, run their commands."""
    server = socket.socket(fileno=descriptor)
    ground = _prepare(server)
    job = _Terminals(server, ground.flags, users=ground.users).serve()
    server.close()
    _run(job, ground)


def _prepare(server: socket.socket) -> _Ground:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    setup: Setup = json.loads(server.recv(MAX_MESSAGE_BYTES))
    users = kernel.free_users()
    interpreter = os.path.realpath(sys.executable)
    readable = sorted({*setup["readable"], *preload.libraries()})
    or_give_up(server, kernel.leave_network)
    or_give_up(server, lambda: kernel.furnish(readable, setup["hidden"], [*DEVICES, "/proc"]))
    or_give_up(server, lambda: socket.sethostname("terminal"))
    for folder in setup["hidden"]:
        if os.path.isdir(folder):  # empty, and to stay so
            kernel.mount("none", folder, None, _AGAIN)
    for folder in (_SESSIONS, _TESTS, _LOGS, "/usr/local/bin"):
        os.makedirs(folder, exist_ok=True)
    # Commands detach it, with the files of all sessions but their own.
    kernel.mount("sessions", _SESSIONS, "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES, "size=1m,mode=755")
    for name in ("python", "python3"):
        if not os.path.lexists(path := f"/usr/local/bin/{name}"):
            os.symlink(interpreter, path)
    for target, name in (("/proc/self/fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr")):
        os.symlink(target, f"/dev/{name}")
    for path, text in {_PRELUDE: _STATE, **{f"/etc/{name}": text for name, text in _ACCOUNTS.items()}}.items():
        with open(path, "w") as file:
            file.write(text)
    ground = _Ground(seccomp.template(True, shell=True), users, mmap.mmap(-1, CHILDREN), os.pidfd_open(os.getpid()))
    kernel.undumpable()
    gc.freeze()
    report: Message = {"landlock": 0, "namespaces": True, "user": "own" if users else "inherited", "notes": {}}
    server.send(json.dumps({"ready": report}).encode())
    return ground


@dataclass
class _Terminals(Server):
    users: range | None = None

    def fork(self) -> int:
        return kernel.fork_apart()

    def handle(self, request: Message, descriptors: list[int]) -> Job | None:
        if request["op"] == "open":
            code = 0
            try:
                self._open(request, descriptors[0])
            except (OSError, tarfile.TarError) as error:
                code = 1
                os.write(descriptors[1], f"{type(error).__name__}: {error}".encode())
            for descriptor in descriptors:
                os.close(descriptor)
            self.answer(Exit(id=request["id"], code=code, killed=None, cpu_seconds=0.0, confined=True))
        elif request["op"] == "close":
            for folder in (f"{_SESSIONS}/{request['terminal']}", f"{_SESSIONS}/{request['terminal']}.tests"):
                if os.path.isdir(folder):
                    kernel.unmount(folder)
                    os.rmdir(folder)
        else:
            return super().handle({**request, "user": self._user(request)}, descriptors)
        return None

    def _user(self, request: Message) -> int | None:
        if not self.users:
            return None
        # Terminals of other programs on this machine count from one, too, and the kernel counts processes by user.
        return self.users[(os.getpid() * _APART + request["terminal"]) % len(self.users)]

    def _open(self, request: Message, archive: int) -> None:
        """Make a file system in memory and unpack an archive into it; that of tests belongs to no session's user."""
        folder, owner = f"{_SESSIONS}/{request['terminal']}", self._user(request)
        size = f"size={request['disk_mb']}m,nr_inodes={request['disk_mb'] << 8},mode=755"
        if request["tests"]:
            folder, owner = f"{folder}.tests", None
        os.mkdir(folder)
        kernel.mount("files", folder, "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES, size)

        with os.fdopen(os.dup(archive), "rb") as file, tarfile.open(fileobj=file) as tar:
            for member in tar:  # folders before what is in them, and files
                path = f"{folder}/{member.name}"
                if member.isdir():
                    os.makedirs(path, exist_ok=True)
                elif content := tar.extractfile(member):
                    with open(path, "wb") as made:
                        made.write(content.read())
                os.chmod(path, member.mode)
                if owner is not None:
                    os.chown(path, owner, owner)
        for path in request["folders"]:  # where a command mounts them
            os.makedirs(path, exist_ok=True)


def _run(job: Job, ground: _Ground) -> None:
    """Confine this process, the first of its namespace, and run the command in a child. Does not return."""
    request, descriptors, flag = job
    code = 1
    try:
        source, stdin, output, ours = descriptors
        command = os.pread(source, os.fstat(source).st_size, 0)
        kernel.place([stdin, output, output, ours, ground.pidfd])  # `ours` has why this file failed, or the reward
        _confine(request, ground.filter)
        ground.flags[flag] = 1
    except BaseException as error:
        os.write(3, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    try:
        code = _watch(command, request, ground.flags, flag)
        if request["tests"]:
            os.ftruncate(3, 0)
            os.write(3, _reward())
    finally:
        os._exit(code)


def _confine(request: Message, filter_: bytes) -> None:
    os.setsid()
    os.nice(NICE)
    kernel.no_new_privileges()
    kernel.mount("proc", "/proc", "proc", kernel.NO_SETUID | kernel.NO_DEVICES, "subset=pid")
    # The system should take a command's memory before anybody else's, and before the files of all sessions.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    folder = f"{_SESSIONS}/{request['terminal']}"
    for path in request["folders"]:
        kernel.mount(folder + path, path, None, kernel.BIND)
    if request["tests"]:
        kernel.mount(f"{folder}.tests", _TESTS, None, kernel.BIND)
        kernel.mount("none", _TESTS, None, _AGAIN)
        kernel.mount("logs", _LOGS, "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES, "size=1m,nr_inodes=256,mode=777")
        os.mkdir(f"{_LOGS}/verifier")
        os.chmod(f"{_LOGS}/verifier", 0o777)
    kernel.unmount(_SESSIONS)
    kernel.mount("none", "/", None, _AGAIN)  # without users of their own, commands own it
    os.chdir("/")
    kernel.close_from(5)
    memory = int(request["memory_mb"]) << 20
    kernel.limit(2 * memory, int(request["disk_mb"]) << 20, int(request["wall_seconds"]) + 2, _PROCESSES)
    if request["user"] is not None:
        os.setgroups([])
        os.setresgid(*[request["user"]] * 3)
        os.setresuid(*[request["user"]] * 3)
    kernel.become_user(_USER)
    kernel.die_with(0)  # the number of a parent outside of this namespace
    if select.select([4], [], [], 0)[0]:
        os._exit(1)  # the fork server had ended before
    seccomp.apply(filter_)


def _watch(command: bytes, request: Message, flags: mmap.mmap, flag: int) -> int:
    """Run a command until its shell ends or the processes together have taken too much; end all that it left."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    os.umask(0o022)
    with suppress(OSError):
        os.chdir(request["folder"])
    environment = request["environment"]
    if not request["tests"]:
        # What the last command left has all that is exported: what it has unset would come back with the first ones.
        kept = os.path.isfile(_KEPT) and os.path.getsize(_KEPT)
        environment = {**({} if kept else environment), "BASH_ENV": _PRELUDE}
    shell = os.posix_spawn(
        "/bin/bash",
        [b"bash", b"-c", command],
        environment,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
    )
    code = None
    while code is None:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == shell:
            code = os.waitstatus_to_exitcode(status)
        elif not pid:
            signal.sigtimedwait([signal.SIGCHLD], _LOOK_S)
            cpu_seconds, memory = _used()
            over = {"cpu": cpu_seconds > request["cpu_seconds"], "memory": memory > int(request["memory_mb"]) << 20}
            if any(over.values()):
                flags[flag] = next(number for number, name in OVERUSED.items() if over[name])
                code = 1
    with suppress(OSError):
        os.kill(-1, signal.SIGKILL)  # all but this one, and none can fork in between
        while True:
            os.wait()
    return code if code >= 0 else 128 - code


def _used() -> tuple[float, int]:
    """Return the CPU seconds and the bytes of memory of all processes of this namespace."""
    ticks = pages = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()  # a name may hold anything, so from its end on
                ticks += sum(map(int, fields[11:15]))  # its own, and of children that have ended
                pages += int(fields[21])
    return ticks * _TICK_S, pages * _PAGE


def _reward() -> bytes:
    """Read what the tests wrote, if it is a file: nothing runs any more that could exchange it."""
    for name in _REWARDS:
        with suppress(OSError):
            file = os.open(f"{_LOGS}/verifier/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            return os.read(file, _REWARD_BYTES)
    return b""
