"""Which system calls a policy's program may make, and why: a filter for the kernel (seccomp-bpf), without libseccomp.

It is a list of what is allowed: whatever the kernel has or will have beside it is answered with EPERM. That keeps out,
without naming them, io_uring (which would do file and network work past any filter), ptrace, process_vm_readv,
pidfd_getfd and kcmp (other processes), bpf, perf_event_open, userfaultfd, keyctl and add_key, memfd_create and
memfd_secret (memory that no limit counts), shmget and msgget (memory that outlives the process), setrlimit, setuid and
unshare, mount and chroot, open_by_handle_at, the clocks and the scheduler of others, and chmod, chown, utimes and
setxattr, which Landlock does not watch.

The kernel runs the filter before each system call, on this record: the number of the call (4 bytes), the architecture
(4), the address of the instruction (8), and six arguments of 8 bytes. See seccomp(2), and linux/filter.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from . import kernel
from .syscall_numbers import NUMBERS

# The hot ones first: the filter is read from the top.
ALLOWED = tuple(
    name
    for group in (
        # Read and write what is open: standard input, the two outputs, and files that Landlock let it open.
        "read write readv writev pread64 pwrite64 lseek close close_range dup dup2 dup3",
        # Memory; RLIMIT_AS counts all of it. PROT_EXEC stays possible (ctypes and libffi need it), and is no loss:
        # native code meets the same filter.
        "mmap munmap mprotect mremap madvise brk",
        # Threads: locks, their bookkeeping in glibc, and the number of cores. Making one is judged below.
        "futex set_robust_list rseq sched_yield sched_getaffinity",
        # Look at files. Names and sizes of known paths can be asked for; contents are a matter of Landlock.
        "fstat stat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getcwd chdir fchdir",
        "getdents getdents64 statfs fstatfs fadvise64 umask",
        # On a file that can only be read these do nothing, and programs call them out of habit. flock does something:
        # a lock on a file of the standard library would be seen by the programs of others, and so be a way to speak.
        "fsync fdatasync",
        # Ask who and where one is. They change nothing, and Python asks some of them at the start of a module.
        "getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid",
        "uname sysinfo times getrusage getrlimit",
        # Time: read it, sleep, and be woken. Timers send signals to their own process only. timer_create is left out:
        # each of its timers takes kernel memory, and Python has no use for it.
        "clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time alarm setitimer getitimer pause",
        # Signals to oneself. restart_syscall goes on with a sleep that a stopped session was in.
        "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack",
        "restart_syscall",
        # Pipes to oneself and waiting for them: asyncio and the queues of threads. Their size cannot be raised (fcntl).
        "pipe pipe2 select pselect6 poll ppoll epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait recvfrom",
        # Children do not exist; the honest answer (ECHILD) is better than a refusal.
        "wait4 waitid",
        "getrandom exit exit_group",
    )
    for name in group.split()
)

# They change the file system. Landlock and a read-only root refuse them too, with this same answer, so that programs
# read the same wherever they run.
REFUSED_WITH_EACCES = (
    "unlink unlinkat rename renameat renameat2 mkdir mkdirat rmdir symlink symlinkat link linkat "
    "truncate ftruncate creat"
).split()

# No other programs and no network. EACCES is what Python's own error messages make the most sense of.
REFUSED_WITH_EACCES += ["execve", "execveat", "socket"]

# glibc tries the newer call first and falls back to the older one, whose arguments a filter can see: those of clone3
# and openat2 lie in memory, where another thread could change them after they were judged.
REFUSED_WITH_ENOSYS = ["clone3", "openat2"]

# fcntl: descriptors and their flags. Left out are F_SETOWN and F_SETSIG, by which the kernel can be made to send any
# signal to any process of the same user when a file becomes readable; F_SETPIPE_SZ, memory that no limit counts;
# F_ADD_SEALS, which would freeze the output of a session; leases and directory notification.
FCNTL_COMMANDS = {
    "F_DUPFD": 0,
    "F_GETFD": 1,
    "F_SETFD": 2,
    "F_GETFL": 3,
    "F_SETFL": 4,
    "F_DUPFD_CLOEXEC": 1030,
    "F_GETPIPE_SZ": 1032,
}

# ioctl: what Python asks of an open file. TIOCSTI, which types into a terminal, and everything of devices is left out.
IOCTL_COMMANDS = {
    "TCGETS": 0x5401,
    "TIOCGWINSZ": 0x5413,
    "FIONREAD": 0x541B,
    "FIONBIO": 0x5421,
    "FIONCLEX": 0x5450,
    "FIOCLEX": 0x5451,
}

# prctl: the name of a thread. Nothing that could undo a protection (dumpable, the signal when the parent dies).
PRCTL_OPTIONS = {"PR_SET_NAME": 15, "PR_GET_NAME": 16}

AF_UNIX = 1
CLONE_THREAD = 0x10000
CLONE_NAMESPACES = 0x7E020080
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and __O_TMPFILE: what makes an open one for writing.
OPEN_FOR_WRITING = 0o3 | 0o100 | 0o1000 | 0o20000000
# What Landlock does not watch in all of its versions, of O_ACCMODE and O_TRUNC: access mode 3, a descriptor for neither
# reading nor writing, for which it asks no right, and, before version 3, a file that is opened for reading and emptied.
OPEN_UNWATCHED = (0o3, 0o3 | 0o1000, 0o0 | 0o1000)

MACHINE = os.uname().machine
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of NUMBERS, AUDIT_ARCH_*
_X32 = 0x40000000  # a second set of numbers on x86_64, which would pass a filter of the first unseen

_LOAD, _AND, _JUMP_EQ, _JUMP_GE, _JUMP_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_NUMBER, _ARCHITECTURE = 0, 4

# Stands in the program where the process id belongs until `for_process` puts it there; above any process id.
_OWN_PID = 0x7FFFFFFE

_Instruction = tuple[int, int, int, int]


def supported() -> bool:
    """Whether there is a table for this processor."""
    return MACHINE in _MACHINES


def number(name: str) -> int:
    """The number of a system call on this processor; -1 if it has no such call."""
    known = NUMBERS[name][_MACHINES[MACHINE][0]]
    return -1 if known is None else known


def template(landlock: bool) -> bytes:
    """Build the filter, with a placeholder for the process id. Without Landlock no file may be opened for writing."""
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQ, 1, 0, _MACHINES[MACHINE][1]),
        _return(_KILL),  # int 0x80 and the like: another table of numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if MACHINE == "x86_64":
        program += [(_JUMP_GE, 0, 1, _X32), _return(_KILL)]

    def on(name: str, body: list[_Instruction]) -> None:
        if (known := number(name)) >= 0:
            program.extend([(_JUMP_EQ, 0, len(body), known), *body])

    for name in ALLOWED:
        on(name, [_return(_ALLOW)])
    on("openat", _opening(2, landlock))
    on("open", _opening(1, landlock))
    on("clone", _thread_only())
    # One process is one execution: what cannot fork can be killed completely, and its limits are those of all it does.
    on("fork", [_refuse(errno.EPERM)])
    on("vfork", [_refuse(errno.EPERM)])
    on("kill", _one_of(0, [_OWN_PID], errno.EPERM))
    on("tgkill", _one_of(0, [_OWN_PID], errno.EPERM))
    on("fcntl", _one_of(1, FCNTL_COMMANDS.values(), errno.EPERM))
    on("ioctl", _one_of(1, IOCTL_COMMANDS.values(), errno.ENOTTY))
    on("prctl", _one_of(0, PRCTL_OPTIONS.values(), errno.EPERM))
    on("prlimit64", _only_without(2))  # the new limit: reading one's limits is all right
    # A pair is connected to itself alone; asyncio wakes its loop by one. Nothing is sent to an address, and sendmsg is
    # not allowed at all: descriptors in flight are counted by no limit.
    on("socketpair", _one_of(0, [AF_UNIX], errno.EACCES))
    on("sendto", _only_without(4))
    for name in REFUSED_WITH_EACCES:
        on(name, [_refuse(errno.EACCES)])
    for name in REFUSED_WITH_ENOSYS:
        on(name, [_refuse(errno.ENOSYS)])
    program.append(_refuse(errno.EPERM))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def for_process(template: bytes, pid: int) -> bytes:
    """Put the process id into the filter: signals go to this process only."""
    return template.replace(struct.pack("I", _OWN_PID), struct.pack("I", pid))


def apply(program: bytes) -> None:
    """Put this process under the filter, for good."""
    set_mode_filter = 1
    code = ctypes.create_string_buffer(program, len(program))
    filter_ = _Program(len(program) // 8, ctypes.addressof(code))
    kernel.syscall(number("seccomp"), set_mode_filter, 0, ctypes.byref(filter_))


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def _return(verdict: int) -> _Instruction:
    return _RETURN, 0, 0, verdict


def _refuse(error: int) -> _Instruction:
    return _return(0x00050000 | error)


def _argument(index: int, high: bool = False) -> _Instruction:
    """Load half of an argument. Where the kernel itself looks at the low 32 bits only, so do we."""
    return _LOAD, 0, 0, 16 + 8 * index + (4 if high else 0)


def _one_of(index: int, values: Iterable[int], error: int) -> list[_Instruction]:
    """Allow if the argument, of 32 bits, is one of the values."""
    body = [_argument(index)]
    for value in values:
        body += [(_JUMP_EQ, 0, 1, value), _return(_ALLOW)]
    return [*body, _refuse(error)]


def _only_without(index: int) -> list[_Instruction]:
    """Allow if the argument, a pointer, is null: both halves of it."""
    return [
        _argument(index),
        (_JUMP_EQ, 0, 3, 0),
        _argument(index, high=True),
        (_JUMP_EQ, 0, 1, 0),
        _return(_ALLOW),
        _refuse(errno.EPERM),
    ]


def _thread_only() -> list[_Instruction]:
    return [
        _argument(0),
        (_JUMP_ANY_BIT, 2, 0, CLONE_NAMESPACES),
        (_JUMP_ANY_BIT, 0, 1, CLONE_THREAD),
        _return(_ALLOW),
        _refuse(errno.EPERM),
    ]


def _opening(index: int, landlock: bool) -> list[_Instruction]:
    if landlock:
        program = [_argument(index), (_AND, 0, 0, os.O_ACCMODE | os.O_TRUNC)]
        for flags in OPEN_UNWATCHED:
            program += [(_JUMP_EQ, 0, 1, flags), _refuse(errno.EACCES)]
        return [*program, _return(_ALLOW)]
    return [_argument(index), (_JUMP_ANY_BIT, 0, 1, OPEN_FOR_WRITING), _refuse(errno.EACCES), _return(_ALLOW)]
