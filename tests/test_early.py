"""Mistakes of a training command are one line, before torch and TRL are imported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

from agent_gym.cli.early import _known_flags, check_early, check_writable, read_command
from agent_gym.cli.train import TrainingParser
from agent_gym.cli.trl_fields import faults, known_fields
from agent_gym.errors import ConfigError

EXAMPLES = Path(__file__).parents[1] / "examples"
GIVEN = ["--model_name_or_path", "smollm", "--output_dir", "out"]
MISTAKES = {
    "unknown argument '--lerning_rate'; did you mean --learning_rate": ["gsm8k", *GIVEN, "--lerning-rate", "1"],
    "unknown environment 'gsm9'; did you mean AgentR1/GSM8K-v0": ["gsm9", *GIVEN],
    "unknown environment 'nope'": ["gsm8k=1,nope=2", *GIVEN],
    "which environment?": GIVEN,
    "which model?": ["gsm8k"],
    "no model folder at ./nope": ["gsm8k", "--model_name_or_path", "./nope"],
    "is a folder without config.json": ["gsm8k", "--model_name_or_path", "empty"],
    "cannot read nope.yaml": ["gsm8k", "--config", "nope.yaml"],
    "presets: cpu, ddp, fsdp2, single, zero2, zero3": ["gsm8k", *GIVEN, "--accelerate_config", "zero9"],
    "learning_rate is 'fast'; it must be a number": ["gsm8k", *GIVEN, "--learning_rate", "fast"],
    "num_generations is '7.5'; it must be a whole number": ["gsm8k", *GIVEN, "--num_generations=7.5"],
    "max_turns is 'two'; it must be a whole number": ["gsm8k", *GIVEN, "--max_turns", "two"],
    "eval_tasks is 'all'; it must be a whole number": ["gsm8k", *GIVEN, "--eval_tasks", "all"],
    "bf16 is 'maybe'; it must be true or false": ["gsm8k", *GIVEN, "--bf16", "maybe"],
    "save_strategy is 'foo'; allowed: no, steps, epoch, best": ["gsm8k", *GIVEN, "--save_strategy", "foo"],
    "lr_scheduler_type is 'cosin'; allowed: linear, cosine": ["gsm8k", *GIVEN, "--lr_scheduler_type", "cosin"],
    "learning_rate is -1e-5; it must be 0 or more": ["gsm8k", *GIVEN, "--learning_rate", "-1e-5"],
    "critic_learning_rate is -2.0; it must be at least 0": ["gsm8k", *GIVEN, "--critic_learning_rate=-2"],
    "max_staleness is -1; it must be at least 0": ["gsm8k", *GIVEN, "--max_staleness", "-1"],
    "loss_type is 'nope'; allowed: clip, cispo, reinforce": ["gsm8k", *GIVEN, "--loss_type", "nope"],
    "gamma is 2.0; it must be from 0 to 1": ["gsm8k", *GIVEN, "--gamma", "2"],
    "env_kwargs: expected a JSON object": ["gsm8k", *GIVEN, "--env_kwargs", "[1]"],
    "cannot write /proc/o1: No such file or directory (/proc/": ["gsm8k", *GIVEN, "--output_dir", "/proc/o1"],
    "cannot write file/deeper": ["gsm8k", "--model_name_or_path", "m", "--output_dir", "file/deeper"],
    "name the outer one by --output_dir": ["gsm8k", "--model_name_or_path", "m", "--seeds", "0,1"],
    "must be different whole numbers": ["gsm8k", *GIVEN, "--seeds", "0,0"],
}


def test_mistakes_are_found_without_torch(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    code = (
        "import json, sys\nfrom agent_gym.cli.main import main\n"
        "codes = [main(['ppo', *words]) for words in json.loads(sys.argv[1])]\n"
        "assert set(codes) == {2}, codes\n"
        "heavy = {'torch', 'trl', 'transformers', 'datasets'} & set(sys.modules)\nassert not heavy, heavy"
    )
    words = [sys.executable, "-c", code, json.dumps([*MISTAKES.values()])]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert [message for message, line in zip(MISTAKES, lines, strict=True) if message not in line] == []
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty", "file"], "nothing is written"


@pytest.mark.parametrize("command", ["grpo", "ppo", "sft"])
def test_every_flag_of_the_real_parser_is_known(command: str) -> None:
    real = {flag[2:].replace("-", "_") for flag in TrainingParser(command)._option_string_actions if flag[:2] == "--"}
    assert real - _known_flags(command) == set()


@pytest.mark.parametrize("command", ["grpo", "ppo", "sft"])
def test_the_types_and_choices_of_the_real_parser_are_the_early_ones(command: str) -> None:
    """The early check refuses nothing that the real parser takes."""
    known, checked = known_fields(), 0
    for action in TrainingParser(command)._actions:
        texts = {int: ["3", "-1", "1_0"], float: ["3", "1e-5", "nan"], str: ["words"]}.get(action.type, [])
        texts = ["yes", "No", "1", "F"] if action.nargs == "?" and action.const is True else texts
        texts = [*map(str, action.choices)] if action.choices else texts
        assert [line for text in texts for line in faults({action.dest: text}, known)] == [], action
        checked += bool(texts) and bool([*faults({action.dest: "Qx wrong"}, known)])
    assert checked > 70


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lerning_rate: 1", "unknown key 'lerning_rate'; did you mean learning_rate"),
        ("max_steps: 3.5", "max_steps is 3.5; it must be a whole number"),
        ("learning_rate: fast", "learning_rate is 'fast'; it must be a number"),
        ("bf16: 3", "bf16 is 3; it must be true or false"),
        ("eval_strategy: maybe", "eval_strategy is 'maybe'; allowed: no, steps, epoch"),
    ],
)
def test_a_wrong_line_of_yaml_is_found(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"env_id: gsm8k\nmodel_name_or_path: a\neval_strategy: no\nsave_strategy: steps\n{line}\n")
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_early("grpo", ["--config", str(file)])


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_no_line_of_the_examples_is_taken_for_a_mistake(file: Path) -> None:
    given = read_command("grpo", ["--config", str(file)])
    assert [*faults(given, known_fields())] == []


def test_the_command_line_wins_over_yaml(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("env_id: gsm8k\nmodel_name_or_path: a\nlearning_rate: -1\nenv_kwargs: {max_turns: 2}\n")
    with pytest.raises(ConfigError, match="learning_rate is -1"):
        check_early("grpo", ["--config", str(file)])
    given = check_early("grpo", ["--config", str(file), "--learning_rate", "1", "--model_name_or_path=b"])
    assert (given["learning_rate"], given["model_name_or_path"], given["env_kwargs"]) == ("1", "b", {"max_turns": 2})


def test_a_folder_is_tried_and_not_made(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "a" / "b"))
    assert list(tmp_path.iterdir()) == []
