"""Ctrl-C while a command imports and starts, as a terminal sends it, to each process of the command: one line."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

GSM8K = "AgentR1/GSM8K-v0"
TRAINS = "--output_dir run --use_cpu true --max_steps 50 --per_device_train_batch_size 2 --report_to none".split()
COMMANDS = {
    "list": ["list"], "info": ["info", GSM8K], "certify": ["certify", GSM8K], "play": ["play", GSM8K],
    "eval": ["eval", GSM8K, "--expert", "--episodes", "500", "--env_processes", "2", "--output", "e.jsonl"],
    "rollout": ["rollout", "AgentR1/ReTool-v0", "--expert", "--episodes", "500", "--output", "e.jsonl"],
    "sft": ["sft", GSM8K, "--model_name_or_path", "MODEL", *TRAINS],
    "grpo": ["grpo", GSM8K, "--model_name_or_path", "MODEL", *TRAINS, "--use_vllm", "false"],
    "ppo": ["ppo", GSM8K, "--model_name_or_path", "MODEL", *TRAINS, "--use_vllm", "false"],
    "view": ["view", "x.jsonl"], "runs": ["runs", "."], "doctor": ["doctor", "--cpu"],
    "plan": ["plan", "--model", "MODEL", "--gpus", "1x80"], "export": ["export", "model", "MODEL", "out"],
    "prepare": ["prepare", "gsm8k", "--from", "x.jsonl", "--output", "g"],
    "speedrun": ["speedrun", "bisect", "--output_dir", "sp"], "sandbox": ["serve", "sandbox", "--port", "0"],
    "gateway": ["gateway", "--model", "MODEL", "--port", "0"],
}  # fmt: skip


def interrupted(words: list[str], delay: float, folder: Path) -> str:
    """Interrupt all processes of a command, and return what they said, but for words of Python before the package."""
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_gym", *words], cwd=folder, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    time.sleep(delay)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    return said if "agent_gym" in said.replace("-m agent_gym", "") or "agent-gym" in said else ""


@pytest.mark.parametrize(("name", "delay"), [("certify", 0.8), ("eval", 0.7)])
def test_ctrl_c_is_one_line(name: str, delay: float, tmp_path: Path) -> None:
    assert "Traceback" not in (said := interrupted(COMMANDS[name], delay, tmp_path)), said


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_at_any_moment_is_one_line(name: str, tiny_model: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    words = [tiny_model if word == "MODEL" else word for word in COMMANDS[name]]
    for number in range(8):
        (folder := tmp_path / str(number)).mkdir()
        said = interrupted(words, rng.uniform(0.0, 3.0), folder)
        assert "Traceback" not in said, said
