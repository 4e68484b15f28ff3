"""What this process asks of Linux, by ctypes where Python has no function: rights, limits, identity.

The rights and limits are those of a process that is about to run a policy's program.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from typing import Any

# Bits of Linux's capabilities, from linux/capability.h.
CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 5, 6, 7, 21

_OPEN_FILES = 64
_STACK_BYTES = 8 << 20

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 4, 24, 38, 47

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long  # each function below raises OSError with what the kernel answered


def failed(what: str) -> OSError:
    """Make the error of the call that has just failed."""
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def syscall(number: int, *arguments: object) -> int:
    """Call by number. Whole numbers are passed as 64 bits, as the kernel reads them."""
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise failed(f"system call {number}")
    return result


def prctl(option: int, *arguments: int) -> None:
    """Change a property of this process."""
    words = [ctypes.c_ulong(one) for one in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *words) < 0:
        raise failed(f"prctl {option}")


def capabilities(function: str, header: ctypes.Structure, sets: ctypes.Array[Any]) -> None:
    """Call capget or capset."""
    if getattr(_libc, function)(ctypes.byref(header), ctypes.byref(sets)) < 0:
        raise failed(function)


def unshare(flags: int) -> None:
    """Leave the namespaces that the flags name for new ones."""
    if _libc.unshare(flags) < 0:
        raise failed("unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount a file system, or change how one is mounted."""
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    if _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) < 0:
        raise failed(f"mount {target}")


def unmount(target: str) -> None:
    """Take a mount away; it goes when it is no longer in use."""
    detach = 2
    if _libc.umount2(target.encode(), detach) < 0:
        raise failed(f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root of this mount namespace and put the old one at `old`."""
    # glibc has no wrapper; the number is looked up here because no filter ever needs it.
    number = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
    syscall(number, ctypes.c_char_p(new.encode()), ctypes.c_char_p(old.encode()))


def close_from(first: int) -> None:
    """Close all descriptors from a number on."""
    close_range = 436
    try:
        syscall(close_range, first, 0xFFFFFFFF, 0)
    except OSError:  # before Linux 5.9
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapabilitySet(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


_CAPABILITY_VERSION_3 = 0x20080522
_NO_CAPABILITIES = (_CapabilitySet * 2)()


def capable(capability: int) -> bool:
    """Whether this process has a capability."""
    sets = (_CapabilitySet * 2)()
    capabilities("capget", _CapabilityHeader(_CAPABILITY_VERSION_3, 0), sets)
    return bool(sets[capability >> 5].effective >> (capability & 31) & 1)


def drop_bounding_set() -> None:
    """Let no program that this process starts gain a capability. Needs one itself, and does nothing without."""
    for capability in range(64):
        try:
            prctl(_PR_CAPBSET_DROP, capability)
        except OSError:
            return


def drop_capabilities() -> None:
    """Give up all capabilities."""
    clear_all = 4
    prctl(_PR_CAP_AMBIENT, clear_all)
    capabilities("capset", _CapabilityHeader(_CAPABILITY_VERSION_3, 0), _NO_CAPABILITIES)


def undumpable() -> None:
    """Close this process to debuggers, and its files in /proc to other processes of the same user."""
    prctl(_PR_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    """Make what follows work without privilege: Landlock and seccomp ask for it."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with(parent: int) -> None:
    """Be killed when the parent ends, however it ends. Comes after changes of the user, which reset it."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def limit(memory: int, file_size: int, cpu_seconds: int | None, threads: int) -> None:
    """Set the limits of the kernel, unless a lower one is in force that cannot be raised.

    CPU seconds are a backstop; the fork server looks at the clock more finely.
    """
    limits = {
        resource.RLIMIT_AS: memory,  # a true bound, because a program cannot fork
        resource.RLIMIT_FSIZE: file_size,  # of each output
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NPROC: threads,
        resource.RLIMIT_STACK: _STACK_BYTES,
    }
    if cpu_seconds is not None:
        limits[resource.RLIMIT_CPU] = cpu_seconds
    for kind, value in limits.items():
        ceiling = resource.getrlimit(kind)[1]
        lowest = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        resource.setrlimit(kind, (lowest, lowest))


class ThreadLimit:
    """How many threads a program's user may have, so that the program itself gets `THREADS`.

    Kernel memory of threads is counted by no limit of a process, only by this one of its user. With a user of its own
    it is exact. Otherwise the trainer's threads count as well; then it is what the whole machine has, and some more.
    """

    THREADS = 256

    def __init__(self, own_user: bool) -> None:
        # Opened now: the root of later may have no /proc.
        self._load = None if own_user else os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def now(self) -> int:
        if self._load is None:
            return self.THREADS
        running_of_all = os.pread(self._load, 200, 0).split()[3]
        return int(running_of_all.partition(b"/")[2]) + self.THREADS


def free_users() -> range | None:
    """Unused user and group ids, of which each program gets one; None if this process may not take any.

    So nothing that the kernel counts per user is counted over several programs, and none can signal another.
    """
    # Without CAP_KILL a fork server could not end the programs of other users.
    if os.getuid() != 0 or not all(map(capable, (CAP_SETUID, CAP_SETGID, CAP_KILL))):
        return None
    sizes = []
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}") as file:
            sizes.append(max(int(line.split()[0]) + int(line.split()[2]) for line in file))
    if min(sizes) > 1_950_000_000:
        return range(1_900_000_000, 1_950_000_000)
    # In the namespace of a rootless container: what it was given, above the ids that systems hand out themselves.
    return range(20_000, 60_000) if min(sizes) >= 60_000 else None


def become_nobody(users: range, keep_effective: bool) -> None:
    """As root, take on one of `free_users`.

    With `keep_effective` stay root to the file system, without capabilities, because others may not enter the folder
    that the interpreter lies in. What is counted per user (threads) goes by the real one, and that changes.
    """
    user = users[os.getpid() % len(users)]
    os.setgroups([])
    if keep_effective:
        os.setresuid(user, 0, 0)
    else:
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
