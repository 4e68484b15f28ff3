"""The page on algorithms: its recipes train, and its table names what each estimator needs and where it is."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from test_docs import ROOT, blocks_of  # noqa: E402
from trainer_tools import RandomPolicy, distance, make_trainer, weights  # noqa: E402

from agent_gym.policies import Generation, Request  # noqa: E402
from agent_gym.trainers import AgentPPOConfig  # noqa: E402
from agent_gym.trainers.estimators import ESTIMATORS  # noqa: E402
from agent_gym.trainers.hooks.echo_trap import LOG_KEYS  # noqa: E402
from agent_gym.trainers.settings import AgentSettings, choices  # noqa: E402

PAGE = ROOT / "docs" / "algorithms.md"
NAMES = re.findall(r'^    "(.+?)": \(\s*Agent', PAGE.read_text(encoding="utf-8"), re.MULTILINE)
# What makes a run too long for a test, or asks for more episodes than it has.
SMALL: dict[str, int] = {"num_generations": 4, "max_turn_tokens": 8, "overlong_buffer": 4}


class Moody(RandomPolicy):
    """Samples other tokens when it is greedy, as a model would: a baseline that is the same episode teaches nothing."""

    def _write(self, request: Request) -> Generation:
        assert request.params.seed is not None
        seed = request.params.seed + (request.params.temperature == 0.0)
        return super()._write(replace(request, params=replace(request.params, seed=seed)))


def recipes() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Execute the block with the recipes, which also makes the settings of each."""
    (block,) = [block for block in blocks_of(PAGE) if "RECIPES = {" in block.text]
    namespace: dict[str, Any] = {}
    exec(block.text, namespace)
    return namespace["RECIPES"]


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    lines = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("|")]
    stop = next((i for i, line in enumerate(lines[2:], 2) if line.startswith("|---")), len(lines) + 1)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2 : stop - 1]]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if number % 2 else []) for number, name in enumerate(NAMES)]
)
def test_a_recipe_trains(tmp_path: Path, name: str) -> None:
    config, settings = recipes()[name]
    small = {key: min(value, SMALL[key]) if key in SMALL else value for key, value in settings.items()}
    small.pop("critic_warmup_steps", None)  # the policy is to move in the first step
    trainer = make_trainer(tmp_path, ppo=config is AgentPPOConfig, max_steps=1, policy=Moody(), **small)
    assert isinstance(trainer.args, config)
    before = weights(trainer.model)
    trainer.train()
    policy = {key: value for key, value in weights(trainer.model).items() if not key.startswith("critic.")}
    assert distance({key: before[key] for key in policy}, policy) > 1e-5


def test_the_recipes_use_every_estimator_and_the_table_names_them() -> None:
    assert NAMES == list(recipes()) and len(NAMES) >= 15
    default = "advantage_estimator"
    used = {given.get(default, config.__dataclass_fields__[default].default) for config, given in recipes().values()}
    rows = rows_of("Estimators")
    assert used == set(ESTIMATORS)
    assert [row[0].strip("`") for row in rows] == list(ESTIMATORS)
    for name, _, needs, _, link in rows:
        estimator = ESTIMATORS[name.strip("`")]
        expected = {"critic": estimator.needs_critic, "groups": estimator.needs_groups}
        assert {word: word == needs for word in expected} == expected, f"{name} needs {needs}?"
        assert estimator.needs_baseline == ("greedy" in needs)
        function, path = re.fullmatch(r"\[`(\w+)`\]\(\.\./(trainers/[\w/]+)\.py\)", link).groups()  # type: ignore[union-attr]
        assert callable(getattr(importlib.import_module(f"agent_gym.{path.replace('/', '.')}"), function))


def test_the_other_tables_name_what_there_is() -> None:
    normalizations = choices(AgentSettings, "loss_normalization")
    assert [re.findall(r"`(\w+)`", row[0])[0] for row in rows_of("The loss")] == normalizations
    assert {row[0].strip("`") for row in rows_of("The echo trap")} == set(LOG_KEYS)
    # What the page sets in its text is a field of the settings or an argument of the trainers.
    words = set(re.findall(r"`(\w+)=", PAGE.read_text(encoding="utf-8"))) - {"callbacks", "env_kwargs", "train_dataset"}
    assert words and not words - set(AgentPPOConfig.__dataclass_fields__)
