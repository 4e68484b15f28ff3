"""GuessTheNumber: what each guess is answered, who finds how much, and that training shows no range of a test."""

from __future__ import annotations

import itertools

import gymnasium
import pytest

from agent_gym.envs.guess.env import GuessTheNumberEnv
from agent_gym.errors import ConfigError


def found(env: GuessTheNumberEnv, index: int, style: str, seed: int = 0) -> bool:
    env.reset(seed=seed, options={"split": "test", "index": index})
    while True:
        *_, terminated, truncated, info = env.step(env.expert_action(style))
        if terminated or truncated:
            return info["is_success"]


def test_halving_finds_every_number_and_a_poor_player_46_percent() -> None:
    env = GuessTheNumberEnv()
    n = len(env.tasks["test"])
    assert all(found(env, index, "default") for index in range(n))
    lucky = [found(env, index, "low", seed) for seed, index in itertools.product(range(40), range(n))]
    assert sum(lucky) / len(lucky) == pytest.approx(0.46, abs=0.04)  # three standard errors


def test_each_guess_is_answered_with_what_is_left() -> None:
    env = GuessTheNumberEnv(max_turns=8)
    assert env.reset(options={"task": (3, 17, 9)})[0].endswith("\n\n3 to 17")
    answers = {
        "12": "lower: 3 to 11", "11 ": "lower: 3 to 10", "5": "higher: 6 to 10", "2": "no: 6 to 10",
        "300": "no: 6 to 10", "nine": "Write a number.", "٩": "Write a number.",
    }  # fmt: skip
    for action, answer in answers.items():
        observation, reward, terminated, truncated, _ = env.step(action)
        assert (observation, reward, terminated, truncated) == (answer, 0.0, False, False), action
    observation, reward, terminated, _, info = env.step("9")
    assert (observation, reward, terminated, info["is_success"]) == ("", 1.0, True, True)


def test_no_range_of_a_split_is_in_another_one() -> None:
    env = gymnasium.make("AgentR1/GuessTheNumber-v0", ranges=12, size=7).unwrapped
    ranges = {split: {task[:2] for task in tasks} for split, tasks in env.tasks.items()}
    assert sorted(itertools.chain.from_iterable(ranges.values())) == [(low, low + 6) for low in range(1, 13)]
    assert {split: len(set(env.tasks[split])) for split in ranges} == {"train": 49, "validation": 14, "test": 21}


def test_what_it_does_not_take_is_named() -> None:
    env = GuessTheNumberEnv()
    with pytest.raises(ConfigError, match="no style 'fast'; known: default, low"):
        env.expert_action("fast")
    for task in ((1, 15, 16), "8", (1, 15, True)):
        with pytest.raises(ConfigError, match="a task"):
            env.reset(options={"task": task})
    with pytest.raises(ConfigError, match="ranges is 4"):
        GuessTheNumberEnv(ranges=4)
