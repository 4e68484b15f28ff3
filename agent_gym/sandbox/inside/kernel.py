"""Requests of this process to Linux: its view of files and of the network, its rights, limits and identity.

Landlock: a process gives up the rights to all files but a few, without any privilege. Linux 5.13 and later, see
https://docs.kernel.org/userspace-api/landlock.html. It decides who opens, lists and changes files, and (from ABI 4) who
connects by TCP, (from 6) who signals and speaks to abstract sockets outside. It does not watch stat, chmod, chown,
utimes, extended attributes, opening for neither reading nor writing, and (before ABI 3, Linux 6.2) truncation: the
calls are left to the filter of system calls.

Namespaces: no network, and a root that holds only readable paths. They come on top where the system allows them, and
replace Landlock on kernels without it.

Each function raises OSError with the kernel's answer.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import struct
from collections.abc import Iterable, Sequence

# Bits of Linux's capabilities, from linux/capability.h.
_CAP_KILL, _CAP_SETGID, _CAP_SETUID, _CAP_SYS_ADMIN = 5, 6, 7, 21
_CAPABILITY_VERSION_3 = 0x20080522

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 4, 24, 38, 47

# System calls that have one number on all processors.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _CLOSE_RANGE = 444, 445, 446, 436

READ_FILE, READ_DIR, WRITE_FILE, TRUNCATE = 1 << 2, 1 << 3, 1 << 1, 1 << 14
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many rights on files an ABI knows; bits from 0
_BIND_AND_CONNECT_TCP = 3
_SCOPE_SOCKETS_AND_SIGNALS = 3

_NEW_MOUNTS, _NEW_HOSTNAME, _NEW_IPC, _NEW_USER, _NEW_NETWORK = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x40000000
_NEW_PROCESSES = 0x20000000
READ_ONLY, NO_SETUID, NO_DEVICES, REMOUNT, BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18

THREADS, _OPEN_FILES, STACK_BYTES = 256, 64, 8 << 20  # of a program

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_holding = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock, which a child of another would wait for


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: object) -> int:
    """Call by number. Whole numbers are passed as 64 bits, as the kernel reads them."""
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *words), f"system call {number}")


def prctl(option: int, *arguments: int) -> None:
    """Change a property of this process."""
    words = [ctypes.c_ulong(one) for one in (*arguments, 0, 0, 0, 0)[:4]]
    _checked(_libc.prctl(option, *words), f"prctl {option}")


def landlock_abi() -> int:
    """The version that the kernel speaks; 0 where there is none."""
    try:
        return syscall(_CREATE_RULESET, None, 0, 1)  # LANDLOCK_CREATE_RULESET_VERSION
    except OSError:
        return 0


def landlock_rules(version: int, rules: Iterable[tuple[str, int]]) -> int:
    """Make rules that refuse everything but pairs of a path and the rights beneath it; return their descriptor."""
    handled = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    wanted = struct.pack("QQQ", handled, _BIND_AND_CONNECT_TCP, _SCOPE_SOCKETS_AND_SIGNALS)
    size = 24 if version >= 6 else 16 if version >= 4 else 8  # the record grew with the versions
    try:
        made = syscall(_CREATE_RULESET, wanted, size, 0)
    except OSError:
        # Some kernels of RHEL 9 claim version 6 without the scopes.
        made = syscall(_CREATE_RULESET, wanted, min(size, 16), 0)
    for path, rights in rules:
        where = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(path):
                rights &= READ_FILE | WRITE_FILE | TRUNCATE
            syscall(_ADD_RULE, made, 1, struct.pack("=Qi", rights & handled, where), 0)  # 1 is RULE_PATH_BENEATH
        finally:
            os.close(where)
    return made


def landlock(rules: int) -> None:
    """Put this process under the rules, for good; it must have set no_new_privs before."""
    syscall(_RESTRICT_SELF, rules, 0)


def leave_network() -> None:
    """Move this process into separate namespaces: network, IPC, host name, mounts, and users unless it is root."""
    flags = _NEW_MOUNTS | _NEW_HOSTNAME | _NEW_IPC | _NEW_NETWORK
    user, group = os.getuid(), os.getgid()
    if _capable(_CAP_SYS_ADMIN):
        _checked(_libc.unshare(flags), "unshare")
        return
    if user == 0:
        # A namespace of users would have root alone, and programs could not be given separate users.
        raise OSError(errno.EPERM, "root without CAP_SYS_ADMIN")
    _new_user(flags, user, group)


def _new_user(flags: int, user: int, group: int, proc: int | None = None) -> None:
    """Move into a namespace of users, in which this process's own are called `user` and `group`."""
    opener = None if proc is None else lambda name, how: os.open(name.removeprefix("/proc/"), how, dir_fd=proc)
    own_user, own_group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(flags | _NEW_USER), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {own_user} 1"),
        ("gid_map", f"{group} {own_group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", opener=opener) as file:
            file.write(text)


def furnish(readable: Sequence[str], hidden: Iterable[str], devices: Iterable[str]) -> None:
    """Make a root of which everything but `readable` is missing, read-only, and move into it.

    `hidden` folders inside of these are to be empty; readable parts inside of them stay. Devices can be written to. If
    a mount fails this process has half a root, and must end.
    """
    mount("none", "/", None, _PRIVATE | _RECURSIVE)
    # The new root lies over /tmp, where something readable may lie as well: take hold of everything before.
    held = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (*readable, *devices)}
    root = "/tmp"
    mount("sandbox", root, "tmpfs", NO_SETUID | NO_DEVICES, "size=4m,nr_inodes=16k,mode=755")
    for path in sorted(readable, key=len):
        show(held[path], root + path, READ_ONLY | NO_SETUID | NO_DEVICES)
        for folder in hidden:
            if folder.startswith(path + "/") and os.path.isdir(root + folder):
                mount("hidden", root + folder, "tmpfs", NO_SETUID | NO_DEVICES, "size=1m,nr_inodes=4k,mode=755")
    for path in devices:
        # A device on a read-only mount can be written to, but its entry on the machine's disk, with its times, cannot.
        is_folder = os.path.isdir(f"/proc/self/fd/{held[path]}")
        show(held[path], root + path, NO_SETUID if is_folder else NO_SETUID | READ_ONLY)
    for name in os.listdir("/"):  # /lib is a link to /usr/lib on most systems, and programs name it
        if os.path.islink("/" + name) and not os.path.lexists(f"{root}/{name}"):
            os.symlink(os.readlink("/" + name), f"{root}/{name}")
    for descriptor in held.values():
        os.close(descriptor)
    os.chdir(root)
    pivot_root = {"x86_64": 155, "aarch64": 41}[os.uname().machine]  # glibc has no wrapper
    syscall(pivot_root, ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    unmount(".")  # the old root, which lies over the new one now
    os.chdir("/")
    # Not a read-only mount: the answer would be EROFS here and EACCES elsewhere, and observations must not differ.
    os.chmod("/", 0o555)


def show(source: int, target: str, flags: int) -> None:
    """Mount the tree of a descriptor at a path, which is made for it."""
    if os.path.isdir(f"/proc/self/fd/{source}"):
        os.makedirs(target, mode=0o755, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    mount(f"/proc/self/fd/{source}", target, None, BIND)
    # The options of the original mount must be repeated: a user's namespace may add to it and take nothing away. Most
    # of statvfs's bits are mount's own.
    found = os.statvfs(target).f_flag
    same = os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
    relatime = 1 << 21 if found & os.ST_RELATIME else 0
    mount("none", target, None, REMOUNT | BIND | flags | found & same | relatime)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount a file system, a folder or a file at a path, with flags of this module."""
    texts = [text and text.encode() for text in (source, target, kind, data)]
    _checked(_libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]), f"mount {target}")


def unmount(target: str) -> None:
    """Detach the mount at a path, with all that is mounted beneath it."""
    _checked(_libc.umount2(target.encode(), 2), f"unmount {target}")


def fork_apart() -> int:
    """Fork a child that is the first process of a namespace of processes, and has its own mounts.

    A process that it starts and leaves becomes its child, and ends with it. The bare call is enough for a process of
    one thread: the other work of `os.fork` is for other threads.
    """
    flags = _NEW_MOUNTS | _NEW_PROCESSES | signal.SIGCHLD
    return _checked(_holding.syscall({"x86_64": 56, "aarch64": 220}[os.uname().machine], flags, 0, 0, 0, 0), "clone")


def become_user(number: int, proc: int) -> None:
    """Have another name, and no rights, in a namespace of users of this process: the same one for every session.

    Also the number of processes is counted there. `proc` is a descriptor of a writable /proc.
    """
    dumpable()
    _new_user(0, number, number, proc)
    undumpable()
    drop_bounding_set()
    drop_capabilities()


_THIS_PROCESS = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)


def _capable(capability: int) -> bool:
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable ones, of the lower and the upper 32
    _checked(_libc.capget(_THIS_PROCESS, sets), "capget")
    return bool(sets[3 * (capability >> 5)] >> (capability & 31) & 1)


def task_clock() -> int | None:
    """Count the CPU time of this process and of all that it starts from now on; None where that is not allowed.

    The descriptor reads as nanoseconds, in 8 bytes. See perf_event_open(2): a clock in software, which children
    inherit. Time of ended ones stays in it, whoever waits for them or not.
    """
    number = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
    software, task_clock, size, inherit, without_kernel, close_on_exec = 1, 1, 112, 1 << 1, 3 << 5, 8
    wanted = struct.pack("IIQQQQQ", software, size, task_clock, 0, 0, 0, inherit | without_kernel).ljust(size, b"\0")
    try:
        return syscall(number, ctypes.create_string_buffer(wanted, size), 0, -1, -1, close_on_exec)
    except OSError:
        return None


def drop_bounding_set() -> None:
    """Let no program that this process starts gain a capability. Needs one itself, and does nothing without."""
    for capability in range(64):
        try:
            prctl(_PR_CAPBSET_DROP, capability)
        except OSError:
            return


def drop_capabilities() -> None:
    """Give up all capabilities."""
    prctl(_PR_CAP_AMBIENT, 4)  # PR_CAP_AMBIENT_CLEAR_ALL
    _checked(_libc.capset(_THIS_PROCESS, (ctypes.c_uint32 * 6)()), "capset")


def dumpable() -> None:
    """Let this process write its files in /proc, which are root's else."""
    prctl(_PR_SET_DUMPABLE, 1)


def undumpable() -> None:
    """Close this process to debuggers, and its files in /proc to other processes of the same user."""
    prctl(_PR_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    """Allow the next steps without privilege: Landlock and seccomp ask for it."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with(parent: int) -> None:
    """Be killed when the parent ends, however it ends. Comes after changes of the user, which reset it."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def place(descriptors: Sequence[int]) -> None:
    """Give descriptors the numbers 0, 1, 2 and so on; programs that this one executes have the first three.

    By way of higher numbers, because one of the low ones may be among the moved ones.
    """
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, len(descriptors)) for one in descriptors]
    for number, one in enumerate(high):
        os.dup2(one, number, inheritable=number < 3)


def close_from(first: int) -> None:
    """Close all descriptors from a number on."""
    try:
        syscall(_CLOSE_RANGE, first, 0xFFFFFFFF, 0)
    except OSError:  # before Linux 5.9
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def limit(memory: int, file_size: int, cpu_seconds: int | None, threads: int, data: int | None = None) -> None:
    """Set the limits of the kernel, unless a lower one is in force that cannot be raised.

    CPU seconds are a backstop. Kernel memory of threads is counted only by the number of threads of a user. `data`
    bounds private memory that can be written, for programs whose address space has to be larger than that.
    """
    limits = {
        resource.RLIMIT_AS: memory,  # a true bound, because a program cannot fork
        resource.RLIMIT_FSIZE: file_size,  # of each output
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        # Not 0: where /proc/sys/kernel/core_pattern is a pipe that would not stop a dump, and 1 does. See core(5).
        resource.RLIMIT_CORE: 1,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NPROC: threads,
        resource.RLIMIT_STACK: STACK_BYTES,
    }
    if cpu_seconds is not None:
        limits[resource.RLIMIT_CPU] = cpu_seconds
    if data is not None:
        limits[resource.RLIMIT_DATA] = data
    for kind, value in limits.items():
        ceiling = resource.getrlimit(kind)[1]
        lowest = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        resource.setrlimit(kind, (lowest, lowest))


def free_users() -> range | None:
    """Unused ids, of which each program gets one as user and group; None if this process may not take any.

    So nothing that the kernel counts per user is counted over several programs, and none can signal another.
    """
    # Without CAP_KILL a fork server could not end the programs of other users.
    if os.getuid() != 0 or not all(map(_capable, (_CAP_SETUID, _CAP_SETGID, _CAP_KILL))):
        return None
    sizes = []
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}") as file:
            sizes.append(max(int(line.split()[0]) + int(line.split()[2]) for line in file))
    if min(sizes) > 1_950_000_000:
        return range(1_900_000_000, 1_950_000_000)
    # In the namespace of a rootless container: its given ids, above the ids that systems hand out themselves.
    return range(20_000, 60_000) if min(sizes) >= 60_000 else None


def become_nobody(users: range, keep_effective: bool) -> None:
    """As root, take on one of `free_users`.

    With `keep_effective` stay root to the file system, without capabilities, because others may not enter the folder
    that the interpreter lies in. The count per user (threads) goes by the real one, and that changes.
    """
    user = users[os.getpid() % len(users)]
    os.setgroups([])
    if keep_effective:
        os.setresuid(user, 0, 0)
    else:
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
