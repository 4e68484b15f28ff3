"""Compares mathematical expressions with math-verify in other processes: `Pool` starts this file as a script.

The script reads lines of JSON, [answer, gold], and answers each with one line: "equal", "different", or "limit" where
the comparison took too much. `9^{9^{9^9}}` is a short answer, and sympy would compute it: in C, where no exception of
Python's gets to. So the kernel bounds a comparison, by a timer of CPU time whose signal ends the process and a limit of
its memory. The process that reads the lines only forks and waits. It imports nothing of this package, to start fast.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import threading

CPU_SECONDS = 2.0
MEMORY_BYTES = 1 << 30
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

    def ask(self, answer: str, gold: str) -> str:
        """Return the line of a checker, "" if there is none."""
        with self._free:
            try:
                checker = self.idle.pop()
            except IndexError:
                checker = _start()
            assert checker.stdin is not None and checker.stdout is not None
            line = b""
            try:
                checker.stdin.write(json.dumps([answer, gold]).encode() + b"\n")
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
    # What a checker needs to find math-verify: it parses a policy's text, which keys of the caller have no part in.
    passed = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={"LANG": "C.UTF-8", "PATH": os.defpath, "PYTHONPATH": path, **passed},
    )


def _end(checker: subprocess.Popen[bytes]) -> None:
    checker.kill()
    checker.communicate()


def main() -> None:
    """Serve until the input ends."""
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)  # it warns that nothing watches the time
    # What the first comparison compiles and imports, all others inherit.
    verify(parse(r"\boxed{\frac{1}{2}}", parsing_timeout=None), parse(r"\boxed{x^2}", parsing_timeout=None))
    for line in sys.stdin:
        answer, gold = json.loads(line)
        child = os.fork()
        if not child:
            verdict = 3
            try:
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
                signal.signal(signal.SIGPROF, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
                verdict = 2
                given, wanted = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (answer, gold))
                verdict = 0 if verify(wanted, given, timeout_seconds=None) else 1
            finally:
                os._exit(verdict)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 3:
            sys.exit("comparisons cannot be bounded here")  # and so must not be made
        # A signal and a lack of memory mean the same: too much for so little.
        print({0: "equal", 1: "different"}.get(code, "limit"), flush=True)


if __name__ == "__main__":
    main()
