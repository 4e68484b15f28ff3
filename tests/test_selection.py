"""Which tasks come, and which groups are trained on: the sampler, StarPO-S, DAPO's refills, the turn budget."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest

pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.selection import (  # noqa: E402
    TurnCurriculum,
    fresh_tasks,
    informative_groups,
    keep_groups,
    tasks_to_draw,
)
from agent_gym.trainers.tasks import GroupSampler, Mixture  # noqa: E402

# Coarse returns, so that groups that agree and groups that tie are common; failed episodes have none.
rollouts = st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), max_size=3), min_size=1, max_size=6)


def keep(returns: dict[int, list[float]], fraction: float) -> list[int]:
    return keep_groups(returns, fraction, dict.fromkeys(returns, 3))


def test_groups_to_keep_by_hand() -> None:
    # Numbers with a gap, and spreads of 0.5, 0, 1, and 0 for want of a second scored episode.
    returns = {0: [0.0, 0.5, 1.0], 1: [0.1, 0.1, 0.1], 5: [0.0, 1.0, 2.0], 6: [7.0]}
    assert keep(returns, 0.01) == keep(returns, 0.25) == [5]
    assert keep(returns, 0.75) == [0, 1, 5], "the tie of the two without a spread goes to the lower number"
    # Rounding alone loses no group.
    assert int(0.29 * 100) == 28
    assert keep({i: [0.0, float(i)] for i in range(100)}, 0.29) == list(range(71, 100))


@given(rollouts, st.floats(0.01, 1.0), st.randoms(use_true_random=False))
def test_a_fraction_keeps_the_widest_in_any_order(rollout: list[list[float]], fraction: float, random: Any) -> None:
    kept = keep(dict(enumerate(rollout)), fraction)
    spreads = [statistics.stdev(group) if len(group) > 1 else 0.0 for group in rollout]
    assert len(kept) == max(1, math.floor(fraction * len(rollout) + 1e-9))
    left = set(range(len(rollout))) - set(kept)
    assert all(spreads[a] >= spreads[b] - 1e-12 for a, b in itertools.product(kept, left))
    mixed = {i: random.sample(rollout[i], len(rollout[i])) for i in random.sample(range(len(rollout)), len(rollout))}
    assert keep(mixed, fraction) == kept


def test_each_environment_keeps_its_groups_of_largest_spread() -> None:
    # Four groups with rewards up to 1, four with rewards up to 100; in each, two groups agree.
    pairs = [[0.0, 1.0], [0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    returns = dict(enumerate([*pairs, *([100 * one for one in pair] for pair in pairs)]))
    assert keep_groups(returns, 0.5, {i: 5 if i < 4 else 2 for i in range(8)}) == [0, 2, 4, 6]
    assert keep(returns, 0.25) == [4, 6]  # as one environment, the one of larger rewards takes all places


@given(rollouts)
def test_a_group_informs_if_its_scored_members_differ(rollout: list[list[float]]) -> None:
    expected = [i for i, group in enumerate(rollout) if len(set(group)) > 1]
    assert informative_groups(dict(enumerate(rollout))) == expected
    assert informative_groups({1: [0.0, 1.0], 0: [0.1 + 0.2, 0.3]}) == [1]  # not if they differ by rounding


def test_a_round_draws_what_should_fill_the_batch() -> None:
    assert tasks_to_draw(4, informative=0, drawn=4) == 4  # nothing is known about the rate
    assert tasks_to_draw(4, informative=1, drawn=4) == 4  # one in four informs, so twelve, but a batch is the most
    assert tasks_to_draw(4, informative=3, drawn=4) == 2  # one is missing, three in four inform
    assert tasks_to_draw(4, informative=6, drawn=8) == 0


@given(st.integers(0, 30), st.sets(st.integers(0, 30)), st.integers(0, 12), st.integers(0, 5))
def test_fresh_tasks_are_new_distinct_and_the_same_everywhere(
    size: int, taken: set[int], count: int, seed: int
) -> None:
    drawn = fresh_tasks(range(100, 100 + size), {100 + i for i in taken}, count, seed)
    left = {100 + i for i in set(range(size)) - taken}
    assert len(drawn) == len(set(drawn)) == min(count, len(left)) and set(drawn) <= left
    assert drawn == fresh_tasks(range(100, 100 + size), sorted(100 + i for i in taken), count, seed)
    assert fresh_tasks(range(99), [], 20, seed) != fresh_tasks(range(99), [], 20, seed + 1)


# The turn budget.


def test_the_turn_budget_is_that_of_the_last_stage_that_began() -> None:
    curriculum = TurnCurriculum.parse("0:2, 100:4, 200:8")
    assert [curriculum.turns(step) for step in (0, 99, 100, 200, 10**6)] == [2, 2, 4, 8, 8]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "step:turns pairs"),
        ("0:2:3", "step:turns pairs"),
        ("0:2.5", "step:turns pairs"),
        ("10:2", "first step must be 0 and not 10"),
        ("0:0", "at least 1 turn, not 0"),
        ("0:2,0:4", "steps must grow, but 0 follows 0"),
        ("0:4,100:2", "turns must grow, but 2 follows 4"),
    ],
)
def test_a_bad_curriculum_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        TurnCurriculum.parse(text)
    assert repr(text) in str(caught.value)


# The order of tasks.

MIXTURE = Mixture((tuple(range(8)), tuple(range(8, 13))), (0.6, 0.4))


def make(size: int = 10, epoch: int = 0, **changes: Any) -> GroupSampler:
    sampler = GroupSampler(size, **({"group_size": 3, "batch_tasks": 2, "repeats": 2, "seed": 0} | changes))
    sampler.set_epoch(epoch)
    return sampler


def make_mixed(epoch: int = 0, **changes: Any) -> GroupSampler:
    return make(13, epoch, **({"mixture": MIXTURE, "batch_tasks": 5, "group_size": 2} | changes))


def heads(sampler: GroupSampler) -> list[list[int]]:
    """The tasks of each batch, which comes `repeats` times with whole groups."""
    indices = list(sampler)
    assert len(indices) == len(sampler)
    n = sampler.batch_tasks * sampler.group_size
    batches = [indices[i : i + n] for i in range(0, len(indices), n)]
    assert all(batch == batches[i - i % sampler.repeats] for i, batch in enumerate(batches))
    found = [batch[:: sampler.group_size] for batch in batches[:: sampler.repeats]]
    assert batches[:: sampler.repeats] == [[t for t in tasks for _ in range(sampler.group_size)] for tasks in found]
    return found


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(0, 9))
def test_whole_batches_of_whole_groups(size: int, group: int, tasks: int, repeats: int, epoch: int) -> None:
    tasks = min(size, tasks)
    found = heads(make(size, epoch, group_size=group, batch_tasks=tasks, repeats=repeats))
    drawn = [task for batch in found for task in batch]
    assert len(found) == size // tasks and len(set(drawn)) == len(drawn)  # no task twice in an epoch
    assert set(drawn) <= set(range(size))


@given(st.integers(0, 6), st.integers(0, 3), st.booleans())
def test_a_mixture_gives_whole_batches_in_proportion(epoch: int, seed: int, shuffle: bool) -> None:
    found = heads(make_mixed(epoch, seed=seed, shuffle=shuffle))
    assert len(found) == 2
    assert all(len(set(batch)) == 5 and sum(task < 8 for task in batch) == 3 for batch in found)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    straight = make()
    epochs = []
    for epoch in range(3):
        straight.set_epoch(epoch)
        epochs.append(list(straight))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    resumed = make(epoch=2)
    assert list(resumed) == list(resumed) == epochs[2]
    assert list(make(seed=1)) != epochs[0]
    assert list(make(5, 3, shuffle=False, repeats=1, group_size=1)) == [0, 1, 2, 3]
    # Written down from the first version: a checkpoint of an old run goes on with the tasks it would have had.
    assert list(make(10, 3, group_size=1, repeats=1, seed=7)) == [2, 6, 9, 5, 4, 3, 1, 0, 8, 7]


def test_epochs_of_a_mixture_join_without_a_seam_and_without_a_state() -> None:
    run = list(itertools.islice(MIXTURE.batches(5, seed=4), 8))
    for epoch in (3, 1, 2, 0):
        resumed = make_mixed(epoch, seed=4, repeats=1, group_size=1)
        assert list(resumed) == list(resumed) == [task for batch in run[2 * epoch : 2 * epoch + 2] for task in batch]


def test_a_source_too_small_for_its_share_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="source 1 of the mixture has 5 tasks, but its share of 0.4 makes 6 of"):
        make_mixed(batch_tasks=13)


def test_refills_draw_from_what_the_sampler_orders() -> None:
    for sampler in (make(13), make_mixed()):
        drawn = sampler.fresh_tasks({0, 1, 9}, 4, seed=3)
        assert len(set(drawn)) == 4 and set(drawn) <= set(range(13)) - {0, 1, 9}
    alone = make(13, mixture=Mixture((tuple(range(12)), (12,)), (1.0, 0.0)))
    assert 12 not in {task for seed in range(30) for task in alone.fresh_tasks([], 3, seed)}
