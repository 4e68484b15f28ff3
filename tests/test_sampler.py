"""The order of tasks: groups, repeats, epochs, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.sampler import GroupSampler  # noqa: E402


def make(size: int = 10, **changes: Any) -> GroupSampler:
    return GroupSampler(size, **({"group_size": 3, "batch_tasks": 2, "repeats": 2, "seed": 0} | changes))


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(0, 9))
def test_whole_batches_of_whole_groups(size: int, group: int, tasks: int, repeats: int, epoch: int) -> None:
    if size < tasks:
        return
    sampler = make(size, group_size=group, batch_tasks=tasks, repeats=repeats)
    sampler.set_epoch(epoch)
    indices = list(sampler)
    assert len(indices) == len(sampler) == size // tasks * tasks * group * repeats
    n = tasks * group
    batches = [indices[i : i + n] for i in range(0, len(indices), n)]
    drawn = []
    for i in range(0, len(batches), repeats):
        assert all(batch == batches[i] for batch in batches[i : i + repeats])
        heads = batches[i][::group]
        assert batches[i] == [head for head in heads for _ in range(group)]
        drawn += heads
    assert len(set(drawn)) == len(drawn)  # no task twice in an epoch
    assert set(drawn) <= set(range(size))


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    straight = make()
    epochs = []
    for epoch in range(3):
        straight.set_epoch(epoch)
        epochs.append(list(straight))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    resumed = make()
    resumed.set_epoch(2)
    assert list(resumed) == epochs[2]
    assert list(make(seed=1)) != epochs[0]


def test_iterating_again_changes_nothing() -> None:
    sampler = make()
    assert list(sampler) == list(sampler)


def test_without_shuffling_tasks_come_in_order() -> None:
    sampler = make(5, shuffle=False, repeats=1, group_size=1)
    sampler.set_epoch(3)
    assert list(sampler) == [0, 1, 2, 3]


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    list(make())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_too_few_tasks_say_how_many_and_what_to_do() -> None:
    with pytest.raises(ConfigError, match="has 1 tasks, but one generation batch takes 2: add tasks, lower"):
        make(1)
