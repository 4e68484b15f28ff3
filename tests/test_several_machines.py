"""A run on two machines, each with a launcher of its own: here two launchers on one machine.

What they share is what docs/scale.md asks for: a port of the first one, and the folders. A launcher that is killed
takes its ranks with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from process_tools import alive
from tiny import make_tiny_model

psutil = pytest.importorskip("psutil")
safetensors = pytest.importorskip("safetensors.numpy")
pytest.importorskip("trl")

from trainer_tools import ENV, _free_port, distance  # noqa: E402

STEPS = 12
LIMIT_S = 400.0
OPTIONS = f"""
    --use_cpu --report_to none --train_tasks 64 --seed 3 --per_device_train_batch_size 4 --num_generations 4
    --learning_rate 1e-3 --lr_scheduler_type constant --max_turn_tokens 8 --max_episode_tokens 700 --max_steps {STEPS}
    --use_vllm false --save_steps 3 --accelerate_config cpu --num_processes 2 --num_cpu_threads_per_process 1
    --main_process_ip 127.0.0.1
""".split()
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux's")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


class Run:
    """The launchers of one run, one for each machine; together they start two processes."""

    def __init__(self, model: Path, out: Path, machines: int, *words: str) -> None:
        out.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "agent_gym", "grpo", f"trainer_tools:{ENV}", *OPTIONS]
        command += ["--model_name_or_path", str(model), "--output_dir", str(out), *words]
        command += ["--num_machines", str(machines), "--main_process_port", str(_free_port())]
        # The module that registers the environment.
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        self.logs = [out.with_suffix(f".{machine}.log") for machine in range(machines)]
        self.launchers = []
        for machine, path in enumerate(self.logs):
            numbered = [*command, "--machine_rank", str(machine)]
            with path.open("w") as log:
                self.launchers.append(
                    subprocess.Popen(numbered, stdout=log, stderr=log, start_new_session=True, env=variables)
                )

    def ends(self) -> list[int]:
        """Wait for all launchers and return how they ended; whatever is left of them is ended."""
        try:
            until(lambda: all(launcher.poll() is not None for launcher in self.launchers))
        finally:
            for launcher in self.launchers:
                if launcher.poll() is None:
                    os.killpg(launcher.pid, signal.SIGKILL)
        return [launcher.wait() for launcher in self.launchers]

    def output(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self.logs)

    def below(self, machine: int = 0) -> list[Any]:
        """Return the processes that a launcher has started, and those below them."""
        return psutil.Process(self.launchers[machine].pid).children(recursive=True)


def until(done: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.fixture(scope="module")
def one_machine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with both processes on one machine."""
    out = tmp_path_factory.mktemp("one") / "out"
    run = Run(model, out, 1)
    assert run.ends() == [0], run.output()[-4000:]
    return out


def apart(one: Path, other: Path) -> float:
    return distance(*(safetensors.load_file(folder / "model.safetensors") for folder in (one, other)))


@pytest.mark.slow
def test_two_machines_train_what_one_does(model: Path, one_machine: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = Run(model, out, 2)
    assert run.ends() == [0, 0], run.output()[-4000:]
    assert apart(model, out) > 1e-3 and apart(one_machine, out) <= 1e-6
    played = [{path.name for path in (folder / "trajectories").glob("train_*.jsonl")} for folder in (out, one_machine)]
    assert played[0] == played[1]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_machine_that_is_lost(model: Path, one_machine: Path, tmp_path: Path, victim: int) -> None:
    out = tmp_path / "out"
    run = Run(model, out, 2)
    until(lambda: (out / "checkpoint-3").is_dir() or any(launcher.poll() is not None for launcher in run.launchers))
    os.kill(next(process.pid for process in run.below(victim) if "LOCAL_RANK" in process.environ()), signal.SIGKILL)
    ends, output = run.ends(), run.output()
    assert all(ends), output[-4000:]
    assert "another process of this run is gone" in output and "--resume_from_checkpoint" in output, output[-4000:]
    assert not (out / f"checkpoint-{STEPS}").exists(), "the run was over before anything was killed"
    again = Run(model, out, 2, "--resume_from_checkpoint", "true")
    assert again.ends() == [0, 0], again.output()[-4000:]
    assert apart(one_machine, out) <= 1e-6


# A launcher that is killed.


def gone(processes: list[int]) -> bool:
    """Wait until processes have ended."""
    until(lambda: not any(alive(str(pid)) for pid in processes), 60)
    return not any(alive(str(pid)) for pid in processes)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["agent-gym", "torchrun"])
def test_no_rank_outlives_its_launcher(model: Path, tmp_path: Path, victim: str) -> None:
    run = Run(model, tmp_path / "out", 1, "--max_steps", "10000")
    [first] = run.launchers
    until(lambda: (tmp_path / "out" / "checkpoint-3").is_dir() or first.poll() is not None)
    below = run.below()
    [torchrun] = psutil.Process(first.pid).children()
    try:
        assert sum("LOCAL_RANK" in process.environ() for process in below) >= 2, run.output()[-3000:]
        os.kill(first.pid if victim == "agent-gym" else torchrun.pid, signal.SIGKILL)
        assert gone([process.pid for process in below])
    finally:
        for process in below:
            if process.is_running():
                process.kill()
        run.ends()


def start(tmp_path: Path, parent: str) -> tuple[subprocess.Popen[str], str]:
    """Start a process that starts one which is to end with `parent`; return the first, and the other's number."""
    script = tmp_path / "child.py"
    script.write_text(
        f"import os, time\nfrom agent_gym.cli.launch import end_with\nend_with({parent})\n"
        "print(os.getpid(), flush=True)\ntime.sleep(600)\n"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, {str(script)!r}])"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@linux
def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    process, child = start(tmp_path, "os.getppid()")
    assert alive(child)
    process.kill()
    process.wait()
    assert gone([int(child)])
    process, child = start(tmp_path, "2**22")  # no process has this number: the parent was gone before
    assert child == "" and process.wait(60) == 0


@linux
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
    code = textwrap.dedent(f"""
        import os
        os.environ["PYTHONPATH"] = {str(tmp_path)!r}
        from agent_gym.cli.launch import run
        from agent_gym.cli.main import guarded
        raise SystemExit(guarded(lambda: run(["--x"])))
    """)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[1:])}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "ready True\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=60)
    assert out == "ended in order 1\n" and "interrupted" in err and process.returncode == 130
