"""What the tests of the command line share."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

import pytest

from agent_gym.cli.main import main


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail by the user's fault, and return its one line."""
    assert main(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "agent-gym: " in line]
    assert len(lines) == 1
    return lines[0]


def small_disk(words: list[str], limit: int) -> subprocess.CompletedProcess[str]:
    """Run a command that may write files of `limit` bytes at most."""

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-B", "-m", "agent_gym", *words]
    return subprocess.run(command, preexec_fn=limited, capture_output=True, text=True, timeout=120)
