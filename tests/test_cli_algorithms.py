"""`grpo` and `ppo` from the command line: every setting of the algorithms, mixtures of environments, and real steps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from cli_tools import complaint
from tiny import make_tiny_model

pytest.importorskip("trl")

from trl import GRPOConfig

from agent_gym.cli.flags import TRAINING, kwargs_by_env
from agent_gym.cli.main import main
from agent_gym.cli.parser import as_text
from agent_gym.cli.train import TrainingParser, task_datasets
from agent_gym.errors import ConfigError
from agent_gym.rollout import read_trajectories
from agent_gym.trainers import AgentGRPOConfig, AgentPPOConfig
from agent_gym.trainers.estimators import ESTIMATORS
from agent_gym.trainers.settings import AgentSettings, CriticSettings
from agent_gym.trainers.tasks import Mixture

GSM8K, PLAIN = "AgentR1/GSM8K-v0", "AgentR1/GSM8K-NoTool-v0"
MIXTURE = f"{GSM8K}=2,{PLAIN}=1"

# A value other than the default for each setting of ours, such that all of them go together.
SETTINGS = {
    "advantage_estimator": "step_gae",
    "gamma": 0.9,
    "lam": 0.8,
    "step_gamma": 0.7,
    "step_lam": 0.6,
    "gigpo_step_weight": 0.5,
    "whiten_advantages": False,
    "process_norm": "prime",
    "outcome_weight": 2.0,
    "loss_type": "cispo",
    "loss_normalization": "step",
    "importance_sampling_level": "sequence",
    "kl_in": "reward",
    "minibatch_by": "episodes",
    "keep_groups": 0.25,
    "max_refills": 3,
    "overlong_buffer": 8,
    "turn_curriculum": "0:2,100:4",
    "echo_trap": "stop",
    "max_turns": 3,
    "max_turn_tokens": 32,
    "max_episode_tokens": 512,
    "episode_timeout": 2.5,
    "context": "window:4",
    "micro_batch_size": 2,
    "micro_batch_tokens": 4096,
    "packing": True,
    "use_vllm": True,
    "layout": "server",
    "weights_transfer": "files",
    "weights_folder": "/shared",
    "overlap": True,
    "over_sampling": 0.25,
    "max_num_seqs": 16,
    "env_workers": 2,
    "env_processes": 1,
    "eval_temperature": 0.5,
    "trajectories_per_step": 0,
    "num_generations_eval": 2,
    "vllm_importance_sampling_mode": "token_mask",
    "critic": "head",
    "critic_learning_rate": 3e-5,
    "critic_warmup_steps": 5,
    "vf_coef": 0.25,
    "cliprange_value": None,
    "num_generations": 2,
}
REST = {
    "output_dir": "unused",
    "per_device_train_batch_size": 4,
    "epsilon_high": 5.0,
    "beta": 0.01,
    "vllm_server_base_url": "http://127.0.0.1:8010",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))


def flags(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", as_text(value))]


def read(command: str, *words: str) -> tuple[list[Any], list[str], list[str]]:
    return TrainingParser(TRAINING[command]).read(words)


def settings_of(config: AgentGRPOConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in SETTINGS}


# Settings.


def test_every_setting_is_read_from_the_command_line_and_from_yaml(tmp_path: Path) -> None:
    ours = {name for kind in (AgentSettings, CriticSettings) for name in kind.__annotations__}
    assert ours - {"num_generations"} == set(SETTINGS) - {"num_generations"}
    added = ours - {field.name for field in dataclasses.fields(GRPOConfig)}
    assert len(added) <= 40, "too many settings for one person to know"
    defaults = settings_of(AgentPPOConfig("unused", bf16=False))
    assert [name for name in SETTINGS if SETTINGS[name] == defaults[name]] == []

    (_, typed, _), _, _ = read("ppo", GSM8K, *flags(SETTINGS | REST))
    assert settings_of(typed) == SETTINGS
    assert {name: type(value) for name, value in settings_of(typed).items()} == {
        name: type(value) for name, value in SETTINGS.items()
    }

    # JSON is yaml, too.
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"env_id": MIXTURE} | SETTINGS | REST))
    (env, written, _), launcher, _ = read("ppo", "--config", str(path))
    assert settings_of(written) == SETTINGS and env.env_id == MIXTURE and launcher == []


@pytest.mark.parametrize("word", ["null", "none", "None"])
def test_a_number_can_be_taken_back(word: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("output_dir: unused\nmax_turns: 3\ncliprange_value: 0.1\n")
    words = [GSM8K, "--config", str(path), "--max_turns", word, "--cliprange_value", word]
    (_, args, _), _, _ = read("ppo", *words)
    assert args.max_turns is None and args.cliprange_value is None


# Mixtures.


def datasets(*words: str) -> tuple[Any, Any]:
    (env, args, _), _, _ = read("grpo", *words, "--output_dir", "unused")
    return task_datasets(env, args)


def test_a_mixture_trains_in_proportion_and_evaluates_on_each_alike() -> None:
    kwargs = json.dumps({GSM8K: {"max_turns": 3}})
    words = [MIXTURE, "--env_kwargs", kwargs, "--train_tasks", "6", "--eval_strategy", "steps", "--eval_tasks", "4"]
    train, evaluation = datasets(*words)
    assert Mixture.of(train) == Mixture((tuple(range(6)), tuple(range(6, 12))), (2 / 3, 1 / 3))
    assert evaluation is not None
    for data, count, split in ((train, 6, "train"), (evaluation, 4, "validation")):
        assert data["env_id"] == [GSM8K] * count + [PLAIN] * count
        assert data["env_kwargs"] == ['{"max_turns": 3}'] * count + ["{}"] * count
        assert set(data["split"]) == {split}


def test_one_environment_is_no_mixture_and_may_name_its_arguments_too() -> None:
    for kwargs in ({"max_turns": 3}, {GSM8K: {"max_turns": 3}}):
        train, evaluation = datasets(f"{GSM8K}=5", "--env_kwargs", json.dumps(kwargs))
        assert Mixture.of(train) is None and set(train["env_kwargs"]) == {'{"max_turns": 3}'}
        assert evaluation is None


def test_arguments_go_to_all_environments_or_to_each_its_own() -> None:
    both = [GSM8K, PLAIN]
    assert kwargs_by_env(both, {"seed": 1}) == {GSM8K: {"seed": 1}, PLAIN: {"seed": 1}}
    assert kwargs_by_env(both, {}) == {GSM8K: {}, PLAIN: {}}
    assert kwargs_by_env(both, {PLAIN: {"seed": 1}}) == {GSM8K: {}, PLAIN: {"seed": 1}}
    assert kwargs_by_env(["Toy"], {"Toy": {"seed": 1}}) == {"Toy": {"seed": 1}}  # an id that could be an argument


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"AgentR1/GSM8-v0": {}}, f"'AgentR1/GSM8-v0' is none of the environments, which are {GSM8K}, {PLAIN}"),
        ({1: {}}, "1 is none of the environments"),
        ({GSM8K: {}, "max_turns": 2}, f"'max_turns' stands beside '{GSM8K}'"),
        ({GSM8K: None}, f"env_kwargs of {GSM8K}: expected a JSON object"),
        ({GSM8K: [1]}, f"env_kwargs of {GSM8K}: expected a JSON object"),
    ],
)
def test_arguments_of_the_wrong_environment_are_refused(kwargs: dict[Any, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kwargs_by_env([GSM8K, PLAIN], kwargs)
    assert message in str(caught.value)


# Mistakes.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env_id", f"{GSM8K},AgentR1/GSM8K-NoTol-v0"], f"'AgentR1/GSM8K-NoTol-v0'; did you mean {PLAIN}"),
        (["--env_id", f"{GSM8K}=much,{PLAIN}"], f"the weight of {GSM8K} is 'much'; it must be a positive number"),
        (["--env_kwargs", '{"AgentR1/GSM8-v0": {}}'], "'AgentR1/GSM8-v0' is none of the environments"),
        (["--env_kwargs", json.dumps({PLAIN: {"max_turn": 2}})], "no argument 'max_turn' (did you mean 'max_turns'?)"),
        (["--train_tasks", "900000"], "has 20000 tasks"),
        (["--advantage_estimator", "grop"], "advantage_estimator is 'grop'; allowed: grpo, dr_grpo, rloo, remax"),
        (["--context", "windw:4"], "windw"),
        (["--turn_curriculum", "2:4"], "its first step must be 0"),
        (["--process_norm", "prim"], "process_norm is 'prim'; allowed: None, none, trajectory"),
        (["--keep_groups", "much"], "invalid float value: 'much'"),
        (["--cliprange_valu", "1"], "unknown argument '--cliprange_valu'"),
        (["--resume_from_checkpoint", "true"], "no checkpoint to resume from"),
        (f"env_id: [{GSM8K}, {PLAIN}]", "it must be text"),
        ("env_kwargs: [1]", "env_kwargs: expected a JSON object"),
        ("critic: heads", "critic is 'heads'; allowed: model, head"),
        ("critics: head", "unknown key 'critics'; did you mean critic"),
    ],
)
def test_a_mistake_on_the_command_line_or_in_yaml_is_one_line(
    words: list[str] | str, message: str, model: str, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "run.yaml"
    yaml = words if isinstance(words, str) else ""
    env_id = "" if yaml.startswith("env_id") else f"env_id: {MIXTURE}\n"
    path.write_text(f"{env_id}model_name_or_path: {model}\noutput_dir: {tmp_path / 'out'}\n{yaml}\n")
    assert message in complaint(capsys, "ppo", "--config", str(path), *([] if yaml else words))


@pytest.mark.parametrize(("wrong", "right", "name"), [("grpo", "ppo", "bilevel_gae"), ("ppo", "grpo", "rloo")])
def test_an_estimator_of_the_other_trainer_names_its_command(
    wrong: str, right: str, name: str, model: str, tmp_path: Path, capsys: Any
) -> None:
    given = ["--model_name_or_path", model, "--output_dir", str(tmp_path), "--num_generations", "2"]
    batch = ["--per_device_train_batch_size", "4"]
    line = complaint(capsys, wrong, GSM8K, *given, *batch, "--advantage_estimator", name)
    assert f"{name!r}" in line and f"use agent-gym {right}, or one of " in line
    others = line.split("or one of ")[1].split(", ")
    assert others == [other for other in ESTIMATORS if ESTIMATORS[other].needs_critic == (wrong == "ppo")]


# Training.


def arguments(model: str, out: Path) -> list[str]:
    settings = {
        "model_name_or_path": model,
        "output_dir": str(out),
        "env_kwargs": {"system_prompt": ""},
        "train_tasks": 12,
        "per_device_train_batch_size": 6,
        "max_turn_tokens": 8,
        "max_episode_tokens": 700,
        "context": "window:2",
        "turn_curriculum": "0:1,1:2",
        "max_steps": 1,
        "use_vllm": False,
        "report_to": "none",
        "logging_steps": 1,
        "save_steps": 1,
    }
    return flags(settings)


def test_ppo_trains_on_a_mixture_evaluates_and_resumes(model: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    evaluation = ["--eval_strategy", "steps", "--eval_steps", "1", "--eval_tasks", "2"]
    given = [MIXTURE, *arguments(model, out), *evaluation, "--advantage_estimator", "bilevel_gae", "--critic", "head"]
    assert main(["ppo", *given]) == 0
    assert f"model: {out}" in capsys.readouterr().out
    assert (out / "model.safetensors").is_file() and (out / "critic").exists()
    assert main(["ppo", *given, "--max_steps", "2", "--resume_from_checkpoint", "true"]) == 0
    state = json.loads((out / "checkpoint-2" / "trainer_state.json").read_text())
    evaluations = [entry for entry in state["log_history"] if "eval_success" in entry]
    assert [entry["step"] for entry in evaluations] == [1, 2]
    for env_id in (GSM8K, PLAIN):
        assert {f"eval_{env_id}/reward", f"eval_{env_id}/episode/success"} <= set(evaluations[0])
    assert evaluations[0]["eval_episodes"] == 4
    for step in (0, 1):
        played = [
            record["spec"]["env_id"] for record in read_trajectories(out / "trajectories" / f"train_{step:06d}_0.jsonl")
        ]
        assert (played.count(GSM8K), played.count(PLAIN)) == (4, 2)


@pytest.mark.slow
def test_two_processes_train_a_critic_on_a_mixture(model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    launcher = ["--use_cpu", "--multi_gpu", "--num_processes", "2"]
    assert main(["ppo", MIXTURE, *arguments(model, out), "--save_strategy", "no", *launcher]) == 0
    assert (out / "model.safetensors").is_file() and (out / "critic").exists()
    files = sorted(path.name for path in (out / "trajectories").iterdir())
    assert files == ["train_000000_0.jsonl", "train_000000_1.jsonl"]
