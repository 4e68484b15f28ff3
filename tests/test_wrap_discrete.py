"""Gymnasium's environments whose observations and actions are no texts, with `describe=` and names of actions."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest

from agent_gym import ConfigError
from agent_gym.certify import run_check
from agent_gym.certify.record import Subject
from agent_gym.contrib.gymnasium import wrap
from agent_gym.testing import check_text_env

MOVES = ["Left", "Down", "Right", "Up"]


def told(observation: Any, env: Any) -> str:
    return f"{type(env.unwrapped).__name__} shows {np.asarray(observation).tolist()}"


class Counter(gymnasium.Env[int, int]):
    """Its actions begin at 3; one is right."""

    observation_space = gymnasium.spaces.Discrete(10)
    action_space = gymnasium.spaces.Discrete(2, start=3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert isinstance(action, int) and self.action_space.contains(action)
        return action, float(action == 4), True, False, {}


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1", "CartPole-v1"])
def test_an_environment_of_numbers_passes_the_checks(name: str) -> None:
    if name not in gymnasium.registry:
        name = name[:-1] + str(int(name[-1]) - 1)
    check_text_env(lambda: wrap(name, describe=told), expert=False, episodes=2)


def test_a_wrapped_lake_is_the_lake() -> None:
    env: Any = wrap("FrozenLake-v1", describe=told, actions=MOVES)
    theirs = gymnasium.make("FrozenLake-v1")
    for seed in range(5):
        opening, _ = env.reset(options={"split": "train", "index": seed})
        theirs.reset(seed=seed)
        assert opening.endswith("FrozenLakeEnv shows 0") and "Left, Down, Right, Up" in opening
        rng, over = np.random.default_rng(seed), False
        while not over:
            move = env.random_action(rng)
            seen, reward, terminated, truncated, info = env.step(f"<think>?</think>{move.upper()}")
            state, their_reward, their_end, their_cut, _ = theirs.step(MOVES.index(move))
            over = terminated or truncated
            assert (seen, reward, terminated, truncated) == (
                f"FrozenLakeEnv shows {state}", their_reward, their_end, their_cut,
            )  # fmt: skip
        assert info["is_success"] == (reward == 1.0)


def test_anything_but_an_action_does_nothing_and_is_told() -> None:
    env: Any = wrap("FrozenLake-v1", describe=told, actions=MOVES, env_kwargs={"is_slippery": False})
    env.reset(seed=0)
    for turn in ("", "fly", "Left Down", "2", "<answer></answer>", "\ud800"):
        seen, reward, terminated, _, info = env.step(turn)
        assert seen == "Answer with one of these actions: Left, Down, Right, Up." and info["error"]
        assert (reward, terminated) == (0.0, False)
    assert env.step("<answer> right </answer>")[0] == "FrozenLakeEnv shows 1"


def test_actions_are_counted_from_where_the_space_begins() -> None:
    env = wrap(Counter, describe=told)
    env.reset(seed=0)
    assert env.step("2")[4]["error"] and env.step("4")[1] == 1.0
    env = wrap(Counter, describe=told, actions=["No", "Yes"], system_prompt="")
    assert env.reset(seed=0)[0] == "Counter shows 0" and env.step("yes")[4]["is_success"]
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert other.reset(seed=1)[0] == "Counter shows 0" and other.step("no")[1] == 0.0


def test_an_environment_per_task_names_its_actions() -> None:
    env: Any = wrap(lambda task: Counter(), tasks={"train": [1, 2]}, describe=told, actions=["a", "b"])
    env.reset(seed=0)
    assert env.step("B")[1] == 1.0 and env.random_action(np.random.default_rng(0)) in ("a", "b")


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({}, "the observation of FrozenLakeEnv is 0 .*give describe="),
        ({"describe": lambda seen, env: seen}, "what describe returned of FrozenLakeEnv is 0 .*must return a text"),
        ({"describe": "map"}, "describe is 'map'"),
        ({"describe": told, "actions": ["Left"]}, "must be a list of 4 different names"),
        ({"describe": told, "actions": ["Left", "left", "Up", "Down"]}, "must be a list of 4 different names"),
        ({"describe": told, "actions": "LDRU"}, "must be a list of 4 different names"),
        ({"describe": told, "actions": 4}, "actions is 4"),
    ],
)
def test_a_wrong_description_is_named(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        wrap("FrozenLake-v1", **kwargs).reset(seed=0)


def test_a_wrapped_lake_is_certified() -> None:
    gymnasium.register("Test/Lake-v0", entry_point=wrap, kwargs={"make": "FrozenLake-v1", "describe": told})
    try:
        for check in ("contract", "fuzz"):
            record = run_check(check, Subject("Test/Lake-v0", quick=True))
            assert record.verdict == "pass", record
    finally:
        gymnasium.registry.pop("Test/Lake-v0")
