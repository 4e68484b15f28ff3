"""Sums: the last number counts, and no test task is a training task, turned round or otherwise."""

from __future__ import annotations

import re
from itertools import product

import pytest

import agent_gym
from agent_gym.envs.sums import expressions, stated
from agent_gym.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("83", 83), ("46 + 37 = 83.", 83), ("7 - 9", 9), ("7-9", 9), ("= -9", -9), ("The answer is \u221212", -12),
        ("- 5", -5), ("<think>3</think> 4", 4), ("no number", None), ("", None), ("9" * 30, None), ("-0", 0),
        ("a list:\n-\n5", -5), ("-\t5", -5), ("\u0663", None), ("5\u00b2", 5),
    ],
)  # fmt: skip
def test_the_last_number_of_a_turn_is_its_answer(text: str, number: int | None) -> None:
    assert stated(text) == number


@pytest.mark.parametrize("largest", [30, 99, 5000])
def test_pairs_of_numbers_belong_to_one_split(largest: int) -> None:
    rows = expressions(largest)
    pairs = {split: {frozenset(re.findall(r"\d+", row["question"])) for row in some} for split, some in rows.items()}
    assert not any(pairs[a] & pairs[b] for a, b in product(pairs, pairs) if a != b)
    assert len(pairs["test"]) == len(rows["test"]) == len(rows["validation"]) == 200
    for row in (row for some in rows.values() for row in some[:300]):
        a, sign, b = row["question"].split()
        assert row["answer"] == (int(a) + int(b) if sign == "+" else int(a) - int(b)) and max(int(a), int(b)) <= largest
    assert rows == expressions.__wrapped__(largest), "the same in each process"


def test_an_episode_is_one_turn() -> None:
    env = agent_gym.make("AgentR1/Sums-v0")
    env.reset(seed=0, options={"split": "test", "index": 3})
    gold = env.unwrapped.expert_action()
    _, reward, terminated, truncated, info = env.step(f"It is {gold}")
    assert (reward, terminated, truncated, info["is_success"]) == (1.0, True, False, True)
    env.reset(seed=0, options={"split": "test", "index": 3})
    assert env.step(f"{gold} or 7000")[1] == 0.0
    with pytest.raises(ConfigError, match="largest is 5; "):
        agent_gym.make("AgentR1/Sums-v0", largest=5)
