"""Bisect: what each test is answered, who finds how much, and that training begins with no number of a test."""

from __future__ import annotations

import itertools

import gymnasium
import pytest

from agent_gym.envs.bisect import BisectEnv
from agent_gym.errors import ConfigError


def found(env: BisectEnv, index: int, style: str, seed: int = 0) -> bool:
    env.reset(seed=seed, options={"split": "test", "index": index})
    while True:
        *_, terminated, truncated, info = env.step(env.expert_action(style))
        if terminated or truncated:
            return info["is_success"]


@pytest.mark.parametrize("size", [16, 20, 32, 100])
def test_halving_finds_every_commit(size: int) -> None:
    env = BisectEnv(size=size)
    assert all(found(env, index, "default") for index in range(len(env.tasks["test"])))


def test_a_poor_player_finds_a_third() -> None:
    env = BisectEnv()
    lucky = [found(env, i, "newest", seed) for seed, i in itertools.product(range(30), range(len(env.tasks["test"])))]
    assert sum(lucky) / len(lucky) == pytest.approx(0.335, abs=0.03)  # three standard errors


def test_each_test_is_answered_with_what_is_left() -> None:
    env = BisectEnv(max_turns=8)
    assert env.reset(options={"task": (20, 8)})[0].endswith("\n\n20 left")
    answers = {
        "12": "bad: 12 left", "0": "Write a number from 1 to 12.", "13": "Write a number from 1 to 12.",
        "12 ": "bad: 12 left", "٣": "Write a number from 1 to 12.", "<think>\n4?\n</think>\n\n5": "good: 7 left",
        "1": "good: 6 left",
    }  # fmt: skip
    for action, answer in answers.items():
        observation, reward, terminated, truncated, _ = env.step(action)
        assert (observation, reward, terminated, truncated) == (answer, 0.0, False, False), action
    assert env.step("2")[:4] == ("bad: 2 left", 0.0, False, True)  # the eighth test is the last one
    env.reset(options={"task": (4, 2)})
    env.step("2")
    observation, reward, terminated, _, info = env.step("1")
    assert (observation, reward, terminated, info["is_success"]) == ("", 1.0, True, True)


def test_a_test_is_judged_by_how_evenly_it_divides() -> None:
    env = BisectEnv(reward_weights={"found": 0, "halving": 1})
    env.reset(options={"task": (20, 20)})
    rewards = [env.step(action)[1] for action in ("10", "10", "99", "2")]
    assert rewards == [1.0, 0.0, 0.0, 2 / 5]
    env.reset(options={"task": (9, 1)})
    assert env.step("5")[1] == 1.0 and env.step("2")[1] == 1.0


def test_inline_every_text_of_an_episode_is_a_line() -> None:
    env = BisectEnv(rendering="inline")
    _, info = env.reset(options={"task": (20, 8)})
    assert env.inline and info["stop"] == ["\n"]
    lines = [env.step(action)[0] for action in ("12\n", "0\n", "4\n")]
    assert lines == ["bad: 12 left\n", "Write a number from 1 to 12.\n", "good: 8 left\n"]
    assert env.expert_action() == "4\n"
    assert all(found(env, index, "default") for index in range(len(env.tasks["test"])))


def test_no_number_of_commits_is_in_two_splits() -> None:
    env = gymnasium.make("AgentR1/Bisect-v0").unwrapped
    counts = {split: {n for n, _ in tasks} for split, tasks in env.tasks.items()}
    assert sorted(itertools.chain.from_iterable(counts.values())) == list(range(17, 33))
    assert {split: len(set(env.tasks[split])) for split in counts} == {"train": 224, "validation": 72, "test": 96}


def test_what_it_does_not_take_is_named() -> None:
    env = BisectEnv()
    with pytest.raises(ConfigError, match="no style 'fast'; known: default, newest, anywhere"):
        env.expert_action("fast")
    for task in ((20, 21), (20, 0), (1, 1), "8", (15, True)):
        with pytest.raises(ConfigError, match="a task"):
            env.reset(options={"task": task})
    with pytest.raises(ConfigError, match="size is 8"):
        BisectEnv(size=8)
    with pytest.raises(ConfigError, match="rendering is 'line'; allowed: chat, inline"):
        BisectEnv(rendering="line")


def test_few_tasks_of_each_number_of_commits_are_64_prompts_and_leave_the_default_alone() -> None:
    usual, few = BisectEnv().tasks, BisectEnv(size=512, bad_commits=3).tasks
    assert usual["test"] == [(n, bad) for n in (18, 22, 26, 30) for bad in range(1, n + 1)]
    assert len(usual["train"]) == 20 * len(set(usual["train"]))
    counts = {split: {n for n, _ in tasks} for split, tasks in few.items()}
    assert len(counts["test"]) == 64 and len(few["test"]) == 192 == len(set(few["test"]))
    assert not counts["train"] & counts["test"] and not counts["train"] & counts["validation"]
    assert all(1 <= bad <= n for tasks in few.values() for n, bad in tasks[:500])
    # The first tasks of training are of many numbers of commits, and each is there once.
    assert len({n for n, _ in few["train"][:500]}) > 100 and len(few["train"]) == len(set(few["train"]))
    assert BisectEnv(size=512, bad_commits=3).tasks["test"] == few["test"]
    with pytest.raises(ConfigError, match="bad_commits is 0"):
        BisectEnv(bad_commits=0)


def test_to_test_any_commit_finds_a_third_of_512() -> None:
    env = BisectEnv(size=512, bad_commits=3)
    lucky = [found(env, i, "anywhere", seed) for seed, i in itertools.product(range(2), range(192))]
    assert sum(lucky) / len(lucky) == pytest.approx(0.316, abs=0.075)  # three standard errors
