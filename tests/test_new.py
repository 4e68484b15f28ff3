"""`agent-gym new env`: what it writes works at once, by module, by test, installed or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_gym.cli.main import main


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["new", "env", "guess_it"]) == 0
    assert "agent-gym speedrun --env guess_it:Mine/GuessIt-v0" in capsys.readouterr().out
    return tmp_path / "guess_it"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # The command's own file is what starts here, not `python -m`, which would find the folder by itself.
    code = "import sys; sys.path = [p for p in sys.path if p]; from agent_gym.cli.main import main; sys.exit(main())"
    words = (sys.executable, "-c", code, *words) if words[0] != "pytest" else (sys.executable, "-m", *words)
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, env={**os.environ})


def test_its_tests_and_ruff_pass_and_commands_find_it(made: Path) -> None:
    done = run(made, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0 and "5 passed" in done.stdout, done.stdout + done.stderr
    done = run(made, "rollout", "guess_it:Mine/GuessIt-v0", "--expert", "--episodes", "8", "--output", "t.jsonl")
    assert done.returncode == 0, done.stderr
    assert (made / "t.jsonl").read_text().count("\n") == 8 and "success" in done.stdout
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", "--select=E,F,I,UP,B", str(made)]
    assert subprocess.run(ruff, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env", "Guess-It"], "cannot name a package"),
        (["env", "json"], "'json' is installed already"),
        (["env", "guess_it"], "exists already"),
        (["env", "other", "--namespace", "a/b"], "--namespace"),
        (["tool", "other"], "invalid choice"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    made: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(made.parent.rglob("*"))
    assert main(["new", *words]) == 2
    assert message in capsys.readouterr().err
    assert sorted(made.parent.rglob("*")) == before
