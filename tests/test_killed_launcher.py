"""A launcher that is killed takes its ranks with it: real processes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from process_tools import alive

psutil = pytest.importorskip("psutil")
pytest.importorskip("trl")

from test_several_machines import Run, model, until  # noqa: E402, F401

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux's")


def gone(processes: list[int]) -> bool:
    """Wait until processes have ended."""
    deadline = time.monotonic() + 60
    while any(alive(str(pid)) for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(alive(str(pid)) for pid in processes)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["agent-gym", "torchrun"])
def test_no_rank_outlives_its_launcher(model: Path, tmp_path: Path, victim: str) -> None:  # noqa: F811
    run = Run(model, tmp_path / "out", 1, "--max_steps", "10000")
    [first] = run.launchers
    until(lambda: (tmp_path / "out" / "checkpoint-3").is_dir() or first.poll() is not None)
    below = psutil.Process(first.pid).children(recursive=True)
    [torchrun] = psutil.Process(first.pid).children()
    ranks = [process.pid for process in below if "LOCAL_RANK" in process.environ()]
    try:
        assert len(ranks) >= 2, run.said()[-3000:]
        os.kill(first.pid if victim == "agent-gym" else torchrun.pid, signal.SIGKILL)
        assert gone([process.pid for process in below])
    finally:
        for process in below:
            if process.is_running():
                process.kill()
        run.ends()


def start(tmp_path: Path, parent: str) -> Any:
    """Start a process that starts one which asks to end with `parent`; return the first, and the other's number."""
    script = tmp_path / "child.py"
    script.write_text(
        f"import os, time\nfrom agent_gym.cli.launch import end_with\nend_with({parent})\n"
        "print(os.getpid(), flush=True)\ntime.sleep(600)\n"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, {str(script)!r}])"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    process, child = start(tmp_path, "os.getppid()")
    assert alive(child)
    process.kill()
    process.wait()
    assert gone([int(child)])


def test_a_parent_that_was_gone_before_is_noticed(tmp_path: Path) -> None:
    process, child = start(tmp_path, "2**22")  # no process has this number
    assert child == "" and process.wait(60) == 0


def test_ctrl_c_reaches_the_launcher_once_and_is_waited_for(tmp_path: Path) -> None:
    launcher = tmp_path / "accelerate" / "commands" / "launch.py"
    launcher.parent.mkdir(parents=True)
    (tmp_path / "accelerate" / "__init__.py").touch()
    (tmp_path / "accelerate" / "commands" / "__init__.py").touch()
    launcher.write_text(
        textwrap.dedent("""
        import os, signal, time
        got = []
        signal.signal(signal.SIGINT, lambda *_: got.append(1))
        print("ready", os.environ["AGENT_GYM_LAUNCHER"] == str(os.getpid()), flush=True)
        while not got:
            time.sleep(0.01)
        time.sleep(1)
        print("ended in order", len(got), flush=True)
    """)
    )
    code = textwrap.dedent("""
        from agent_gym.cli.launch import run
        from agent_gym.cli.main import guarded
        raise SystemExit(guarded(lambda: run(["--x"])))
    """)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path[1:]])}
    script = f"import sys, os; os.environ['PYTHONPATH'] = {str(tmp_path)!r}\n{code}"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready True\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=60)
    assert out == "ended in order 1\n" and "interrupted" in err and process.returncode == 130
