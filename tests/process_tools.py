"""What tests ask about processes, and about the files and threads that this process holds open."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def until(holds: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def alive(pid: str) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def holds_in_a_fork(check: Callable[[], bool]) -> bool:
    """Whether a check holds in a forked process, which must not wait for what its parent holds."""
    child = os.fork()
    if not child:
        signal.alarm(60)
        right = False
        try:
            right = check()
        finally:
            os._exit(not right)
    return os.waitpid(child, 0)[1] == 0


def held() -> set[str]:
    """Every open descriptor with what is behind it, and every thread.

    In one process with a thousand other tests a count shows too little: what an earlier test left to the garbage
    collector may be closed in between, and hide (or feign) a leak. A test asserts ``not held() - before`` instead.
    """
    gc.collect()
    found = {f"thread {thread.name} {thread.ident}" for thread in threading.enumerate()}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.add(f"descriptor {descriptor} {os.readlink(f'/proc/self/fd/{descriptor}')}")
        except FileNotFoundError:
            pass  # This is the one through which the folder itself was read.
    return found
