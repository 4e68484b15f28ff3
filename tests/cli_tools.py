"""What the tests of the command line share."""

from __future__ import annotations

import os
import pty
import re
import resource
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from process_tools import in_a_fork

from agent_gym.cli.main import main

CTRL_C = b"\x03"
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail by the user's fault, and return its one line."""
    assert main(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "agent-gym: " in line]
    lines = [line for line in lines if "agent-gym: calls of tools are" not in line]  # said when a model is loaded
    assert len(lines) == 1
    return lines[0]


def small_disk(words: list[str], limit: int) -> str:
    """Run a command that may write files of `limit` bytes at most, and return the one line with which it fails."""

    def limited() -> int:
        sys.dont_write_bytecode = True
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return main(words)

    code, _, said = in_a_fork(limited)
    assert code == 1 and "Traceback" not in said, said
    (line,) = [line for line in said.splitlines() if "agent-gym: " in line]
    return line


def at_a_terminal(folder: Path, *arguments: str, steps: Sequence[tuple[str, bytes]] = ()) -> tuple[int, str]:
    """Run a command on a terminal of its own, type each text when its pattern is to be seen; return code and output."""
    terminal, inside = pty.openpty()
    termios.tcsetwinsize(inside, (40, 100))
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_gym", *arguments], cwd=folder, env={**os.environ, "TERM": "xterm"},
        stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
    )  # fmt: skip
    os.close(inside)
    shown, left, deadline = b"", list(steps), time.monotonic() + 240
    try:
        with suppress(OSError):  # the other end is closed
            while time.monotonic() < deadline and (piece := os.read(terminal, 65536)):
                shown += piece
                if left and re.search(left[0][0].encode(), _ESCAPES.sub(b"", shown)):
                    _, text = left.pop(0)
                    # It is not the terminal of the process's session, which would make a signal of the key.
                    process.send_signal(signal.SIGINT) if text == CTRL_C else os.write(terminal, text)
        code = process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(terminal)
    assert not left, f"{left[0][0]!r} was never to be seen in {shown[-3000:]!r}"
    return code, _ESCAPES.sub(b"", shown).decode(errors="replace")
