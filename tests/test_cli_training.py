"""`sft` and `grpo` from the command line: arguments, yaml, the launcher, and a few real steps."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_tools import complaint
from tiny import make_tiny_model

pytest.importorskip("trl")

from agent_gym.cli import flags, launch
from agent_gym.cli.main import main
from agent_gym.cli.train import TrainingParser

ENV_ID = "AgentR1/GSM8K-v0"
QUICK = ["--report_to", "none", "--save_strategy", "no", "--max_steps", "1", "--per_device_train_batch_size", "4"]
ENGINE = ["--use_vllm", "false"]  # vLLM takes half a minute to start


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def config(model: str, tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"env_id: {ENV_ID}\nenv_kwargs: {{max_turns: 2}}\nmodel_name_or_path: {model}\noutput_dir: {tmp_path / 'out'}\n"
        "train_tasks: 8\nnum_generations: 2\nper_device_train_batch_size: 4\nmax_turn_tokens: 8\n"
        "learning_rate: 1.0e-4\n"
    )
    return path


def read(words: list[str]) -> tuple[list[Any], list[str], list[str]]:
    return TrainingParser(flags.TRAINING["grpo"]).read(words)


def test_yaml_and_command_line_part_into_settings_and_launcher(config: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("AGENT_GYM_TEST", raising=False)
    config.write_text(config.read_text() + "num_processes: 2\nmulti_gpu: true\nenv: {AGENT_GYM_TEST: '7'}\n")
    words = ["--config", str(config), "--learning-rate", "3e-4", "--accelerate_config", "ddp", "--machine_rank", "0"]
    (env, args, model), launcher, own = read(words)
    assert env.env_id == ENV_ID and env.kwargs == {"max_turns": 2} and env.train_tasks == 8
    assert args.learning_rate == 3e-4 and args.max_turn_tokens == 8
    assert Path(model.model_name_or_path).is_dir()
    assert os.environ.pop("AGENT_GYM_TEST") == "7"
    assert launcher == [
        "--config_file", flags.preset_file("ddp"), "--num_processes", "2", "--multi_gpu", "--machine_rank", "0",
    ]  # fmt: skip
    assert own == ["--config", str(config), "--learning_rate", "3e-4"]


def test_without_launcher_arguments_nothing_is_launched(config: Path) -> None:
    (env, _, _), launcher, own = read(["AgentR1/GSM8K-NoTool-v0", "--config", str(config)])
    assert launcher == [] and env.env_id == "AgentR1/GSM8K-NoTool-v0"
    assert own == ["--config", str(config), "--env_id", "AgentR1/GSM8K-NoTool-v0"]


def test_every_preset_is_one_that_accelerate_reads() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    assert flags.presets() == ["cpu", "ddp", "fsdp2", "single", "zero2", "zero3"]
    for name in flags.presets():
        path = flags.preset_file(name)
        assert load_config_from_file(path).num_processes == (1 if name == "single" else 4)
        assert Path(path).read_text().startswith("# ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lerning_rate", "1"], "unknown argument '--lerning_rate'; did you mean --learning_rate"),
        (["--learning_rate", "fast"], "invalid float value: 'fast'"),
        (["--accelerate_config", "zero9"], "presets: cpu, ddp, fsdp2, single, zero2, zero3"),
        (["--num_generations", "3"], "must be divisible by num_generations"),
        (
            ["--loss_type", "dapo"],
            "loss_type 'dapo' of TRL is called loss_type='clip', loss_normalization='token' here",
        ),
        (["--advantage_estimator", "grop"], "advantage_estimator is 'grop'; allowed: grpo, dr_grpo"),
        (["--advantage_estimator", "gae"], "'gae' needs a critic: use agent-gym ppo, or one of grpo, dr_grpo"),
        (["--model_name_or_path", "./nope"], "no model folder at ./nope"),
        (["--env_kwargs", "[1]"], "env_kwargs: expected a JSON object"),
        (["--env_kwargs", '{"data": "/no/such.jsonl"}'], "no such file or folder: '/no/such.jsonl'"),
        (["--env_id", "AgentR1/GSM8-v0"], "did you mean AgentR1/GSM8K-v0"),
        (["--train_split", "tarin"], "unknown split 'tarin'"),
        (["--resume_from_checkpoint", "true"], "no checkpoint to resume from"),
        (["--resume_from_checkpoint", "/no/such"], "no checkpoint at /no/such"),
        (["--report_to", "wandbb"], "report_to: wandbb is not supported"),
        (["--learning_rate", "-1"], "Invalid learning rate: -1.0"),
        (["--adam_beta1", "2"], "Invalid beta parameter"),
        (["--lr_scheduler_kwargs", '{"nope": 1}'], "unexpected keyword argument 'nope'"),
        (["--output_dir", "/proc/o1"], "cannot write /proc/o1: No such file or directory; name another folder"),
        ("lerning_rate: 1", "unknown key 'lerning_rate'; did you mean learning_rate"),
        ("env: AgentR1/GSM8K-v0", "the task is `env_id`"),
        ("learning_rate: [", "not valid yaml"),
    ],
)
def test_a_mistake_on_the_command_line_or_in_yaml_is_one_line(
    words: list[str] | str, message: str, config: Path, capsys: Any
) -> None:
    if isinstance(words, str):
        config.write_text(f"{config.read_text()}{words}\n")
        words = []
    assert message in complaint(capsys, "grpo", "--config", str(config), *words)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed(name: str, config: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(f"transformers.integrations.integration_utils.is_{name}_available", lambda: False)
    line = complaint(capsys, "grpo", "--config", str(config), "--report_to", name)
    assert f"report_to {name}: " in line and "pip install 'agent-gym[trackers]', or --report_to none" in line


@pytest.mark.parametrize("command", ["grpo", "ppo", "sft"])
@pytest.mark.parametrize(
    "left", ["checkpoint-3/trainer_state.json", "trajectories/train_000000_0.jsonl", "model.safetensors"]
)
def test_a_used_folder_is_refused(command: str, left: str, model: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    file = out / left
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    (out / "notes.txt").write_text("of mine")
    given = [command, ENV_ID, "--model_name_or_path", model, "--output_dir", str(out), "--report_to", "none"]
    line = complaint(capsys, *given)
    assert f"{out} holds another run ({left.partition('/')[0]}" in line and "name another --output_dir" in line
    assert ("--resume_from_checkpoint true" in line) == left.startswith("checkpoint")
    assert file.read_text() == "{}"
    shutil.rmtree(out / Path(left).parts[0]) if "/" in left else file.unlink()
    assert "unknown split 'tarin'" in complaint(capsys, *given, "--train_split", "tarin"), "other files are no run"


def test_what_sft_needs_to_know(tmp_path: Path, capsys: Any) -> None:
    given = ["sft", ENV_ID, "--output_dir", str(tmp_path)]
    assert "which model?" in complaint(capsys, *given)
    assert "give one of them" in complaint(capsys, *given, "--tiny", "--model_name_or_path", "x")
    assert "allowed: policy, all" in complaint(capsys, *given, "--tiny", "--train_on", "world")
    assert "styles: expected a JSON object" in complaint(capsys, *given, "--tiny", "--styles", "direct")
    assert "--env_id" in complaint(capsys, "sft", "--tiny", "--output_dir", str(tmp_path))


def test_from_nothing_to_a_trained_model(tmp_path: Path, capsys: Any) -> None:
    warm, out = str(tmp_path / "sft"), tmp_path / "grpo"
    assert main(["sft", ENV_ID, "--tiny", "--train_tasks", "8", "--output_dir", warm, *QUICK]) == 0
    limits = ["--num_generations", "2", "--max_turn_tokens", "8", "--max_episode_tokens", "256", "--train_tasks", "4"]
    evaluation = ["--eval_strategy", "steps", "--eval_steps", "1", "--eval_tasks", "2"]
    given = ["--model_name_or_path", warm, "--output_dir", str(out), *limits, *evaluation]
    assert main(["grpo", ENV_ID, *given, *QUICK, *ENGINE]) == 0
    assert f"model: {out}" in capsys.readouterr().out
    trajectories = sorted(path.name for path in (out / "trajectories").iterdir())
    assert any(name.startswith("train_") for name in trajectories)
    playing = ["--engine", "transformers", "--episodes", "2", "--max_turn_tokens", "8"]
    assert main(["eval", ENV_ID, "--model", str(out), *playing]) == 0
    assert main(["view", str(out / "trajectories"), "--title", "run"]) == 0
    assert (out / "trajectories.html").is_file()


def test_long_demonstrations_need_no_setting(tmp_path: Path, capsys: Any) -> None:
    prompt = json.dumps({"system_prompt": "0 " * 600})  # digits are a token each, and so are spaces
    given = ["sft", ENV_ID, "--tiny", "--train_tasks", "4", "--env_kwargs", prompt, *QUICK]
    assert main([*given, "--output_dir", str(tmp_path / "one")]) == 0
    short = ["--output_dir", str(tmp_path / "other"), "--max_length", "1024"]
    assert "raise it, or let it be None" in complaint(capsys, *given, *short)


def launched(config: Path, *words: str) -> Path:
    out = config.parent / "launched"
    given = ["grpo", "--config", str(config), "--output_dir", str(out), "--max_episode_tokens", "700", "--use_cpu"]
    assert main([*given, *QUICK, *ENGINE, *words]) == 0
    return out


def test_the_launcher_runs_the_same_training(config: Path) -> None:
    config.write_text(config.read_text() + "num_processes: 1\nnum_cpu_threads_per_process: 1\n")
    out = launched(config)
    assert (out / "model.safetensors").is_file()
    assert json.loads((out / "config.json").read_text())["model_type"] == "qwen3"


@pytest.mark.slow
def test_the_preset_for_cpus_starts_several_processes(config: Path) -> None:
    words = ["--accelerate_config", "cpu", "--num_processes", "2", "--num_cpu_threads_per_process", "1"]
    trajectories = (launched(config, *words) / "trajectories").glob("train_*.jsonl")
    assert {path.stem.split("_")[2] for path in trajectories} == {"0", "1"}


def test_a_mistake_found_in_a_worker_is_one_line_too(capsys: Any) -> None:
    assert launch.worker(["grpo", ENV_ID, "--output_dir", "x", "--loss_type", "nope"]) == 2
    assert "loss_type" in capsys.readouterr().err
