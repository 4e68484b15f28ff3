"""Which system calls a policy's program may make, and why: a filter for the kernel (seccomp-bpf), without libseccomp.

It is a list of the allowed calls: whatever else the kernel has or will have is answered with EPERM. That keeps out, for
example, io_uring (which would do file and network work past any filter), ptrace, pidfd_getfd and kcmp (other
processes), memfd_create (memory that no limit counts), shmget and msgget (memory that outlives the process), the
scheduler of others, and chmod, chown, utimes and setxattr, which Landlock does not watch.

The kernel runs the filter before each system call, on this record: the number of the call (4 bytes), the architecture
(4), the address of the instruction (8), and six arguments of 8 bytes. See seccomp(2), and linux/filter.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from . import kernel

# By which `usage.Meter` hears of calls and answers: SECCOMP_IOCTL_NOTIF_RECV and SECCOMP_IOCTL_NOTIF_SEND.
NOTIFICATIONS = RECEIVE, SEND = 0xC0502100, 0xC0182101

_Numbers = dict[str, list[str]]


def _read() -> dict[str, _Numbers]:
    """Read the names of calls with their numbers, by the sections of calls.txt, in its order."""
    found: dict[str, _Numbers] = {}
    for line in Path(__file__).with_name("calls.txt").read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            section |= {name: numbers for name, *numbers in map(str.split, line.split(","))}
    return found


_CALLS = _read()
_ALLOWED, _JUDGED, _FILE_CHANGES = _CALLS["allowed"], _CALLS["judged"], _CALLS["file changes"]
_REFUSED_WITH_EACCES = _FILE_CHANGES | _CALLS["refused with EACCES"]
_SHELL = _FILE_CHANGES | _CALLS["shell"]
_REFUSED_WITH_ENOSYS, _REFUSED_TO_SHELLS = _CALLS["refused with ENOSYS"], _CALLS["refused to shells"]

# fcntl: descriptors and their flags. Left out are F_SETOWN and F_SETSIG, by which the kernel can be made to send any
# signal to any process of the same user when a file becomes readable; F_SETPIPE_SZ, memory that no limit counts;
# F_ADD_SEALS, which would freeze the output of a session; leases and directory notification.
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC, _F_GETPIPE_SZ = 0, 1, 2, 3, 4, 1030, 1032
_F_LOCKS = (5, 6, 7, 36, 37, 38)  # of databases, in a session's own files
_FCNTL_COMMANDS = (_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC, _F_GETPIPE_SZ)

# ioctl: Python's calls for an open file. TIOCSTI, which types into a terminal, and everything of devices is left out.
_TCGETS, _TIOCGWINSZ, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX = 0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451
_IOCTL_COMMANDS = (_TCGETS, _TIOCGWINSZ, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX)

# prctl: the name of a thread. Nothing that could undo a protection (dumpable, the signal when the parent dies).
_PR_SET_NAME, _PR_GET_NAME = 15, 16

_AF_UNIX = 1
# mmap: a mapping of one process alone. Of the large pages of a machine, which no figure of a process has, none.
_MAP_TYPE, _MAP_PRIVATE, _MAP_HUGETLB = 0xF, 0x2, 0x40000
_CLONE_THREAD = 0x10000
_CLONE_NAMESPACES = 0x7E020080
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and __O_TMPFILE: the flags of an open for writing.
_OPEN_FOR_WRITING = 0o3 | 0o100 | 0o1000 | 0o20000000
# The parts of O_ACCMODE that not all versions of Landlock watch and O_TRUNC: access mode 3, a descriptor for neither
# reading nor writing, for which it asks no right, and, before version 3, a file that is opened for reading and emptied.
OPEN_UNWATCHED = (0o3, 0o3 | 0o1000, 0o0 | 0o1000)

MACHINE = os.uname().machine
COLUMNS = {"x86_64": 0, "aarch64": 1}  # of the numbers
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_X32 = 0x40000000  # a second set of numbers on x86_64, which would pass a filter of the first unseen
_SECCOMP = {"x86_64": 317, "aarch64": 277}

_LOAD, _AND, _JUMP_EQ, _JUMP_GE, _JUMP_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _TELL = 0x7FFF0000, 0x80000000, 0x7FC00000
_NEW_LISTENER = 1 << 3
_NUMBER, _ARCHITECTURE = 0, 4

# Holds the place of the process id in the program until `for_process` sets it; above any process id.
_OWN_PID = 0x7FFFFFFE

_Instruction = tuple[int, int, int, int]


def template(landlock: bool, shell: bool = False, told: bool = True) -> bytes:
    """Build the filter, with a placeholder for the process id. Without Landlock no file may be opened for writing.

    That of a `shell` has no placeholder: its signals are held by the namespace of processes that it runs in. Its
    processes can share memory, and the first one is told of that (`listen`); or none may, unless `told`.
    """
    judged = {
        "openat": _opening(2, landlock),
        "open": _opening(1, landlock),
        # One process is one execution: a process that cannot fork can be killed completely, and its limits cover all
        # that it does.
        "clone": _thread_only(),
        "kill": _one_of(0, [_OWN_PID], errno.EPERM),
        "tgkill": _one_of(0, [_OWN_PID], errno.EPERM),
        "fcntl": _one_of(1, _FCNTL_COMMANDS, errno.EPERM),
        "ioctl": _one_of(1, _IOCTL_COMMANDS, errno.ENOTTY),
        "prctl": _one_of(0, [_PR_SET_NAME, _PR_GET_NAME], errno.EPERM),
        "prlimit64": _only_without(2),  # the new limit: reading one's limits is all right
        # A pair is connected to itself alone; asyncio wakes its loop by one. Nothing is sent to an address, and sendmsg
        # is not allowed at all: descriptors in flight are counted by no limit.
        "socketpair": _one_of(0, [_AF_UNIX], errno.EACCES),
        "sendto": _only_without(4),
        "mmap": [_return(_ALLOW)],
    }
    allowed = _ALLOWED
    if shell:
        allowed = {name: numbers for name, numbers in (_ALLOWED | _SHELL).items() if name != "mmap"}
        sharing = _return(_TELL) if told else _refuse(errno.ENOMEM)
        judged |= {
            "mmap": _private_or(sharing),
            "socketpair": [_argument(0), (_JUMP_EQ, 0, 1, _AF_UNIX), sharing, _refuse(errno.EACCES)],
        }
        judged |= dict.fromkeys(("openat", "open", "kill", "tgkill"), [_return(_ALLOW)])
        judged |= {"clone": _no_namespace(), "fcntl": _one_of(1, (*_FCNTL_COMMANDS, *_F_LOCKS), errno.EPERM)}
        # For the first process alone: no other can get a descriptor of the kind that understands these.
        judged["ioctl"] = _one_of(1, (*_IOCTL_COMMANDS, *NOTIFICATIONS), errno.ENOTTY)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQ, 1, 0, _ARCHITECTURES[MACHINE]),
        _return(_KILL),  # int 0x80 and the like: another table of numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if MACHINE == "x86_64":
        program += [(_JUMP_GE, 0, 1, _X32), _return(_KILL)]

    def on(calls: _Numbers, body: Callable[[str], list[_Instruction]]) -> None:
        for name, numbers in calls.items():
            number, then = numbers[COLUMNS[MACHINE]], body(name)
            if number != "-" and (calls is allowed or name not in allowed):
                program.extend([(_JUMP_EQ, 0, len(then), int(number)), *then])

    on(allowed, lambda name: [_return(_ALLOW)])
    on(_JUDGED, lambda name: judged[name])
    on(_REFUSED_WITH_EACCES, lambda name: [_refuse(errno.EACCES)])
    if shell:
        on(_REFUSED_TO_SHELLS, lambda name: [_refuse(errno.EOPNOTSUPP)])
    on(_REFUSED_WITH_ENOSYS, lambda name: [_refuse(errno.ENOSYS)])
    program.append(_refuse(errno.EPERM))
    return assembled(program)


def assembled(program: Iterable[_Instruction]) -> bytes:
    """Return the instructions as the kernel reads them."""
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def for_process(template: bytes, pid: int) -> bytes:
    """Put the process id into the filter: signals go to this process only."""
    return template.replace(struct.pack("I", _OWN_PID), struct.pack("I", pid))


def apply(program: bytes) -> None:
    """Put this process under the filter, for good."""
    _apply(program, 0)


def listen(program: bytes) -> int:
    """Put this process under the filter, for good, and return a descriptor that reads the calls it tells of.

    Needs Linux 5.5, and no other filter above it that does the same, as some containers have.
    """
    return _apply(program, _NEW_LISTENER)


def _apply(program: bytes, flags: int) -> int:
    set_mode_filter = 1
    code = ctypes.create_string_buffer(program, len(program))
    record = struct.pack("HP", len(program) // 8, ctypes.addressof(code))
    return kernel.syscall(_SECCOMP[MACHINE], set_mode_filter, flags, record)


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
    low, high = _argument(index), _argument(index, high=True)
    return [low, (_JUMP_EQ, 0, 3, 0), high, (_JUMP_EQ, 0, 1, 0), _return(_ALLOW), _refuse(errno.EPERM)]


def _thread_only() -> list[_Instruction]:
    neither = (_JUMP_ANY_BIT, 2, 0, _CLONE_NAMESPACES)
    return [_argument(0), neither, (_JUMP_ANY_BIT, 0, 1, _CLONE_THREAD), _return(_ALLOW), _refuse(errno.EPERM)]


def _private_or(verdict: _Instruction) -> list[_Instruction]:
    """Allow a mapping that belongs to one process; others get the verdict."""
    large = [_argument(3), (_JUMP_ANY_BIT, 0, 1, _MAP_HUGETLB), _refuse(errno.ENOMEM)]
    return [*large, (_AND, 0, 0, _MAP_TYPE), (_JUMP_EQ, 0, 1, _MAP_PRIVATE), _return(_ALLOW), verdict]


def _no_namespace() -> list[_Instruction]:
    # The lowest bit of these is among the bits of the signal at the end, where no signal has it.
    return [_argument(0), (_JUMP_ANY_BIT, 0, 1, _CLONE_NAMESPACES), _refuse(errno.EPERM), _return(_ALLOW)]


def _opening(index: int, landlock: bool) -> list[_Instruction]:
    if not landlock:
        return [_argument(index), (_JUMP_ANY_BIT, 0, 1, _OPEN_FOR_WRITING), _refuse(errno.EACCES), _return(_ALLOW)]
    program = [_argument(index), (_AND, 0, 0, os.O_ACCMODE | os.O_TRUNC)]
    for flags in OPEN_UNWATCHED:
        program += [(_JUMP_EQ, 0, 1, flags), _refuse(errno.EACCES)]
    return [*program, _return(_ALLOW)]
