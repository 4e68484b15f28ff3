"""Processes that compare answers: `Pool` starts comparing.py as a script."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("comparing.py")
CHECKERS = min(4, os.cpu_count() or 1)
_PATIENCE_S = 120.0  # the script bounds CPU time; this is for one that does not answer at all


class Pool:
    """Checkers, started when they are needed; one that does not answer is ended. Safe to use from several threads."""

    def __init__(self) -> None:
        self.idle: list[subprocess.Popen[bytes]] = []
        self._inherited: list[subprocess.Popen[bytes]] = []
        self._free = threading.Semaphore(CHECKERS)
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._leave)

    def ask(self, request: dict[str, Any]) -> str:
        """Return the line of a checker about a request of comparing.py, "" if there is none."""
        with self._free:
            try:
                checker = self.idle.pop()
            except IndexError:
                checker = _start()
            assert checker.stdin is not None and checker.stdout is not None
            line = b""
            try:
                checker.stdin.write(json.dumps(request).encode() + b"\n")
                checker.stdin.flush()
                if select.select([checker.stdout], [], [], _PATIENCE_S)[0]:
                    line = checker.stdout.readline()
            except OSError:
                pass  # it has ended
            finally:
                if line:
                    self.idle.append(checker)
                else:
                    _end(checker)
        return line.decode().strip()

    def close(self) -> None:
        while self.idle:
            _end(self.idle.pop())

    def _leave(self) -> None:
        """Leave the checkers to the process that started them: two that talk to one would read each other's answers."""
        self._inherited += self.idle  # kept, so that nothing is done about processes that are not ours
        self.idle, self._free = [], threading.Semaphore(CHECKERS)


def _start() -> subprocess.Popen[bytes]:
    # The variables with which a checker finds math-verify: it parses a policy's text, which needs no keys of the
    # caller.
    passed = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={"LANG": "C.UTF-8", "PATH": os.defpath, "PYTHONPATH": path, **passed},
    )


def _end(checker: subprocess.Popen[bytes]) -> None:
    checker.kill()
    checker.communicate()
