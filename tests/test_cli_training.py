"""Long runs from the command line: mistakes that are one line, a few real steps, the launcher, Ctrl-C at a terminal."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_tools import CTRL_C, at_a_terminal, complaint

pytest.importorskip("trl")

from agent_gym.cli import launch
from agent_gym.cli.main import guarded, main
from agent_gym.rollout import read_trajectories, replay
from agent_gym.trainers.estimators import ESTIMATORS

GSM8K, PLAIN = "AgentR1/GSM8K-v0", "AgentR1/GSM8K-NoTool-v0"
MIXTURE = f"{GSM8K}=2,{PLAIN}=1"
BOTH = [GSM8K, PLAIN]
QUICK = "--report_to none --save_strategy no --max_steps 1 --per_device_train_batch_size 4".split()
LIMITS = "--num_generations 2 --max_turn_tokens 8 --max_episode_tokens 700 --train_tasks 4".split()
EVALUATION = "--eval_strategy steps --eval_steps 1 --eval_tasks 2".split()
ENGINE = ["--use_vllm", "false"]  # vLLM takes half a minute to start


@pytest.fixture
def config(tiny_model: str, tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"env_id: {GSM8K}\nenv_kwargs: {{max_turns: 2}}\nmodel_name_or_path: {tiny_model}\n"
        f"output_dir: {tmp_path / 'out'}\ntrain_tasks: 8\nnum_generations: 2\nper_device_train_batch_size: 4\n"
        "max_turn_tokens: 8\nlearning_rate: 1.0e-4\n"
    )
    return path


# Mistakes.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning_rate", "fast"], "learning_rate is 'fast'; it must be a number"),
        (["--advantage_estimator", "grop"], "advantage_estimator is 'grop'; allowed: grpo, dr_grpo, rloo, remax"),
        (["--env_kwargs", json.dumps({GSM8K: {"max_turn": 2}})], "no argument 'max_turn' (did you mean 'max_turns'?)"),
        (["--env_id", f"{GSM8K},AgentR1/GSM8K-NoTol-v0"], f"'AgentR1/GSM8K-NoTol-v0'; did you mean {PLAIN}"),
        (["--train_split", "tarin"], "unknown split 'tarin'"),
        (["--resume_from_checkpoint", "true"], "no checkpoint to resume from"),
        (["--resume_from_checkpoint", "/no/such"], "no checkpoint at /no/such"),
        (["--report_to", "wandbb"], "report_to: wandbb is not supported"),
        (["--adam_beta1", "2"], "Invalid beta parameter at index 0: 2.0"),
        ("lerning_rate: 1", "unknown key 'lerning_rate'; did you mean learning_rate"),
        ("env: AgentR1/GSM8K-v0", "the task is `env_id`"),
        (f"env_id: [{GSM8K}, {PLAIN}]", "it must be text"),
        ("max_steps: 3.5", "max_steps is 3.5; it must be a whole number"),
        ("multi_gpu: 'no'", "multi_gpu is 'no'; allowed: True, False"),
    ],
)
def test_a_mistake_on_the_command_line_or_in_yaml_is_one_line(
    words: list[str] | str, message: str, config: Path, capsys: Any
) -> None:
    """Those that are found before torch is imported: test_early.py."""
    if isinstance(words, str):  # yaml takes the last of two lines with one key
        config.write_text(f"{config.read_text()}{words}\n")
        words = []
    assert message in complaint(capsys, "grpo", "--config", str(config), *words)


@pytest.mark.parametrize(("wrong", "right", "name"), [("grpo", "ppo", "bilevel_gae"), ("ppo", "grpo", "rloo")])
def test_an_estimator_of_the_other_trainer_names_its_command(
    wrong: str, right: str, name: str, config: Path, capsys: Any
) -> None:
    line = complaint(capsys, wrong, "--config", str(config), "--advantage_estimator", name)
    assert f"{name!r}" in line and f"use agent-gym {right}, or one of " in line
    others = line.split("or one of ")[1].split(", ")
    assert others == [other for other in ESTIMATORS if ESTIMATORS[other].needs_critic == (wrong == "ppo")]


def test_a_tracker_that_is_not_installed(config: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("transformers.integrations.integration_utils.is_wandb_available", lambda: False)
    line = complaint(capsys, "grpo", "--config", str(config), "--report_to", "wandb")
    assert "report_to wandb: " in line and "pip install 'agentic-gym[trackers]', or --report_to none" in line


@pytest.mark.parametrize(
    ("command", "left"), [("grpo", "checkpoint-3/trainer_state.json"), ("sft", "model.safetensors")]
)
def test_a_used_folder_is_refused(command: str, left: str, tiny_model: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "out" / left
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    given = [command, GSM8K, "--model_name_or_path", tiny_model, "--output_dir", str(tmp_path / "out")]
    line = complaint(capsys, *given, "--report_to", "none")
    assert f"holds another run ({left.partition('/')[0]}" in line and "name another --output_dir" in line
    assert ("--resume_from_checkpoint true" in line) == left.startswith("checkpoint")
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out" / "notes").mkdir(parents=True)
    assert "unknown split 'tarin'" in complaint(capsys, *given, "--train_split", "tarin"), "other files are no run"


def test_what_sft_needs(tmp_path: Path, capsys: Any) -> None:
    for words, message in (
        ([], "which model?"),
        (["--tiny", "--model_name_or_path", "x"], "give one of them"),
        (["--tiny", "--styles", "direct"], "styles: expected a JSON object"),
    ):
        assert message in complaint(capsys, "sft", GSM8K, *words, "--output_dir", str(tmp_path))


def test_a_mistake_found_in_a_worker_is_one_line_too(capsys: Any) -> None:
    assert (
        guarded(lambda: launch.train("grpo", [GSM8K, "--output_dir", "x", "--loss_type", "nope"], launched=True)) == 2
    )
    assert "loss_type" in capsys.readouterr().err


# Training.


def test_from_nothing_to_a_trained_model(tmp_path: Path, capsys: Any) -> None:
    warm, out = str(tmp_path / "sft"), tmp_path / "grpo"
    prompt = json.dumps({"system_prompt": "0 " * 600})  # digits are a token each, and so are spaces
    given = ["sft", GSM8K, "--tiny", "--train_tasks", "4", "--env_kwargs", prompt, *QUICK]
    assert main([*given, "--output_dir", warm]) == 0  # long demonstrations need no setting
    training = json.loads(Path(warm, "card.json").read_text())["training"]
    of_expert, spent = training["environments"][0], training["spent"]
    assert (of_expert["env_id"], of_expert["split"], of_expert["tasks"]) == (GSM8K, "train", 4)
    assert (spent["asked"], spent["shown"], spent["failed"]) == (4, 4, 0) and spent["cpu_seconds"] > 0
    assert spent["shown_tokens"] > 0 and training["step"] > 0 and "learning_rate" in training["settings"]
    short = [*given, "--output_dir", str(tmp_path / "other"), "--max_length", "1024", "--model_name_or_path", warm]
    short.remove("--tiny")
    assert "raise it, or let it be None" in complaint(capsys, *short)
    given = ["--model_name_or_path", warm, "--output_dir", str(out), *LIMITS, *EVALUATION]
    assert main(["grpo", GSM8K, *given, *QUICK, *ENGINE]) == 0
    assert f"model: {out}" in capsys.readouterr().out
    assert any(path.name.startswith("train_") for path in (out / "trajectories").iterdir())
    playing = ["--engine", "transformers", "--episodes", "2", "--max_turn_tokens", "8"]
    assert main(["eval", GSM8K, "--model", str(out), *playing]) == 0
    assert main(["view", str(out / "trajectories"), "--title", "run"]) == 0
    assert (out / "trajectories.html").is_file()


def test_ppo_trains_on_a_mixture_evaluates_and_resumes(tiny_model: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    words = ["--model_name_or_path", tiny_model, "--output_dir", str(out), "--env_kwargs", '{"system_prompt": ""}']
    words += "--context window:2 --logging_steps 1 --report_to none --max_steps 1".split()
    words += ["--per_device_train_batch_size", "6", *LIMITS, "--train_tasks", "12", "--num_generations", "1"]
    words += [*EVALUATION, "--save_steps", "1", "--advantage_estimator", "bilevel_gae", "--critic", "head", *ENGINE]
    assert main(["ppo", MIXTURE, *words]) == 0
    assert f"model: {out}" in capsys.readouterr().out
    assert (out / "model.safetensors").is_file() and (out / "critic").exists()
    assert main(["ppo", MIXTURE, *words, "--max_steps", "2", "--resume_from_checkpoint", "true"]) == 0
    state = json.loads((out / "checkpoint-2" / "trainer_state.json").read_text())
    evaluations = [entry for entry in state["log_history"] if "eval_success" in entry]
    assert [entry["step"] for entry in evaluations] == [1, 2]
    trained = next(entry for entry in state["log_history"] if "reward" in entry)
    for env_id in BOTH:
        assert {f"{env_id}/reward", f"{env_id}/episode/turns"} <= set(trained)
        assert {f"eval_{env_id}/reward", f"eval_{env_id}/episode/success"} <= set(evaluations[0])
    assert evaluations[0]["eval_episodes"] == 4
    for step in (0, 1):
        records = read_trajectories(out / "trajectories" / f"train_{step:06d}_0.jsonl")
        played = [record["spec"]["env_id"] for record in records]
        assert (played.count(GSM8K), played.count(PLAIN)) == (4, 2)


LAUNCHED = ["--max_episode_tokens", "700", "--use_cpu", *QUICK, *ENGINE]


def launched(config: Path) -> None:
    """Train by a launcher, whose arguments are in the yaml file."""
    config.write_text(config.read_text() + "num_processes: 1\nnum_cpu_threads_per_process: 1\n")
    assert main(["grpo", "--config", str(config), *LAUNCHED]) == 0
    assert json.loads((config.parent / "out" / "config.json").read_text())["model_type"] == "qwen3"


@pytest.mark.slow
def test_the_launcher_runs_the_same_training(config: Path) -> None:
    launched(config)


def test_what_the_launcher_is_given_trains_as_its_process_does(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words as accelerate reads them, and the training that its process then begins, here."""
    from accelerate.commands.launch import launch_command_parser

    def start(words: Sequence[str]) -> int:
        asked = launch_command_parser().parse_args(words)
        assert (asked.num_processes, asked.num_cpu_threads_per_process) == (1, 1)
        assert asked.module and asked.training_script == "agent_gym.cli.launch"
        name, *argv = asked.training_script_args
        return guarded(lambda: launch.train(name, argv, launched=True))

    monkeypatch.setattr(launch, "run", start)
    launched(config)


# What takes long is announced, and what is interrupted leaves something to go on with.


@pytest.mark.slow
def test_a_rollout_that_is_interrupted_keeps_what_was_finished(tiny_model: str, tmp_path: Path) -> None:
    # More than anybody waits for, of a world that answers at once.
    words = ["rollout", GSM8K, "--expert", "--tokenizer", tiny_model, "--episodes", "20000", "--output", "some.jsonl"]
    code, shown = at_a_terminal(tmp_path, *words, steps=[(r"episodes: .*\| [1-9]\d*/20000", CTRL_C)])
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
    code, shown = at_a_terminal(tmp_path, *words, steps=[(r"\bstep +[3-9] ", CTRL_C)])
    assert "agent-gym: importing torch and TRL" in shown
    assert code == 130 and "agent-gym: interrupted" in shown  # behind which a bar may be drawn once more
    (step,) = re.findall(r"agent-gym: Resume from out/checkpoint-(\d+) with --resume_from_checkpoint true", shown)
    words += ["--resume_from_checkpoint", "true", "--max_steps", str(int(step) + 1), "--save_steps", "1"]
    code, shown = at_a_terminal(tmp_path, *words)
    assert code == 0 and "model: out" in shown
    state = json.loads((tmp_path / "out" / f"checkpoint-{int(step) + 1}" / "trainer_state.json").read_text())
    assert state["global_step"] == int(step) + 1


@pytest.mark.slow
def test_loading_a_model_is_announced(tiny_model: str, tmp_path: Path) -> None:
    words = ["rollout", GSM8K, "--model", tiny_model, "--engine", "transformers", "--episodes", "1"]
    words += ["--max_turn_tokens", "4", "--output"]
    code, shown = at_a_terminal(tmp_path, *words, "some.jsonl")
    assert code == 0 and shown.startswith(f"agent-gym: loading {tiny_model} into transformers")
