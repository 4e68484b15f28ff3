"""The commit-msg hook lets imperative first lines through; setup.sh links it and leaves an existing hook alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOOK = ROOT / ".ci" / "commit-msg"
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of git with the function of setup.sh that links the hook."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(HOOK, tmp_path / ".ci")
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "user.name", "Somebody")
    git(tmp_path, "config", "user.email", "somebody@example.org")
    return tmp_path


def git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=60)


def link(folder: Path) -> None:
    text = (ROOT / "setup.sh").read_text(encoding="utf-8")
    function = text[text.index("link_hook() {") : text.index("\n}\n", text.index("link_hook() {")) + 3]
    subprocess.run(["bash", "-euc", f"{function}\nlink_hook"], cwd=folder, check=True, timeout=60)


def commit(folder: Path, message: str) -> subprocess.CompletedProcess[str]:
    return git(folder, "commit", "--allow-empty", "-m", message)


@pytest.mark.parametrize(
    "message",
    [
        "Keep tool text out of the loss",
        "Pass seeds to workers",
        "Process rows in order",
        "Feed images to the engine\n\nThe reason follows.",
        'Revert "Sampled tokens are kept"',
        "fixup! anything",
        "Add " + "x" * 68,
    ],
)
def test_an_imperative_line_is_committed(checkout, message):
    link(checkout)
    done = commit(checkout, message)
    assert done.returncode == 0, done.stderr
    assert git(checkout, "log", "--format=%s").stdout.strip() == message.split("\n")[0]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("What staleness costs is told seed by seed", "'What' is no verb"),
        ("Added a hook", "'Added' is not the imperative"),
        ("Adding a hook", "'Adding' is not the imperative"),
        ("Adds a hook", "'Adds' is not the imperative"),
        ("keep tool text out of the loss", "capital letter"),
        ("3 more tests", "capital letter"),
        ("Plan: quote the name", "'Plan:' is no verb"),
        ("Keep tool text out of the loss.", "ends with a period"),
        ("Add " + "x" * 69, "73 characters, 72 at most"),
        ("Keep tool text\nout of the loss", "second line must be empty"),
    ],
)
def test_another_line_is_refused_with_its_reason_and_the_cure(checkout, message, reason):
    link(checkout)
    done = commit(checkout, message)
    assert done.returncode != 0
    assert reason in done.stderr and "imperative" in done.stderr
    assert "CONTRIBUTING.md" in done.stderr


def test_a_hook_that_is_there_stays(checkout):
    hook = checkout / ".git" / "hooks" / "commit-msg"
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    link(checkout)
    assert not hook.is_symlink() and commit(checkout, "whatever").returncode == 0


def test_linking_without_git_or_in_a_worktree(checkout, tmp_path_factory):
    link(tmp_path_factory.mktemp("export"))
    commit(checkout, "Begin")
    tree = tmp_path_factory.mktemp("trees") / "tree"
    git(checkout, "worktree", "add", "-q", str(tree), "-b", "side")
    shutil.copytree(checkout / ".ci", tree / ".ci")
    link(tree)
    assert commit(tree, "what").returncode != 0
