"""What tests ask about processes, and about the files and threads that this process holds open."""

import gc
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
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


class Fork:
    """A fork of this process that does something, with some methods of `subprocess.Popen`.

    It has imported what this process has: a process that begins anew would import torch for several seconds.
    """

    def __init__(self, work: Callable[[], int], output: int | None = None, errors: int | None = None) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            self._run(work, output, errors)

    def _run(self, work: Callable[[], int], output: int | None, errors: int | None) -> None:
        code = 1
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for number, given in enumerate((null, output or null, errors or null)):
                os.dup2(given, number)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", 1) for number in (1, 2))
            if torch := sys.modules.get("torch"):
                torch.set_num_threads(1)  # others of this process are not in the fork
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self, timeout: float = 120) -> int:
        until(lambda: self.poll() is not None, timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def in_a_fork(work: Callable[[], int]) -> tuple[int, str, str]:
    """Do something in a fork, and return its code, output and errors."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = Fork(work, output.fileno(), errors.fileno())
        try:
            code = process.wait()
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return code, output.read(), errors.read()


def holds_in_a_fork(check: Callable[[], bool]) -> bool:
    """Whether a check holds in a forked process, which must not wait for what its parent holds."""
    return in_a_fork(lambda: int(not check()))[0] == 0


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
