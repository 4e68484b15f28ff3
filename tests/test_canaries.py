"""Secrets in flags and settings, then a search through every file that a run, an evaluation and a page leave."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gateway_tools import play_agent
from gymnasium.envs.registration import EnvSpec

pytest.importorskip("trl")

from agent_gym import QuestionEnv
from agent_gym.cli.main import main
from agent_gym.trainers.run_file import FILE

CANARY = "CANARY0123456789"
QUICK = "--per_device_train_batch_size 2 --max_steps 1 --use_cpu true".split()


def found(folder: Path) -> list[str]:
    """Name the files that hold the canary, in any spelling that a reader would see through."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path.relative_to(folder)) for path in files if CANARY.encode() in path.read_bytes()]


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", CANARY)


class ServedEnv(QuestionEnv):
    """Questions whose environment is told of a server, which it never asks."""

    def __init__(self, server: str = "", client: Any = None, **kwargs: Any) -> None:
        super().__init__([{"question": f"{i}+1?", "answer": str(i + 1)} for i in range(4)], **kwargs)

    def expert_action(self) -> str:
        return f"<answer>{self._row['answer']}</answer>"


def kwargs() -> list[str]:
    settings = {"server": f"http://user:{CANARY}@host/?api_key={CANARY}", "client": {"password": CANARY}}
    return ["--env_kwargs", json.dumps(settings)]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(gymnasium.registry, "Toy/Served-v0", EnvSpec("Toy/Served-v0", entry_point=ServedEnv))
    return "Toy/Served-v0"


@pytest.mark.parametrize("command", ["sft", "grpo"])
def test_training_keeps_secrets_to_itself(
    command: str,
    served: str,
    tiny_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    own = ["--use_vllm", "false", "--num_generations", "2", "--max_turn_tokens", "4", "--max_episode_tokens", "900"]
    words = [command, served, *kwargs(), "--model_name_or_path", tiny_model, "--output_dir", "run", *QUICK]
    words += ["--hub_token", CANARY, "--push_to_hub", "false", "--report_to", "tensorboard", "--save_steps", "1"]
    words += [*own, "--train_tasks", "2"] if command == "grpo" else []
    assert main(words) == 0
    assert main(["view", "run", "--output", "page"]) == 0
    assert main(["runs", "."]) == 0
    assert found(tmp_path) == []
    assert CANARY not in "".join(capfd.readouterr())
    assert stat.S_IMODE(os.stat(tmp_path / "run" / FILE).st_mode) == 0o600


def test_evaluations_keep_secrets_to_themselves(served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["eval", served, *kwargs(), "--expert", "--split", "train", "--episodes", "2", "--output", "run.jsonl"]
    assert main(words) == 0
    assert main([*words, "--resume"]) == 0  # the masked settings of the file are those of this command
    assert main(["view", "run.jsonl", "--output", "page.html"]) == 0
    assert main(["leaderboard", ".", "--output", "board.html"]) == 0
    assert found(tmp_path) == []


def test_a_failure_keeps_secrets_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    def agent(client: Any, task: Any) -> None:
        raise ConnectionError(f"cannot reach postgres://me:{CANARY}@db/tasks?token={CANARY}")

    (episode,) = play_agent(agent, tokenizer, [{"question": "q"}])
    assert "postgres://db/tasks?token=***" in episode.failure.message
    assert CANARY not in str(episode.failure) + episode.failure.traceback


def test_a_program_gets_a_list_of_variables_and_no_keys(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("HF_TOKEN", "AGENT_GYM_SERVER_KEY", "WANDB_API_KEY", "MY_SETTING", "LC_ALL", "HOME")
    for name in names:
        monkeypatch.setenv(name, "value")
    code = "import os; print(*os.environ); raise SystemExit(3)"
    for passed, shown in (((), {"LC_ALL", "HOME"}), (("MY_SETTING",), {"LC_ALL", "HOME", "MY_SETTING"})):
        command = [sys.executable, "-c", code]
        (episode,) = play_agent(command, tokenizer, [{"question": "q"}], agent_env_pass=passed)
        assert {name for name in names if name in episode.failure.message} == shown
