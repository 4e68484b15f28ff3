"""A lock in the folder of a run, so that no second training writes into it.

The lock is `flock` on `run.lock`. A run holds it for its life, and the kernel releases it however the run ends. The
file names the run that holds the lock. All processes of a run share the lock: the process that a user has started takes
it and names it in the environment, and the first rank joins it. Resuming, evaluating and viewing need no lock. NFS
carries `flock` from one machine to another unless it is mounted with `local_lock`. If a file system has no locks, a
warning says so. This module imports neither torch nor TRL.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import secrets
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError, writing
from agent_gym.untrusted import number, parse_json

_LAST_SECOND = 253_402_300_800  # the year 10000, which no clock shows
FILE = "run.lock"
_VARIABLE = "AGENT_GYM_RUN"  # the run to which this process belongs
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_open: set[int] = set()  # descriptors with a lock of this process


@contextmanager
def held(folder: str | Path, *, announced: bool = False, meeting: str = "") -> Iterator[None]:
    """Hold the lock of a run's folder, which is made if it does not exist.

    With `announced`, the processes that this process starts belong to the run, and trainers in them join the lock.
    `meeting` is a name that all machines of the run know. Each machine starts the run, and the later machines join.

    Raises:
        ConfigError: if another run holds the lock, or the folder cannot be written.
    """
    path, before = Path(folder, FILE), os.environ.get(_VARIABLE)
    with writing(folder, "name another folder with --output_dir"):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, token = _take(path, meeting or before or "")
    if announced:
        os.environ[_VARIABLE] = token
    try:
        yield
    finally:
        if announced:
            os.environ.pop(_VARIABLE)
            os.environ |= {} if before is None else {_VARIABLE: before}
        _release(path, descriptor)


def announced_run() -> str:
    """Return the name of the announced run to which this process belongs, "" for none."""
    return os.environ.get(_VARIABLE, "")


def refuse_running(folder: str | Path) -> None:
    """Raise `ConfigError` if another run holds the lock of a folder; the call makes and keeps nothing."""
    with suppress(OSError):
        descriptor = os.open(Path(folder, FILE), os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if (owner := _owner(descriptor)).get("token") != os.environ.get(_VARIABLE):
                raise _refusal(folder, owner) from None
        finally:
            os.close(descriptor)  # closing releases the lock


def _take(path: Path, run: str) -> tuple[int, str]:
    """Return a descriptor that holds the lock, and the token of the run, which may be a run to join."""
    while True:
        # A link in a folder that others made could name any file of the user, and that file would be emptied.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        _open.add(descriptor)
        try:
            token = _lock(path, descriptor, run)
            with suppress(FileNotFoundError):
                if token and os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                    return descriptor, token
        except BaseException:
            _close(descriptor)
            raise
        _close(descriptor)  # the previous run has removed the file meanwhile


def _lock(path: Path, descriptor: int, run: str) -> str:
    """Lock the file, write the owner into it, and return the run's token."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = _owner(descriptor)
        if not run or owner.get("token") != run:
            raise _refusal(path.parent, owner) from None
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # this process belongs to that run
        return run
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            f"{path.parent} is on a file system without locks ({error.strerror}): a second training in it would not be "
            "noticed",
            stacklevel=5,
        )
        return run or secrets.token_hex(8)
    token = run or secrets.token_hex(8)
    about = {"token": token, "pid": os.getpid(), "host": platform.node(), "started": time.time()}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(about).encode() + b"\n", 0)
    try:
        # The lock is shared from now on, for further processes of this run; another run asks for an exclusive lock.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # the change to a shared lock is not atomic, and another run came first
        raise _refusal(path.parent, _owner(descriptor)) from None
    return token


def _owner(descriptor: int) -> dict[str, Any]:
    """Read the owner of the lock; the result is empty if the owner is not known."""
    for _ in range(20):  # a run that has just taken the lock writes at once
        with suppress(ValueError):
            about = parse_json(os.pread(descriptor, 4096, 0).decode())
            return about if isinstance(about, dict) else {}
        time.sleep(0.05)
    return {}


def _refusal(folder: str | Path, owner: dict[str, Any]) -> ConfigError:
    since = ""
    if number(owner.get("started")) and 0 < owner["started"] < _LAST_SECOND:
        since = f" since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(owner['started']))}"
    who = f"process {owner.get('pid', 'unknown')} on {owner.get('host', 'an unknown host')}"
    return ConfigError(
        f"{folder} is the folder of a run that trains at present ({who}{since}): wait for its end, end it, or name "
        "another --output_dir"
    )


def _release(path: Path, descriptor: int) -> None:
    # The last process of the run removes the file.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
            path.unlink()
    _close(descriptor)


def _close(descriptor: int) -> None:
    _open.discard(descriptor)
    os.close(descriptor)


def _forget() -> None:
    """Close the descriptors that a forked process has inherited, which would hold the lock after the run has ended."""
    while _open:
        with suppress(OSError):
            os.close(_open.pop())


os.register_at_fork(after_in_child=_forget)
