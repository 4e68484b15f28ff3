"""A run on two machines, each with a launcher of its own: here two launchers on one machine.

What they share is what docs/scale.md asks for: a port of the first one, and the folders. A launcher that is killed
takes its ranks with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model_server import free_port
from process_tools import alive

psutil = pytest.importorskip("psutil")
safetensors = pytest.importorskip("safetensors.numpy")
pytest.importorskip("trl")

from trainer_tools import ENV, _wait, distance  # noqa: E402

STEPS = 12
LIMIT_S = 400.0
OPTIONS = f"""
    --use_cpu --report_to none --train_tasks 64 --seed 3 --per_device_train_batch_size 4 --num_generations 4
    --learning_rate 1e-3 --lr_scheduler_type constant --max_turn_tokens 8 --max_episode_tokens 700 --max_steps {STEPS}
    --use_vllm false --save_steps 3 --accelerate_config cpu --num_processes 2 --num_cpu_threads_per_process 1
    --main_process_ip 127.0.0.1
""".split()
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux's")


class Run:
    """The launchers of one run, one for each machine; together they start two processes."""

    def __init__(self, model: str, out: Path, machines: int, *words: str) -> None:
        out.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "agent_gym", "grpo", f"trainer_tools:{ENV}", *OPTIONS]
        command += ["--model_name_or_path", model, "--output_dir", str(out), *words]
        command += ["--num_machines", str(machines), "--main_process_port", str(free_port())]
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
        """Wait for all launchers, or kill them, and return how they ended."""
        try:
            _wait(lambda: all(launcher.poll() is not None for launcher in self.launchers), LIMIT_S)
        finally:
            for launcher in self.launchers:
                if launcher.poll() is None:
                    os.killpg(launcher.pid, signal.SIGKILL)
        return [launcher.wait() for launcher in self.launchers]

    def output(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self.logs)

    def below(self, machine: int) -> list[Any]:
        """Return the processes that a launcher has started, and those below them."""
        return psutil.Process(self.launchers[machine].pid).children(recursive=True)


def apart(one: Path, other: Path) -> float:
    return distance(*(safetensors.load_file(folder / "model.safetensors") for folder in (one, other)))


@pytest.mark.slow
def test_a_machine_that_is_lost_and_the_run_that_goes_on_trains_what_one_machine_does(
    tiny_model: str, tmp_path: Path
) -> None:
    straight, out = tmp_path / "straight", tmp_path / "out"
    one_machine = Run(tiny_model, straight, 1)
    assert one_machine.ends() == [0], one_machine.output()[-4000:]
    run = Run(tiny_model, out, 2)
    ended = [launcher.poll for launcher in run.launchers]
    _wait(lambda: (out / "checkpoint-3").is_dir() or any(code() is not None for code in ended), LIMIT_S)
    os.kill(next(process.pid for process in run.below(1) if "LOCAL_RANK" in process.environ()), signal.SIGKILL)
    ends, output = run.ends(), run.output()
    assert all(ends), output[-4000:]
    assert "another process of this run is gone" in output and "--resume_from_checkpoint" in output, output[-4000:]
    assert not (out / f"checkpoint-{STEPS}").exists(), "the run was over before anything was killed"
    again = Run(tiny_model, out, 2, "--resume_from_checkpoint", "true")
    assert again.ends() == [0, 0], again.output()[-4000:]
    assert apart(Path(tiny_model), out) > 1e-3 and apart(straight, out) <= 1e-6


# A launcher that is killed.


@linux
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["agent-gym", "torchrun"])
def test_no_rank_outlives_its_launcher(tiny_model: str, tmp_path: Path, victim: str) -> None:
    run = Run(tiny_model, tmp_path / "out", 1, "--max_steps", "10000")
    [first] = run.launchers
    _wait(lambda: (tmp_path / "out" / "checkpoint-3").is_dir() or first.poll() is not None, LIMIT_S)
    below = run.below(0)
    [torchrun] = psutil.Process(first.pid).children()
    try:
        assert sum("LOCAL_RANK" in process.environ() for process in below) >= 2, run.output()[-3000:]
        os.kill(first.pid if victim == "agent-gym" else torchrun.pid, signal.SIGKILL)
        _wait(lambda: not any(alive(str(process.pid)) for process in below), 60)
        assert not any(alive(str(process.pid)) for process in below)
    finally:
        for process in below:
            if process.is_running():
                process.kill()
        run.ends()


LAUNCHER = """
import os, signal, time
got = []
signal.signal(signal.SIGINT, lambda *_: got.append(1))
print("ready", os.environ["AGENT_GYM_LAUNCHER"] == str(os.getpid()), flush=True)
while not got:
    time.sleep(0.01)
time.sleep(1)
print("ended in order", len(got), flush=True)
"""


@linux
def test_ctrl_c_reaches_the_launcher_once_and_is_waited_for(tmp_path: Path) -> None:
    launcher = tmp_path / "accelerate" / "commands" / "launch.py"
    launcher.parent.mkdir(parents=True)
    for package in (launcher.parent, launcher.parent.parent):
        (package / "__init__.py").touch()
    launcher.write_text(LAUNCHER)
    code = f"""
import os
os.environ["PYTHONPATH"] = {str(tmp_path)!r}
from agent_gym.cli.launch import run
from agent_gym.cli.main import guarded
raise SystemExit(guarded(lambda: run(["--x"])))
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[1:])}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "ready True\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=60)
    assert out == "ended in order 1\n" and "interrupted" in err and process.returncode == 130
