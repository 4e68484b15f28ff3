"""`--help` of the training commands: our settings in groups, at once; `--help-all`: TRL's, too."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

pytest.importorskip("trl")

from agent_gym.cli.flags import COMMON, TRAINING, load
from agent_gym.cli.main import main
from agent_gym.cli.train import TrainingParser
from agent_gym.trainers.config import FIXED
from agent_gym.trainers.settings import GROUPS

RL_ONLY = {"num_generations", "temperature", "beta"}


def flags_of(text: str) -> set[str]:
    return set(re.findall(r"^  (?:-h, )?--([a-z][\w-]+)", text, re.MULTILINE))


def printed(capsys: Any, *words: str) -> str:
    try:
        assert main(words) == 0
    except SystemExit as end:
        assert end.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", TRAINING)
def test_the_short_help_agrees_with_the_real_parser(name: str, capsys: Any) -> None:
    command = TRAINING[name]
    text = printed(capsys, name, "--help")
    own = {one.name: one for place in command.own for one in dataclasses.fields(load(place))}
    arguments = {one.name for one in dataclasses.fields(command.arguments)}
    launcher = {"help", "help-all", "config", "accelerate_config"}
    common = COMMON.keys() - ({} if own else RL_ONLY)
    assert flags_of(text) == arguments | own.keys() | common | launcher
    real = TrainingParser(command)._option_string_actions
    assert [name for name in flags_of(text) if not real[f"--{name}"].help] == []
    for one in own.values():
        action = real[f"--{one.name}"]
        assert action.default == one.default and action.help == one.metadata["help"]
        shown = text.partition(f"  --{one.name} ")[2].partition("\n  --")[0]
        assert one.default is None or f"(default: {one.default})" in " ".join(shown.split())
    titles = [line.removesuffix(":") for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert [title for title in titles if title in GROUPS.values()] == [
        title for group, title in GROUPS.items() if any(one.metadata["group"] == group for one in own.values())
    ]


@pytest.mark.parametrize("name", TRAINING)
def test_the_long_help_shows_the_settings_of_trl_that_can_be_set(name: str, capsys: Any) -> None:
    text = printed(capsys, name, "--help-all")
    shown, real = flags_of(text), {one.name for kind in TRAINING[name].classes() for one in dataclasses.fields(kind)}
    hidden = set(FIXED) if TRAINING[name].own else set()
    assert {"lora_r", "adam_beta2", "env_id"} <= shown and real - hidden <= shown and not hidden & shown


def test_every_estimator_is_named(capsys: Any) -> None:
    from agent_gym.trainers.estimators import ESTIMATORS

    for name, wanted in (("grpo", ESTIMATORS), ("ppo", [one for one in ESTIMATORS if ESTIMATORS[one].needs_critic])):
        text = printed(capsys, name, "--help").partition("How credit is given: ")[2].partition(".")[0]
        assert " ".join(text.split()).replace(" or ", ", ").split(", ") == list(wanted)
