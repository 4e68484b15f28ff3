"""Compares mathematical expressions with math-verify, each in a process of its own; started by scoring.py.

It reads lines of JSON, [answer, gold], and answers each with one line: "equal", "different", or "limit" where the
comparison took too much. `9^{9^{9^9}}` is a short answer, and sympy would compute it: in C, where no exception of
Python's gets to. So what bounds a comparison is the kernel: a timer of CPU time whose signal ends the process, and a
limit of its memory. The process that reads the lines only forks and waits, so that nothing an answer does reaches it,
and each comparison starts from the same state, with sympy loaded.

This file runs by itself, as a script, and imports nothing of this package.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys

CPU_SECONDS = 2.0
MEMORY_BYTES = 1 << 30


def main() -> None:
    """Serve until the input ends."""
    from math_verify import parse, verify

    # It warns that nobody watches the time.
    logging.disable(logging.CRITICAL)
    # What the first comparison compiles and imports, all others inherit.
    verify(parse(r"\boxed{\frac{1}{2}}", parsing_timeout=None), parse(r"\boxed{x^2}", parsing_timeout=None))
    for line in sys.stdin:
        answer, gold = json.loads(line)
        child = os.fork()
        if not child:
            verdict = 3
            try:
                limit()
                verdict = 2
                given, wanted = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (answer, gold))
                verdict = 0 if verify(wanted, given, timeout_seconds=None) else 1
            finally:
                os._exit(verdict)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 3:
            sys.exit("comparisons cannot be bounded here")  # and so must not be made
        # A signal and a lack of memory say the same: too much for so little.
        print({0: "equal", 1: "different"}.get(code, "limit"), flush=True)


def limit() -> None:
    """Bound what this process can take from now on."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)


if __name__ == "__main__":
    main()
