"""A machine that runs out of something while a command works: one line with the cure, in real processes."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_gym.cli.main import guarded
from agent_gym.errors import AgentGymError


def said(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    def run() -> int:
        raise error

    code = guarded(run)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (OSError(errno.EIO, os.strerror(errno.EIO), "/data/x"), "Input/output error at /data/x; the disk may be"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files; raise the limit of open files"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x"), "No space left on device at /data/x; make room"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "/x"), "Read-only file system at /x; name another place"),
        (OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), "a" * 300), "File name too long at aaa"),
        (MemoryError(), "no memory is left; give less work at once"),
        (RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: 9 bytes"), "no memory is left ("),
        (RuntimeError("can't start new thread"), "can't start new thread; raise the limit of processes"),
        (OSError(errno.EIO, "a\x1b]0;title\x07", "/x"), "a␛]0;title␇ at /x; the disk"),
    ],
)
def test_what_a_machine_lacks_is_one_line(error: BaseException, cure: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = said(error, capsys)
    assert code == 1
    assert line.startswith(f"agent-gym: {cure}"), line
    assert line.count("\n") == 1


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("x"), OSError(errno.EBADF, "x")])
def test_defects_keep_their_traceback(error: Exception) -> None:
    def run() -> int:
        raise error

    with pytest.raises(type(error)):
        guarded(run)
    assert issubclass(AgentGymError, Exception)


def command(words: list[str], folder: Path, limit: Callable[[], None]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent_gym", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"},
    )


PLAYED = ["eval", "AgentR1/GSM8K-v0", "--expert", "--episodes", "8", "--output", "run.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "bound"),
    [(resource.RLIMIT_NOFILE, 12), (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_FSIZE, 3000)],
)
def test_a_command_under_a_limit_finishes_or_says_why(kind: int, bound: int, tmp_path: Path) -> None:
    done = command(PLAYED, tmp_path, lambda: resource.setrlimit(kind, (bound, bound)))
    assert "Traceback" not in done.stderr, done.stderr
    if done.returncode:
        assert len([line for line in done.stderr.splitlines() if line.startswith("agent-gym: ")]) == 1, done.stderr
    again = command([*PLAYED, "--resume"], tmp_path, lambda: None)
    assert again.returncode == 0, again.stderr
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 8
