"""The list of system calls as a filter program for the kernel (seccomp-bpf), without libseccomp.

The kernel runs the program before each system call, on this record: the number of the call (4 bytes), the architecture
(4), the address of the instruction (8), and six arguments of 8 bytes. See seccomp(2), and linux/filter.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from . import libc
from .syscall_numbers import NUMBERS
from .syscalls import (
    AF_UNIX,
    ALLOWED,
    CLONE_NAMESPACES,
    CLONE_THREAD,
    FCNTL_COMMANDS,
    IOCTL_COMMANDS,
    OPEN_FOR_WRITING,
    OPEN_UNWATCHED,
    PRCTL_OPTIONS,
    REFUSED_WITH_EACCES,
    REFUSED_WITH_ENOSYS,
)

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
    """Build the filter, with a placeholder for the process id.

    Args:
        landlock: whether Landlock decides what is opened. Without it no file may be opened for writing.
    """
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
    """Put this process under the filter, for good.

    Raises:
        OSError: if the kernel does not take it.
    """
    set_mode_filter = 1
    code = ctypes.create_string_buffer(program, len(program))
    filter_ = _Program(len(program) // 8, ctypes.addressof(code))
    libc.syscall(number("seccomp"), set_mode_filter, 0, ctypes.byref(filter_))


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
