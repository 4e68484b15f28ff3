"""The order of tasks: groups, repeats, epochs, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.tasks import GroupSampler, Mixture  # noqa: E402


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
    assert list(resumed) == epochs[2]  # iterating again changes nothing
    assert list(make(seed=1)) != epochs[0]
    ordered = make(5, shuffle=False, repeats=1, group_size=1)
    ordered.set_epoch(3)
    assert list(ordered) == [0, 1, 2, 3]


def test_the_order_of_one_source_is_for_keeps() -> None:
    # Written down from the first version: a checkpoint of an old run goes on with the tasks it would have had.
    sampler = make(10, group_size=1, repeats=1, seed=7)
    sampler.set_epoch(3)
    assert list(sampler) == [2, 6, 9, 5, 4, 3, 1, 0, 8, 7]


def test_too_few_tasks_say_how_many_and_what_to_do() -> None:
    with pytest.raises(ConfigError, match="has 1 tasks, but one generation batch takes 2: add tasks, lower"):
        make(1)


# Several sources.

MIXTURE = Mixture((tuple(range(8)), tuple(range(8, 13))), (0.6, 0.4))


def make_mixed(**changes: Any) -> GroupSampler:
    return make(13, **({"mixture": MIXTURE, "batch_tasks": 5, "group_size": 2} | changes))


@given(st.integers(0, 6), st.integers(0, 3), st.booleans())
def test_a_mixture_gives_whole_batches_in_proportion(epoch: int, seed: int, shuffle: bool) -> None:
    sampler = make_mixed(seed=seed, shuffle=shuffle)
    sampler.set_epoch(epoch)
    indices = list(sampler)
    assert len(indices) == len(sampler) == 2 * 5 * 2 * 2
    for start in range(0, len(indices), 20):
        batch = indices[start : start + 10]
        assert batch == indices[start + 10 : start + 20]  # the repeat
        heads = batch[::2]
        assert batch == [head for head in heads for _ in range(2)]
        assert len(set(heads)) == 5
        assert sum(head < 8 for head in heads) == 3


def test_epochs_of_a_mixture_join_without_a_seam_and_without_a_state() -> None:
    run = list(itertools.islice(MIXTURE.batches(5, seed=4), 8))
    for epoch in (3, 1, 2, 0):
        resumed = make_mixed(seed=4, repeats=1, group_size=1)
        resumed.set_epoch(epoch)
        assert list(resumed) == list(resumed) == [task for batch in run[2 * epoch : 2 * epoch + 2] for task in batch]


def test_a_source_too_small_for_its_share_is_refused_at_once() -> None:
    with pytest.raises(
        ConfigError, match="source 1 of the mixture has 5 tasks, but its share of 0.4 makes 6 of the 13"
    ):
        make_mixed(batch_tasks=13)


def test_refills_draw_from_what_the_sampler_orders() -> None:
    plain, mixed = make(13), make_mixed()
    for sampler in (plain, mixed):
        drawn = sampler.fresh_tasks({0, 1, 9}, 4, seed=3)
        assert len(set(drawn)) == 4 and set(drawn) <= set(range(13)) - {0, 1, 9}
    alone = make(13, mixture=Mixture((tuple(range(12)), (12,)), (1.0, 0.0)))
    assert 12 not in {task for seed in range(30) for task in alone.fresh_tasks([], 3, seed)}
