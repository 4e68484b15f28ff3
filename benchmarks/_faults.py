"""Faults of the operating system, from a moment on that is drawn from a seed, in the process that calls `inject`."""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("eio", "full", "rename")
FIRST = {"eio": (20, 250), "full": (5, 40), "rename": (10, 60)}
"""By kind: between which calls in the folder the first refusal is drawn."""


def inject(
    kind: str,
    seed: int,
    folder: str,
    *,
    spared: Callable[[Path], bool] = lambda path: False,
    writers: tuple[tuple[Any, str, int], ...] = (),
    first: dict[str, tuple[int, int]] | None = None,
) -> list[str]:
    """Let the operating system refuse something in a folder.

    Args:
        kind: "eio" refuses three calls in a row, of reading, writing, synchronising or renaming; "full" all new files
            and folders; "rename" all new names.
        seed: of the first call that is refused.
        folder: where.
        spared: which files are left alone.
        writers: functions of compiled code that write files, as (owner, name, place of the path among the arguments).
        first: as `FIRST`.

    Returns:
        A list that gets the path of each refused call.
    """
    count, refused = Counter[str](), list[str]()
    start = random.Random(seed).randrange(*(first or FIRST)[kind])

    def refuses(path: Any) -> bool:
        inside = isinstance(path, str | os.PathLike) and str(path).startswith(folder)
        if not inside or spared(Path(str(path))):
            return False
        count[kind] += 1
        if count[kind] < start or (kind == "eio" and count[kind] >= start + 3):
            return False
        refused.append(str(path))
        return True

    def wrap(owner: Any, name: str, number: int, place: int = 0) -> None:
        real = getattr(owner, name)

        def checked(*given: Any, **options: Any) -> Any:
            target = given[place] if len(given) > place else None
            if isinstance(target, int) and not isinstance(target, bool):  # a descriptor
                target = os.readlink(f"/proc/self/fd/{target}")
            if refuses(target):
                raise OSError(number, os.strerror(number), str(target))
            return real(*given, **options)

        setattr(owner, name, checked)

    number = {"eio": errno.EIO, "full": errno.ENOSPC, "rename": errno.EPERM}[kind]
    if kind in ("eio", "rename"):
        for name in ("rename", "replace"):
            wrap(os, name, number)
    if kind == "eio":
        wrap(os, "fsync", number)
        wrap(os, "write", number)
    if kind == "full":
        wrap(os, "mkdir", number)
    if kind != "rename":
        wrap(builtins, "open", number)
        wrap(io, "open", number)
        for owner, name, place in writers:
            wrap(owner, name, number, place)
    return refused


def bound_memory(more: int) -> None:
    """Let this process have so many bytes of address space more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
