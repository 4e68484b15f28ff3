"""What takes long is announced, and what is interrupted leaves something to go on with."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from agent_gym.cli.main import main
from agent_gym.rollout import read_trajectories, replay

GSM8K = "AgentR1/GSM8K-v0"
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


def at_a_terminal(folder: Path, *arguments: str, until: str | None = None) -> tuple[int, str]:
    """Run a command on a terminal of its own, press Ctrl-C when `until` is to be seen, and return code and text."""
    terminal, inside = pty.openpty()
    termios.tcsetwinsize(inside, (40, 100))
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_gym", *arguments],
        cwd=folder, env=environment, stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
    )  # fmt: skip
    os.close(inside)
    shown, deadline = b"", time.monotonic() + 240
    try:
        while time.monotonic() < deadline:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
            if until is not None and re.search(until.encode(), ESCAPES.sub(b"", shown)):
                until = None
                process.send_signal(signal.SIGINT)
        code = process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(terminal)
    assert until is None, f"{until!r} was never to be seen in {shown[-3000:]!r}"
    return code, ESCAPES.sub(b"", shown).decode(errors="replace")


def test_a_rollout_that_is_interrupted_keeps_what_was_finished(tiny_model: str, tmp_path: Path) -> None:
    # More than anybody waits for, of a world that answers at once.
    words = ["rollout", GSM8K, "--expert", "--tokenizer", tiny_model, "--episodes", "20000", "--output", "some.jsonl"]
    code, shown = at_a_terminal(tmp_path, *words, until=r"episodes: .*\| [1-9]\d*/20000")
    assert code == 130 and shown.rstrip().endswith("agent-gym: interrupted")
    finished = int(re.search(r"agent-gym: (\d+) of 20000 episodes were finished; they are in some.jsonl", shown)[1])  # type: ignore[index]
    records = list(read_trajectories(tmp_path / "some.jsonl"))
    assert 0 < len(records) == finished < 20000 and replay(records[-1]) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["grpo", "sft"])
def test_training_that_is_interrupted_says_what_to_resume_from(command: str, tiny_model: str, tmp_path: Path) -> None:
    words = [command, GSM8K, "--model_name_or_path", tiny_model, "--output_dir", "out", "--report_to", "none"]
    words += ["--per_device_train_batch_size", "4", "--train_tasks", "8", "--max_steps", "500", "--save_steps", "2"]
    if command == "grpo":
        words += ["--num_generations", "2", "--max_turn_tokens", "8", "--max_episode_tokens", "900"]
        words += ["--use_vllm", "false"]
    code, shown = at_a_terminal(tmp_path, *words, until=r"\b[3-9]/500")
    assert "agent-gym: importing torch and TRL" in shown
    assert code == 130 and "agent-gym: interrupted" in shown  # behind which a bar may be drawn once more
    (step,) = re.findall(r"agent-gym: Resume from out/checkpoint-(\d+) with --resume_from_checkpoint true", shown)
    words += ["--resume_from_checkpoint", "true", "--max_steps", str(int(step) + 1), "--save_steps", "1"]
    code, shown = at_a_terminal(tmp_path, *words)
    assert code == 0 and "model: out" in shown
    state = json.loads((tmp_path / "out" / f"checkpoint-{int(step) + 1}" / "trainer_state.json").read_text())
    assert state["global_step"] == int(step) + 1


def test_loading_a_model_is_announced_to_a_terminal_only(tiny_model: str, tmp_path: Path, capsys: Any) -> None:
    words = ["rollout", GSM8K, "--model", tiny_model, "--engine", "transformers", "--episodes", "1"]
    words += ["--max_turn_tokens", "4", "--output"]
    code, shown = at_a_terminal(tmp_path, *words, "some.jsonl")
    assert code == 0 and shown.startswith(f"agent-gym: loading {tiny_model} into transformers")
    assert main([*words, str(tmp_path / "other.jsonl")]) == 0
    assert "agent-gym:" not in capsys.readouterr().err
