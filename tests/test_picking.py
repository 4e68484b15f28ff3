"""Which task an episode is about."""

from __future__ import annotations

from collections import Counter

import numpy as np

from agent_gym.picking import pick_task


def test_all_tasks_of_a_split_are_as_likely_as_each_other() -> None:
    rng = np.random.default_rng(0)
    drawn = Counter(pick_task({"train": "abcde", "test": "x"}, "train", None, rng) for _ in range(5_000))
    assert drawn.keys() == {(task, f"train/{index}") for index, task in enumerate("abcde")}
    assert all(900 < count < 1_100 for count in drawn.values())  # 1,000 with a standard deviation of 28


def test_one_seed_one_task() -> None:
    numbers = {"train": range(1_000_000)}
    first, second = (pick_task(numbers, "train", {"split": None}, np.random.default_rng(3)) for _ in range(2))
    assert first == second != pick_task(numbers, "train", None, np.random.default_rng(4))
