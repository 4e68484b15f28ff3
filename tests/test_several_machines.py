"""A run on two machines, each with a launcher of its own: here two launchers on one machine, as far as they can tell.

What they share is what docs/scale.md asks for: a port of the first one, and the folders.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import make_tiny_model

psutil = pytest.importorskip("psutil")
safetensors = pytest.importorskip("safetensors.numpy")
pytest.importorskip("trl")

from trainer_tools import ENV, _free_port, distance  # noqa: E402

pytestmark = pytest.mark.slow
STEPS = 12
LIMIT_S = 400.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


class Run:
    """The launchers of one run, one for each machine.

    Args:
        model: the folder to start from.
        out: the output folder.
        machines: how many launchers; together they start two processes.
        words: further arguments.
    """

    def __init__(self, model: Path, out: Path, machines: int, *words: str) -> None:
        out.parent.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "agent_gym",
            "grpo",
            f"trainer_tools:{ENV}",
            "--use_cpu",
            "--report_to",
            "none",
        ]
        command += ["--model_name_or_path", str(model), "--output_dir", str(out), "--train_tasks", "64", "--seed", "3"]
        command += ["--per_device_train_batch_size", "4", "--num_generations", "4", "--learning_rate", "1e-3"]
        command += ["--lr_scheduler_type", "constant", "--max_turn_tokens", "8", "--max_episode_tokens", "700"]
        command += [
            "--max_steps",
            str(STEPS),
            "--use_vllm",
            "false",
            "--save_steps",
            "3",
            "--accelerate_config",
            "cpu",
            *words,
        ]
        command += ["--num_processes", "2", "--num_machines", str(machines), "--num_cpu_threads_per_process", "1"]
        command += ["--main_process_ip", "127.0.0.1", "--main_process_port", str(_free_port())]
        # The module that registers the environment.
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        self.logs = [out.with_suffix(f".{machine}.log") for machine in range(machines)]
        self.launchers = []
        for machine, path in enumerate(self.logs):
            with path.open("w") as log:
                words = ("--machine_rank", str(machine))
                launcher = subprocess.Popen(
                    [*command, *words], stdout=log, stderr=log, start_new_session=True, env=variables
                )
            self.launchers.append(launcher)

    def ends(self) -> list[int]:
        """Wait for all launchers and return how they ended; whatever is left of them is ended."""
        try:
            until(lambda: all(launcher.poll() is not None for launcher in self.launchers))
        finally:
            for launcher in self.launchers:
                if launcher.poll() is None:
                    os.killpg(launcher.pid, signal.SIGKILL)
        return [launcher.wait() for launcher in self.launchers]

    def said(self) -> str:
        """Return what all of them printed."""
        return "\n".join(path.read_text(errors="replace") for path in self.logs)

    def worker(self, machine: int) -> int:
        """Return the process that trains on a machine."""
        below = psutil.Process(self.launchers[machine].pid).children(recursive=True)
        found: int = next(process.pid for process in below if "LOCAL_RANK" in process.environ())
        return found


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.fixture(scope="module")
def one_machine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with both processes on one machine."""
    out = tmp_path_factory.mktemp("one") / "out"
    run = Run(model, out, 1)
    assert run.ends() == [0], run.said()[-4000:]
    return out


def apart(one: Path, other: Path) -> float:
    return distance(*(safetensors.load_file(folder / "model.safetensors") for folder in (one, other)))


def test_two_machines_train_what_one_does(model: Path, one_machine: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = Run(model, out, 2)
    assert run.ends() == [0, 0], run.said()[-4000:]
    assert apart(model, out) > 1e-3
    assert apart(one_machine, out) <= 1e-6
    played = {path.name for path in (out / "trajectories").glob("train_*.jsonl")}
    assert played == {path.name for path in (one_machine / "trajectories").glob("train_*.jsonl")}


@pytest.mark.parametrize("victim", [0, 1])
def test_a_machine_that_is_lost(model: Path, one_machine: Path, tmp_path: Path, victim: int) -> None:
    out = tmp_path / "out"
    run = Run(model, out, 2)
    until(lambda: (out / "checkpoint-3").is_dir() or any(launcher.poll() is not None for launcher in run.launchers))
    os.kill(run.worker(victim), signal.SIGKILL)
    ends = run.ends()
    said = run.said()
    assert all(ends), said[-4000:]
    assert "another process of this run is gone" in said and "--resume_from_checkpoint" in said, said[-4000:]
    assert not (out / f"checkpoint-{STEPS}").exists(), "the run was over before anything was killed"
    again = Run(model, out, 2, "--resume_from_checkpoint", "true")
    assert again.ends() == [0, 0], again.said()[-4000:]
    assert apart(one_machine, out) <= 1e-6
