"""Completion: what may come next, and a shell that asks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_gym.cli import start
from agent_gym.cli.main import COMMANDS, main


@pytest.mark.parametrize(
    ("before", "some"),
    [
        ([], ["grpo", "completion"]),
        (["play"], ["AgentR1/GSM8K-v0", "--env_kwargs"]),
        (["eval", "AgentR1/GSM8K-v0"], ["--policy", "--panel"]),
        (["grpo"], ["AgentR1/GSM8K-v0", "--learning_rate", "--dry_run"]),
        (["export"], ["model", "tasks"]),
        (["serve", "search"], ["--corpus"]),
        (["nope"], []),
    ],
)
def test_words_that_may_follow(before: list[str], some: list[str], capsys: Any) -> None:
    assert main(["completion", "words", *before]) == 0
    words = capsys.readouterr().out.split()
    assert set(some) <= set(words) and (before != [] or words == list(COMMANDS)) and bool(some) == bool(words)


def test_bash_completes(tmp_path: Path) -> None:
    command = tmp_path / "agent-gym"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m agent_gym "$@"\n')
    command.chmod(0o755)
    asked = "COMP_WORDS=(agent-gym play AgentR1/Bi); COMP_CWORD=2; _agent_gym"
    script = Path(start.__file__).with_name("completion-bash.txt").read_text() + asked + '; echo "${COMPREPLY[@]}"'
    words = ["bash", "-c", f"PATH={tmp_path}:$PATH\n{script}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "AgentR1/Bisect-v0", done.stderr
