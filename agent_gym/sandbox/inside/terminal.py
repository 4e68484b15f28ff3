"""The fork server of terminals: files of sessions in memory, and a tree of processes for each command.

A session is files. It has no process between two commands, so that nothing runs while a policy thinks, and nothing
changes its files after the last one. A command runs in separate namespaces: of processes, of which the first is this
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
import pathlib
import select
import signal
import socket
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from . import MAX_MESSAGE_BYTES, Exit, Message, Setup, kernel, preload, seccomp, usage
from .forkserver import CHILDREN, DEVICES, NICE, OVERUSED, Job, RequestServer, or_give_up
from .groups import Groups, make_groups
from .links import Links

_SESSIONS, _TESTS, _LOGS = "/sessions", "/tests", "/logs"
_SCRATCH = ("/run", "/tmp")  # of which tests have their own
_SHOWN = f"{_LOGS}/session"  # where tests find the session's
_PRELUDE, _KEPT = "/etc/terminal.bash", "/run/state"
# Bash reads this before each command: the exported variables and the folder that the last one left. A command can
# change them as it likes, since only later commands of its session read them.
_STATE = f"""unset BASH_ENV
[ -f {_KEPT} ] && . {_KEPT}
trap '{{ export -p; printf "cd -- %q 2>/dev/null && OLDPWD=%q\\n" "$PWD" "${{OLDPWD-$PWD}}"; }} >{_KEPT}' EXIT
"""
_PYTEST = "/usr/local/lib/pytest"
_PYTEST_PROGRAM = f"""#!/usr/local/bin/python3 -P
import sys
sys.path.insert(0, {_PYTEST!r})
from pytest import main
sys.exit(main())
"""
_ACCOUNT, _GROUP = "agent:x:1000:1000::{}:/bin/bash\n", "agent:x:1000:\n"
# Some programs (sqlite3) read their settings from the home that is named here, whatever the variable HOME says.
_ETC = {"passwd": _ACCOUNT.format("/home/agent"), "passwd.tests": _ACCOUNT.format(_LOGS), "group": _GROUP}
_USER = 1000
_PROCESSES = 64
# Of each thread that a process can have: its stack, and malloc's reserve for it. Next to nothing of it is used.
_THREAD_BYTES = kernel.STACK_BYTES + (64 << 20)
_APART = 997  # between the first users of two fork servers with neighbouring numbers
_REWARDS = ("reward.txt", "reward.json")  # in the order in which Harbor looks for them
_REWARD_BYTES = 4096
_TOLD_LINKS = 20
_AGAIN = kernel.REMOUNT | kernel.BIND | kernel.READ_ONLY | kernel.NO_SETUID | kernel.NO_DEVICES


@dataclass
class _Ground:
    """The fork server's preparations for all commands."""

    filter: bytes  # of system calls
    users: range | None  # ids, one for each session, or None without the right to give them
    flags: mmap.mmap  # see `forkserver.Confinement`
    pidfd: int  # of the fork server: how a child learns whether it has ended
    meminfo: int  # descriptors of /proc/meminfo and /proc/loadavg, which commands do not see
    loadavg: int
    groups: Groups | None
    told: bool  # whether the filter tells a command's first process of shared memory


def main(descriptor: int) -> None:
    """Be a fork server for the socket's other end. In the children it forks, run their commands."""
    server = socket.socket(fileno=descriptor)
    ground = _prepare(server)
    job = _Terminals(server, ground.flags, users=ground.users, groups=ground.groups).serve()
    server.close()
    _run(job, ground)


def _prepare(server: socket.socket) -> _Ground:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    setup: Setup = json.loads(server.recv(MAX_MESSAGE_BYTES))
    users, groups = kernel.free_users(), make_groups()
    meminfo, loadavg = (os.open(f"/proc/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("meminfo", "loadavg"))
    interpreter = os.path.realpath(sys.executable)
    readable = sorted({*setup["readable"], *preload.libraries()})
    report_plugin = pathlib.Path(__file__).with_name("pytest_report.py").read_text()
    or_give_up(server, kernel.leave_network)
    or_give_up(server, lambda: kernel.furnish(readable, setup["hidden"], [*DEVICES, "/proc"]))
    or_give_up(server, lambda: socket.sethostname("terminal"))
    for folder in setup["hidden"]:
        if os.path.ismount(folder):  # empty, and to stay so
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
    for path, text in {_PRELUDE: _STATE, **{f"/etc/{name}": text for name, text in _ETC.items()}}.items():
        with open(path, "w") as file:
            file.write(text)
    _furnish_pytest(setup.get("pytest", {}), report_plugin)
    told = _can_be_told()
    rules = seccomp.template(True, shell=True, told=told)
    flags = mmap.mmap(-1, CHILDREN)
    ground = _Ground(rules, users, flags, os.pidfd_open(os.getpid()), meminfo, loadavg, groups, told)
    clock = kernel.task_clock()
    kernel.undumpable()
    gc.freeze()
    report: Message = {"landlock": 0, "namespaces": True, "user": "own" if users else "inherited", "notes": {}}
    report["counted"] = {"cpu": "kernel" if clock is not None else "processes", "shared": told}
    report["counted"]["group"] = groups.version if groups else 0
    if clock is not None:
        os.close(clock)
    server.send(json.dumps({"ready": report}).encode())
    return ground


def _furnish_pytest(modules: dict[str, str], plugin: str) -> None:
    """Put the modules of pytest into one folder, and the program next to them."""
    if not modules:
        return
    os.makedirs(f"{_PYTEST}/bin")
    for name, path in modules.items():  # no links: where they are installed may be below /tmp, which sessions replace
        source = os.open(path, os.O_PATH | os.O_CLOEXEC)
        kernel.show(source, f"{_PYTEST}/{name}", kernel.READ_ONLY | kernel.NO_SETUID | kernel.NO_DEVICES)
        os.close(source)
    programs = dict.fromkeys(("bin/pytest", "bin/py.test"), _PYTEST_PROGRAM)
    for name, text in {"pytest_report.py": plugin, **programs}.items():
        with open(f"{_PYTEST}/{name}", "w") as file:
            file.write(text)
        os.chmod(file.name, 0o755)


def _can_be_told() -> bool:
    """Whether a filter can have a listener here: not before Linux 5.5, nor where a container's own filter has one."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            kernel.no_new_privileges()
            seccomp.listen(seccomp.template(True, shell=True))
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@dataclass
class _Terminals(RequestServer):
    users: range | None = None
    groups: Groups | None = None

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

    def answer(self, ended: Exit) -> None:
        if self.groups is not None:
            self.groups.leave(str(ended["id"]))
        super().answer(ended)

    def clear(self) -> None:
        if self.groups is not None:
            for one in self.children.values():
                os.waitpid(one.pid, 0)
                self.groups.leave(str(one.id))
            self.groups.end()

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
            for member in tar:  # folders before their content, and files
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
        memory = int(request["memory_mb"]) << 20
        group = None if ground.groups is None else ground.groups.enter(str(request["id"]), memory)
        counted = [] if group is None else [group.counted, group.parts]
        # `ours` has why this file failed, or the reward
        kernel.place([stdin, output, output, ours, ground.pidfd, ground.meminfo, ground.loadavg, *counted])
        if group is not None:
            group.counted, group.parts = 7, 8
        kernel.close_from(7 + len(counted))
        clock = kernel.task_clock()
        listener = _confine(request, ground)
        meter = usage.UsageMeter(request["cpu_seconds"], memory, clock, listener, 5, 6, group)
        ground.flags[flag] = 1
    except BaseException as error:
        os.write(3, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    try:
        code, over = _watch(command, request, meter)
        if over:
            ground.flags[flag] = next(number for number, name in OVERUSED.items() if name == over)
        if request["tests"]:
            os.ftruncate(3, 0)
            os.write(3, _reward())
    finally:
        os._exit(code)


def _confine(request: Message, ground: _Ground) -> int | None:
    """Give up all rights; return the descriptor by which the filter tells of shared memory."""
    os.setsid()
    os.nice(NICE)
    kernel.no_new_privileges()
    kernel.mount("proc", "/proc", "proc", kernel.NO_SETUID | kernel.NO_DEVICES, "subset=pid")
    # The system should take a command's memory before anybody else's, and before the files of all sessions.
    kernel.dumpable()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    kernel.undumpable()
    # Read-only for the command, which could take that back.
    proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC)
    kernel.mount("/proc", "/proc", None, kernel.BIND)
    kernel.mount("none", "/proc", None, _AGAIN)
    _show_files(request)
    kernel.unmount(_SESSIONS)
    if request["tests"]:
        _cut_links(request)
    kernel.mount("none", "/", None, _AGAIN)  # without separate users, commands own it
    os.chdir("/")
    private = 2 * (int(request["memory_mb"]) << 20) + _PROCESSES * kernel.STACK_BYTES
    room = private + _PROCESSES * _THREAD_BYTES
    # This process is one of the counted ones.
    processes, wall = _PROCESSES + 1, int(request["wall_seconds"]) + 2
    kernel.limit(room, int(request["disk_mb"]) << 20, wall, processes, private)
    if request["user"] is not None:
        os.setgroups([])
        os.setresgid(*[request["user"]] * 3)
        os.setresuid(*[request["user"]] * 3)
    kernel.become_user(_USER, proc)
    os.close(proc)
    kernel.die_with(0)  # the number of a parent outside of this namespace
    if select.select([4], [], [], 0)[0]:
        os._exit(1)  # the fork server had ended before
    if ground.told:
        return seccomp.listen(ground.filter)
    seccomp.apply(ground.filter)
    return None


def _show_files(request: Message) -> None:
    """Mount the folders of a command: the session's, or the ones of tests."""
    folder, tests = f"{_SESSIONS}/{request['terminal']}", request["tests"]
    if tests:
        kernel.mount(f"{folder}.tests", _TESTS, None, kernel.BIND)
        kernel.mount("none", _TESTS, None, _AGAIN)
        kernel.mount("/etc/passwd.tests", "/etc/passwd", None, kernel.BIND)
        _mount_empty(_LOGS, 1)
        for path in (f"{_LOGS}/verifier", *(f"{_SHOWN}{path}" for path in _SCRATCH)):
            os.makedirs(path)
        os.chmod(f"{_LOGS}/verifier", 0o777)
    for path in request["folders"]:
        if tests and path in _SCRATCH:
            kernel.mount(folder + path, _SHOWN + path, None, kernel.BIND)
            _mount_empty(path, int(request["disk_mb"]))
        else:
            kernel.mount(folder + path, path, None, kernel.BIND)
    for path in sorted(request["shown"]) if tests else ():
        # Nobody else has written here yet.
        for outer in reversed(list(_parents(path))):
            if not os.path.lexists(outer):
                os.mkdir(outer)
                os.chmod(outer, 0o777)
        if not any(os.path.islink(outer) for outer in _parents(path)) and not os.path.lexists(path):
            os.symlink(_SHOWN + path, path)


def _cut_links(request: Message) -> None:
    """Remove the links by which files of the session would be files of the tests, and say so in their output."""
    scratch = [path for path in request["folders"] if path in _SCRATCH]
    own = {os.stat(path).st_dev for path in (_TESTS, _LOGS, *scratch)}
    folders = [_SHOWN + path if path in scratch else path for path in request["folders"]]
    removed = Links(own, os.stat("/proc").st_dev).remove(folders)
    for path in removed[:_TOLD_LINKS]:
        os.write(1, f"removed before the tests: {path}, a link to a place of theirs\n".encode(errors="replace"))


def _parents(path: str) -> Iterator[str]:
    while (path := os.path.dirname(path)) not in ("/", ""):
        yield path


def _mount_empty(path: str, megabytes: int) -> None:
    options = f"size={megabytes}m,nr_inodes={max(megabytes, 1) << 8},mode=777"
    kernel.mount("files", path, "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES, options)


def _watch(command: bytes, request: Message, meter: usage.UsageMeter) -> tuple[int, str | None]:
    """Run a command until its shell ends or the processes together have taken too much; end all that it left.

    Returns:
        Its exit code, and the resource that it exceeded: "cpu", "memory" or "machine", or None.
    """
    waking = usage.wakeup()
    os.umask(0o022)
    with suppress(OSError):
        os.chdir(request["folder"])
    environment = request["environment"]
    if not request["tests"]:
        # The last command's state has all exported variables: unset ones would come back with the first ones.
        kept = os.path.isfile(_KEPT) and os.path.getsize(_KEPT)
        environment = {**({} if kept else environment), "BASH_ENV": _PRELUDE}
    shell = os.posix_spawn(
        "/bin/bash",
        [b"bash", b"-c", command],
        environment,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
    )
    code = over = None
    while code is None and over is None:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == shell:
            code = os.waitstatus_to_exitcode(status)
        elif not pid:
            over = meter.over()
            if over is None:
                meter.wait(waking)
    over = over or meter.over_at_the_end()
    with suppress(OSError):
        os.kill(-1, signal.SIGKILL)  # all but this one, and none can fork in between
        while True:
            os.wait()
    code = 1 if code is None else code
    return (code if code >= 0 else 128 - code), over


def _reward() -> bytes:
    """Read the tests' report, if it is a file: nothing runs any more that could exchange it."""
    for name in _REWARDS:
        with suppress(OSError):
            file = os.open(f"{_LOGS}/verifier/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            return os.read(file, _REWARD_BYTES)
    return b""
