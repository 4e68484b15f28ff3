"""Whether an answer is the gold answer: as a string, as an exact number, else as math-verify understands LaTeX.

Nearly all answers of a policy that learns are decided by the first two, in microseconds. The rest goes to math-verify
(https://github.com/huggingface/Math-Verify), in another process. Its own time limits are alarms, which only a main
thread can have, and environments run in threads.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import select
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path

from agent_gym.errors import EnvFailure

MAX_ANSWER_CHARS = 1000  # nobody writes a longer answer, and a parser would be busy with it
_PATIENCE_S = 120.0  # the checker bounds CPU time; this is for one that does not answer at all
_CHECKERS = min(4, os.cpu_count() or 1)

_SPACING = re.compile(r"\\[!,;: ]|\\left(?![a-z])|\\right(?![a-z])|[\s$]|(?<=\d),(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"([-+]?)(?:(\d+)(?:/(\d+))?|\\frac\{(-?\d+)\}\{(\d+)\}|(\d*\.\d+))")


def math_equal(answer: str | None, gold: str) -> bool:
    """Say whether two answers are the same mathematical object.

    Args:
        answer: what stood in the box; None for no answer.
        gold: the gold answer, in LaTeX or as plain text.

    Raises:
        EnvFailure: if the comparison could not be made, through no fault of the answer. An answer that takes too much
            to compare is not equal.
    """
    if answer is None or not answer.strip() or len(answer) > MAX_ANSWER_CHARS:
        return False
    given, wanted = normalize(answer), normalize(gold)
    if given == wanted:
        return True
    a, b = exact_number(given), exact_number(wanted)
    if a is not None and b is not None:
        return a == b
    return _compare(answer, gold)


def normalize(text: str) -> str:
    """Leave out what does not change the meaning: spaces, dollar signs, separators of thousands, a full stop."""
    return _SPACING.sub("", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").rstrip(".")


def exact_number(text: str) -> Fraction | None:
    r"""Read a normalized integer, decimal, `3/4`, `\frac{3}{4}` or `\frac{-3}{4}`; None for anything else."""
    match = _NUMBER.fullmatch(text)
    if match is None or not text.isascii():
        return None
    sign, whole, under, top, bottom, decimal = match.groups()
    numerator, denominator = decimal or whole or top, under or bottom or "1"
    if not int(denominator):
        return None
    return (-1 if sign == "-" else 1) * Fraction(numerator) / int(denominator)


class _Checker:
    """The process that runs checker.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("checker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def ask(self, answer: str, gold: str) -> str:
        """Return its line, "" if there is none."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps([answer, gold]).encode() + b"\n")
            stdin.flush()
        except OSError:
            return ""
        if not select.select([stdout], [], [], _PATIENCE_S)[0]:
            return ""
        return stdout.readline().decode().strip()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class _Pool:
    """Checkers of one process, started when they are needed."""

    def __init__(self) -> None:
        self._lock, self._free = threading.Lock(), threading.Semaphore(_CHECKERS)
        self._idle: list[_Checker] = []

    def ask(self, answer: str, gold: str) -> str:
        with self._free:
            with self._lock:
                checker = self._idle.pop() if self._idle else None
            checker = checker or _Checker()
            said = ""
            try:
                said = checker.ask(answer, gold)
            finally:
                if said:
                    with self._lock:
                        self._idle.append(checker)
                else:
                    checker.close()
        return said

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


_pool = _Pool()
_inherited: list[_Pool] = []
atexit.register(lambda: _pool.close())


def _after_fork() -> None:
    """Leave the checkers to the process that started them: two that talk to one would read each other's answers."""
    global _pool
    _inherited.append(_pool)  # kept, so that nothing is done about processes that are not ours
    _pool = _Pool()


os.register_at_fork(after_in_child=_after_fork)


@functools.lru_cache(maxsize=4096)
def _compare(answer: str, gold: str) -> bool:
    for _ in range(_CHECKERS + 1):  # all of them may have been killed from outside, to free memory
        said = _pool.ask(answer, gold)
        if said:
            return said == "equal"
    raise EnvFailure(
        "answers cannot be compared: the process that runs math-verify ended or does not answer; try "
        f"`{sys.executable} {Path(__file__).with_name('checker.py')}`"
    )
