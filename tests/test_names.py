"""One name for each argument of the command line, and the cure for the names that people try instead."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from cli_tools import complaint

from agent_gym.cli.main import main
from agent_gym.cli.names import arguments_of, environment_first, meant
from agent_gym.cli.parser import CommandParser
from agent_gym.errors import ConfigError


@pytest.mark.parametrize(
    "words",
    [
        ["gsm8k", "--seed", "3"],
        ["--env", "gsm8k", "--seed", "3"],
        ["--seed", "3", "--env=gsm8k"],
        ["--seed", "3", "--env_id", "gsm8k"],
        ["gsm8k", "--env", "gsm8k", "--seed", "3"],
    ],
)
def test_the_environment_may_be_named_by_a_word_or_by_a_flag(words: list[str]) -> None:
    parser = CommandParser("play", "")
    parser.add_env()
    parser.add_env_kwargs()
    parser.flag("--seed", "seed", type=int)
    known = parser.parse(words)
    assert (known.env_id, known.seed, known.env_kwargs) == ("AgentR1/GSM8K-v0", 3, {})
    assert parser.parse([*words, "--protocol", "verl"]).env_kwargs == {"protocol": "verl"}


def test_two_environments_or_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="two environments, gsm8k and --env hotpotqa: name one"):
        environment_first(["gsm8k", "--env", "hotpotqa"])
    with pytest.raises(ConfigError, match="--env needs a value"):
        environment_first(["--seed", "1", "--env"])


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("eval", "hotpotqa", "--policy", "expert", "--top_k", "3"), """--env_kwargs '{"top_k": 3}'"""),
        (("rollout", "gsm8k", "--expert", "--difficulty", "2"), """--env_kwargs '{"difficulty": 2}'"""),
        (("eval", "gsm8k", "--num-samples", "4"), "did you mean --samples?"),
        (("eval", "gsm8k", "--limit", "4"), "did you mean --episodes?"),
        (("rollout", "gsm8k", "--episode", "4"), "did you mean --episodes"),
        (("speedrun", "gsm8kk"), "'gsm8kk' is no preset, algorithm or environment; known: bargain, bisect, "),
        (("speedrun", "gsm8kk"), "grpo, ppo, rpp, and unknown environment 'gsm8kk'; did you mean"),
        (("speedrun", "pppo"), "'pppo' is no preset, algorithm or environment; did you mean ppo?"),
        (("speedrun", "bisekt"), "did you mean bisect"),
        (("speedrun", "bisect", "--env", "gsm8k"), "bisect and gsm8k are two"),
        (("speedrun", "ppo", "rpp"), "ppo and rpp are two algorithms; name one of grpo, ppo, rpp"),
        (("speedrun", "rpp", "webshop", "--preset", "maze"), "webshop and maze are two"),
    ],
)
def test_the_cure_for_a_name_that_does_not_exist(capsys: Any, words: tuple[str, ...], cure: str) -> None:
    assert cure in complaint(capsys, *words)


@pytest.mark.parametrize(
    ("flag", "cure"),
    [
        ("--lr", "--learning_rate"), ("--batch-size", "--per_device_train_batch_size"), ("--steps", "--max_steps"),
        ("--group_size", "--num_generations"), ("--episodes", "--train_tasks"), ("--gpus", "--num_processes"),
        ("--output", "--output_dir"),
    ],
)  # fmt: skip
def test_names_of_other_tools_lead_to_the_trainers_settings(capsys: Any, flag: str, cure: str) -> None:
    pytest.importorskip("trl")
    line = complaint(capsys, "grpo", "--env", "gsm8k", "--model", "smollm2", flag, "1")
    assert f"grpo: unknown argument '{flag.replace('-', '_').replace('__', '--')}'; did you mean {cure}?" in line


def test_an_argument_of_the_environment_is_found_in_training_commands(capsys: Any) -> None:
    pytest.importorskip("trl")
    line = complaint(capsys, "grpo", "gsm8k", "--model", "smollm2", "--use_calculator", "false")
    assert """it is an argument of the environment: --env_kwargs '{"use_calculator": false}'""" in line


def test_arguments_of_what_cannot_be_looked_up_are_none() -> None:
    assert {"data", "split", "max_turns"} <= arguments_of("gsm8k")
    assert arguments_of("No/Such-v0") == set() and arguments_of("no_such_module:A/B-v0") == set()
    assert "known:" in meant("--zzz", ["--seed"], "gsm8k")


def test_a_model_may_be_the_policy(capsys: Any, tmp_path: Any) -> None:
    for command in ("eval", "rollout"):
        line = complaint(capsys, command, "gsm8k", "--policy", str(tmp_path), "--episodes", "1", "--output", "x.jsonl")
        assert f"{tmp_path}" in line and "config.json" in line, "it was taken for a model's folder"
    line = complaint(capsys, "eval", "gsm8k", "--policy", "a/b", "c/d")
    assert "a/b, c/d are several models: play one at a time" in line


def test_the_list_fits_the_terminal(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()[:-1]
    assert max(map(len, lines)) <= 80 and "tools: calculator" in shown
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["list"]) == 0
    assert capsys.readouterr().out.startswith("ID ")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_a_sign_gets_an_escape(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-m", "agent_gym", "info", "retool"], env=environment, capture_output=True, timeout=120
    )
    assert done.returncode == 0 and "\\u221a" in done.stdout.decode(encoding), done.stderr
