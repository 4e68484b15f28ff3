"""System calls that Python has no function for, by ctypes."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def failed(what: str) -> OSError:
    """Make the error of the call that has just failed."""
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def syscall(number: int, *arguments: object) -> int:
    """Call by number. Whole numbers are passed as 64 bits, as the kernel reads them.

    Raises:
        OSError: what the kernel answered.
    """
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise failed(f"system call {number}")
    return result


def prctl(option: int, *arguments: int) -> None:
    """Change a property of this process.

    Raises:
        OSError: what the kernel answered.
    """
    words = [ctypes.c_ulong(one) for one in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *words) < 0:
        raise failed(f"prctl {option}")


def capabilities(function: str, header: ctypes.Structure, sets: ctypes.Array[Any]) -> None:
    """Call capget or capset.

    Raises:
        OSError: what the kernel answered.
    """
    if getattr(_libc, function)(ctypes.byref(header), ctypes.byref(sets)) < 0:
        raise failed(function)


def unshare(flags: int) -> None:
    """Leave the namespaces that the flags name for new ones.

    Raises:
        OSError: if this process may not.
    """
    if _libc.unshare(flags) < 0:
        raise failed("unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount a file system, or change how one is mounted.

    Raises:
        OSError: if this process may not, or there is no such place.
    """
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    if _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) < 0:
        raise failed(f"mount {target}")


def unmount(target: str) -> None:
    """Take a mount away; it goes when nobody uses it any more.

    Raises:
        OSError: if this process may not.
    """
    detach = 2
    if _libc.umount2(target.encode(), detach) < 0:
        raise failed(f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root of this mount namespace and put the old one at `old`.

    Raises:
        OSError: if this process may not.
    """
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
