"""What the tests of the command line share."""

from __future__ import annotations

import pytest

from agent_gym.cli.main import main


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail by the user's fault, and return its one line."""
    assert main(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "agent-gym: " in line]
    assert len(lines) == 1
    return lines[0]
