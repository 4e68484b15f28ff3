"""What `grpo`, `ppo` and `sft` take: their help, settings from words and yaml, the launcher's part, mixtures."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

pytest.importorskip("trl")

from trl import GRPOConfig

from agent_gym.cli.flags import COMMON, TRAINING, kwargs_by_env, preset_file, presets
from agent_gym.cli.main import main
from agent_gym.cli.parser import as_text
from agent_gym.cli.train import TrainingParser, task_datasets
from agent_gym.errors import ConfigError
from agent_gym.trainers.config import FIXED
from agent_gym.trainers.estimators import ESTIMATORS
from agent_gym.trainers.settings import GROUPS, AgentSettings, CriticSettings, choices
from agent_gym.trainers.tasks import Mixture

GSM8K, PLAIN = "AgentR1/GSM8K-v0", "AgentR1/GSM8K-NoTool-v0"
MIXTURE = f"{GSM8K}=2,{PLAIN}=1"
BOTH = [GSM8K, PLAIN]


def read(command: str, *words: str) -> tuple[list[Any], list[str]]:
    return TrainingParser(command).read(words)


# Help.


def printed(capsys: Any, *words: str) -> str:
    try:
        assert main(words) == 0
    except SystemExit as end:
        assert end.code == 0
    return capsys.readouterr().out


def flags_of(text: str) -> set[str]:
    return set(re.findall(r"^  (?:-h, )?--([a-z][\w-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("name", TRAINING)
def test_the_help_agrees_with_the_real_parser(name: str, capsys: Any) -> None:
    command, parser = TRAINING[name], TrainingParser(name)
    screen, groups = printed(capsys, name, "--help"), GROUPS if command.own else {}
    text, real = printed(capsys, name, "--help", "settings"), parser._option_string_actions
    own = {one.name: one for kind in command.own for one in dataclasses.fields(kind)}
    arguments = {one.name for one in dataclasses.fields(command.arguments)}
    common = COMMON.keys() - ({} if own else {"num_generations", "temperature", "beta"})
    assert flags_of(text) == arguments | own.keys() | common | {"help", "help-all", "config", "accelerate_config"}
    assert [flag for flag in flags_of(text) if not real[f"--{flag}"].help] == []
    for one in own.values():
        action = real[f"--{one.name}"]
        assert action.default == one.default and action.help == one.metadata["help"]
        shown = text.partition(f"  --{one.name} ")[2].partition("\n  --")[0]
        assert one.default is None or f"(default: {one.default})" in " ".join(shown.split())
    titles = [line.removesuffix(":") for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert [title for title in titles if title in GROUPS.values()] == [
        title for group, title in GROUPS.items() if any(one.metadata["group"] == group for one in own.values())
    ]
    assert len(screen.splitlines()) <= 50 and max(map(len, screen.splitlines())) <= 140
    assert not [word for word in (*arguments, *own, *common) if not re.search(rf"\b{word}\b", screen)]
    for group in groups:
        mine = {one.name for one in own.values() if one.metadata["group"] == group}
        assert not mine or flags_of(printed(capsys, name, "--help", group)) == mine
    text = printed(capsys, name, "--help-all")
    every = {one.name for kind in parser.dataclass_types for one in dataclasses.fields(kind)}
    hidden = set(FIXED) if own else set()
    assert {"lora_r", "adam_beta2", "env_id"} <= flags_of(text) and every - hidden <= flags_of(text)
    assert not hidden & flags_of(text)


def test_every_estimator_is_named(capsys: Any) -> None:
    text = printed(capsys, "ppo", "--help", "credit").partition("How credit is given: ")[2].partition(".")[0]
    critics = [name for name, known in ESTIMATORS.items() if known.needs_critic]
    assert " ".join(text.split()).replace(" or ", ", ").split(", ") == critics


# Settings.


def another(kind: type, setting: dataclasses.Field[Any]) -> Any:
    """A value other than the default, of the setting's type."""
    allowed = [value for value in choices(kind, setting.name) if value not in (None, setting.default)]
    hint = get_type_hints(kind)[setting.name]
    values = {bool: not setting.default, int: 7, float: 0.125, str: "window:4"}
    return allowed[-1] if allowed else next(values[one] for one in values if one in (hint, *get_args(hint)))


def test_every_setting_is_read_from_the_command_line() -> None:
    ours = {one.name: (kind, one) for kind in (AgentSettings, CriticSettings) for one in dataclasses.fields(kind)}
    added = ours.keys() - {field.name for field in dataclasses.fields(GRPOConfig)}
    assert len(added) <= 51, "too many settings for one person to know"
    values = {name: another(*found) for name, found in ours.items()}
    words = [word for name, value in values.items() for word in (f"--{name}", as_text(value))]
    read, rest = TrainingParser("ppo").parse_known_args(["--env_id", GSM8K, *words])
    assert {name: getattr(read, name) for name in ours} == values and rest == []
    assert [name for name in ours if type(getattr(read, name)) is not type(values[name])] == []


def test_settings_are_read_from_yaml_and_a_number_can_be_taken_back(tmp_path: Path) -> None:
    settings = {
        "advantage_estimator": "step_gae", "gamma": 0.9, "whiten_advantages": False, "max_turns": 3,
        "context": "window:4", "critic": "head", "critic_learning_rate": 3e-5, "cliprange_value": None,
        "num_generations": 2, "per_device_train_batch_size": 4, "output_dir": "unused",
    }  # fmt: skip
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"env_id": MIXTURE} | settings))  # JSON is yaml, too
    (env, args, _), launcher = read("ppo", "--config", str(path))
    assert {name: getattr(args, name) for name in settings} == settings
    assert env.env_id == MIXTURE and launcher == []
    (_, args, _), _ = read("ppo", "--config", str(path), "--max_turns", "null", "--gamma", "0.5")
    assert args.max_turns is None and args.gamma == 0.5


def test_yaml_and_command_line_part_into_settings_and_launcher(tmp_path: Path, monkeypatch: Any) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        f"env_id: {GSM8K}\nenv_kwargs: {{max_turns: 2}}\nmodel_name_or_path: x\noutput_dir: 2026-11-28\n"
        "train_tasks: 8\nmax_turn_tokens: 8\nlearning_rate: 1.0e-4\neval_strategy: no\nsave_strategy: no\n"
    )
    (env, _, _), launcher = read("grpo", PLAIN, "--config", str(config))
    assert launcher == [] and env.env_id == PLAIN
    monkeypatch.delenv("AGENT_GYM_TEST", raising=False)
    config.write_text(config.read_text() + "num_processes: 2\nmulti_gpu: true\nenv: {AGENT_GYM_TEST: '7'}\n")
    words = ["--config", str(config), "--learning-rate", "3e-4", "--accelerate_config", "ddp", "--machine_rank", "0"]
    (env, args, model), launcher = read("grpo", *words)
    assert env.env_id == GSM8K and env.kwargs == {"max_turns": 2} and env.train_tasks == 8
    assert args.output_dir == "2026-11-28", "which yaml reads as a date"
    assert (args.eval_strategy, args.save_strategy) == ("no", "no"), "which yaml reads as False"
    assert args.learning_rate == 3e-4 and args.max_turn_tokens == 8 and model.model_name_or_path == "x"
    assert os.environ.pop("AGENT_GYM_TEST") == "7"
    assert launcher == [
        "--config_file", preset_file("ddp"), "--num_processes", "2", "--multi_gpu", "--machine_rank", "0",
    ]  # fmt: skip


def test_every_preset_is_one_that_accelerate_reads() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    assert presets() == ["cpu", "ddp", "fsdp2", "single", "zero2", "zero3"]
    for name in presets():
        path = preset_file(name)
        assert load_config_from_file(path).num_processes == (1 if name == "single" else 4)
        assert Path(path).read_text().startswith("# ")


# Mixtures.


def datasets(*words: str) -> tuple[Any, Any]:
    (env, args, _), _ = read("grpo", *words, "--output_dir", "unused")
    return task_datasets(env, args)


def test_a_mixture_trains_in_proportion_and_evaluates_on_each_alike() -> None:
    kwargs = json.dumps({GSM8K: {"max_turns": 3}})
    words = [MIXTURE, "--env_kwargs", kwargs, "--train_tasks", "6", "--eval_strategy", "steps", "--eval_tasks", "4"]
    train, evaluation = datasets(*words)
    assert Mixture.of(train) == Mixture((tuple(range(6)), tuple(range(6, 12))), (2 / 3, 1 / 3))
    for data, count, split in ((train, 6, "train"), (evaluation, 4, "validation")):
        assert data["env_id"] == [GSM8K] * count + [PLAIN] * count
        assert data["env_kwargs"] == ['{"max_turns": 3}'] * count + ["{}"] * count
        assert set(data["split"]) == {split}
    train, evaluation = datasets(f"{GSM8K}=5")  # one environment is no mixture
    assert Mixture.of(train) is None and evaluation is None


@pytest.mark.parametrize(
    ("env_ids", "kwargs", "expected"),
    [
        (BOTH, {"seed": 1}, {GSM8K: {"seed": 1}, PLAIN: {"seed": 1}}),
        (BOTH, {PLAIN: {"seed": 1}}, {GSM8K: {}, PLAIN: {"seed": 1}}),
        (["Toy"], {"Toy": {"seed": 1}}, {"Toy": {"seed": 1}}),  # an id that could be an argument
        (BOTH, {"AgentR1/GSM8-v0": {}}, f"'AgentR1/GSM8-v0' is none of the environments, which are {GSM8K}, {PLAIN}"),
        (BOTH, {GSM8K: {}, "max_turns": 2}, f"'max_turns' is next to '{GSM8K}'"),
        (BOTH, {GSM8K: None}, f"env_kwargs of {GSM8K}: expected a JSON object"),
    ],
)
def test_arguments_go_to_all_environments_or_to_each_its_own(
    env_ids: list[str], kwargs: dict[Any, Any], expected: Any
) -> None:
    if isinstance(expected, str):
        with pytest.raises(ConfigError) as caught:
            kwargs_by_env(env_ids, kwargs)
        assert expected in str(caught.value)
    else:
        assert kwargs_by_env(env_ids, kwargs) == expected
