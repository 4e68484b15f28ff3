"""Landlock: a process gives up the rights to all files but a few, without any privilege. Linux 5.13 and later.

See https://docs.kernel.org/userspace-api/landlock.html. It decides who opens, lists and changes files, and (from
ABI 4) who connects by TCP, (from 6) who signals and speaks to abstract sockets outside. It does not watch stat, chmod,
chown, utimes, extended attributes, opening for neither reading nor writing, and (before ABI 3, Linux 6.2) truncation:
those are left to the filter of system calls.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from . import libc, seccomp

READ_FILE, READ_DIR, WRITE_FILE, TRUNCATE = 1 << 2, 1 << 3, 1 << 1, 1 << 14
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many rights on files an ABI knows; bits from 0
_BIND_AND_CONNECT_TCP = 3
_SCOPE_SOCKETS_AND_SIGNALS = 3


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scope", ctypes.c_uint64)]


class _Rule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("rights", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def abi() -> int:
    """The version that the kernel speaks; 0 where there is none."""
    ask_for_version = 1
    try:
        return libc.syscall(seccomp.number("landlock_create_ruleset"), None, 0, ask_for_version)
    except OSError:
        return 0


def ruleset(rules: Iterable[tuple[str, int]]) -> int:
    """Make a set of rules that refuses everything but `rules`: pairs of a path and the rights beneath it.

    Returns:
        A descriptor, for `apply`.

    Raises:
        OSError: if the kernel has no Landlock, or a path is not there.
    """
    version = abi()
    handled = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    wanted = _Ruleset(handled, _BIND_AND_CONNECT_TCP, _SCOPE_SOCKETS_AND_SIGNALS)
    size = 24 if version >= 6 else 16 if version >= 4 else 8  # the record grew with the versions
    create = seccomp.number("landlock_create_ruleset")
    try:
        made = libc.syscall(create, ctypes.byref(wanted), size, 0)
    except OSError:
        # Some kernels of RHEL 9 claim version 6 without the scopes.
        made = libc.syscall(create, ctypes.byref(wanted), min(size, 16), 0)
    for path, rights in rules:
        where = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(path):
                rights &= READ_FILE | WRITE_FILE | TRUNCATE
            rule = _Rule(rights & handled, where)
            beneath = 1
            libc.syscall(seccomp.number("landlock_add_rule"), made, beneath, ctypes.byref(rule), 0)
        finally:
            os.close(where)
    return made


def apply(made: int) -> None:
    """Put this process under the rules, for good.

    Raises:
        OSError: if it did not set no_new_privs before.
    """
    libc.syscall(seccomp.number("landlock_restrict_self"), made, 0)
