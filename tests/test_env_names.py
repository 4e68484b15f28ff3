"""What stands for an environment: short ids, classes, functions and specs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import TransformReward
from toy_envs import CountingEnv

import agent_gym
from agent_gym import ConfigError
from agent_gym.cli.main import main
from agent_gym.evaluate import make_specs
from agent_gym.registry import resolve_env, resolve_env_id
from agent_gym.rollout import make_env

GSM8K = "AgentR1/GSM8K-v0"


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("gsm8k", GSM8K),
        ("GSM8K-v0", GSM8K),
        ("agentr1/gsm8k", GSM8K),
        ("hotpotqa", "AgentR1/HotpotQA-v0"),
        ("hotpotqa-naive-rag", "AgentR1/HotpotQA-NaiveRAG-v0"),
        ("papersearch", "AgentR1/PaperSearch-v1"),
        ("agent_gym:bisect", "agent_gym:AgentR1/Bisect-v0"),
    ],
)
def test_a_short_form_stands_for_the_only_id_that_it_fits(short: str, full: str) -> None:
    assert resolve_env_id(short) == full


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("gsm9k", f"did you mean {GSM8K}"),
        ("gsm8k-v1", f"did you mean {GSM8K}"),
        ("Local/Gone-v0", "gymnasium.register it in a module"),
        ("nothing like it", "known here: AgentR1/GSM8K-v0"),
        ("./my_env.py:MyEnv", "'./my_env.py' is a file; give MODULE:CLASS, here my_env:MyEnv"),
        ("my_env.py:MyEnv", "is a file; give MODULE:CLASS"),
    ],
)
def test_an_id_that_fits_none_names_the_nearest(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_env_id(given)


def test_two_ids_of_one_name_are_both_named() -> None:
    agent_gym.register(agent_gym.EnvEntry("Mine/GSM8K-v0", "toy_envs:CountingEnv", "x"))
    try:
        with pytest.raises(ConfigError, match="did you mean AgentR1/GSM8K-v0 or Mine/GSM8K-v0"):
            resolve_env_id("gsm8k")
    finally:
        del gymnasium.registry["Mine/GSM8K-v0"]
        agent_gym.registry._registered.pop("Mine/GSM8K-v0")


def test_commands_take_short_ids(capsys: Any) -> None:
    assert main(["eval", "gsm8k", "--policy", "random", "--episodes", "2", "--json"]) == 0
    assert f'"env_id": "{GSM8K}"' in capsys.readouterr().out


def test_a_class_of_the_same_name_does_not_take_a_short_id() -> None:
    assert resolve_env(type("GSM8K", (CountingEnv,), {}))[0] == "Local/GSM8K-v0"
    assert resolve_env(CountingEnv)[0] == resolve_env_id("countingenv") and resolve_env_id("gsm8k") == GSM8K


def test_a_class_of_a_module_is_meant_before_an_id_that_sounds_alike(tmp_path: Path, monkeypatch: Any) -> None:
    for module in ("worlds_here", "worlds_there"):
        (tmp_path / f"{module}.py").write_text("from toy_envs import CountingEnv\nclass Bisect(CountingEnv): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert resolve_env_id("worlds_here:Bisect") == "worlds_here:Bisect"
        env: Any = agent_gym.make("worlds_here:Bisect")
        assert type(env.unwrapped).__module__ == "worlds_here"
        with pytest.raises(ConfigError, match="worlds_here:Bisect has this name in this process; give one of both"):
            resolve_env_id("worlds_there:Bisect")
    finally:
        gymnasium.registry.pop("Bisect", None)
    assert resolve_env_id("cheating_envs:Honest") == "cheating_envs:Cheat/Honest-v0"  # which its module registers


def test_what_makes_an_environment_stands_for_it() -> None:
    env_id, kwargs = resolve_env(CountingEnv, {"max_turns": 3})
    assert (env_id, kwargs) == ("Local/CountingEnv-v0", {"max_turns": 3}) and resolve_env(CountingEnv)[0] == env_id
    again = type("CountingEnv", (CountingEnv,), {"__module__": CountingEnv.__module__})  # as a cell that runs again
    assert resolve_env(again)[0] == env_id and type(make_env(env_id).unwrapped) is again
    one, two = resolve_env(lambda: CountingEnv())[0], resolve_env(lambda: CountingEnv(max_turns=2))[0]
    assert one != two and make_env(two).unwrapped.max_turns == 2  # type: ignore[attr-defined]
    assert agent_gym.make(CountingEnv, max_turns=2).max_turns == 2
    (spec,) = make_specs(CountingEnv, split="train", episodes=1)
    assert spec.env_id == env_id


def test_the_recipe_of_an_instance_is_its_spec_with_its_wrappers() -> None:
    made = gymnasium.make(GSM8K, difficulty=2)
    assert resolve_env(made, {"split": "test"}) == (GSM8K, {"difficulty": 2, "split": "test"})
    for factor in (10.0, 20.0):
        env_id, kwargs = resolve_env(TransformReward(made, lambda reward, by=factor: by * reward))
        env = gymnasium.make(env_id, **kwargs)
        env.reset(seed=0)
        over, total = False, 0.0
        while not over:
            _, reward, over, _, _ = env.step(env.unwrapped.expert_action())
            total += reward
        assert total == pytest.approx(1.1 * factor)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "env is 3"),
        (CountingEnv(), "give env=CountingEnv and env_kwargs"),
        (type("Tools", (), {"reset": lambda self: None}), "FromTRL"),
    ],
)
def test_what_makes_none_gets_the_cure(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_env(given)


def test_a_name_is_as_good_as_its_tokenizer(tiny_model: str) -> None:
    env = agent_gym.make(GSM8K, tokenizer=tiny_model)
    assert env.reset(seed=0)[1]["token_ids"]
    with pytest.raises(ConfigError, match="the tokenizer of './nope' cannot be loaded: .*; give the folder or hub id"):
        agent_gym.make(GSM8K, tokenizer="./nope")
