"""Which groups are trained on: StarPO-S's filter, DAPO's dynamic sampling, and the tasks of a refill."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.metrics import group_spreads  # noqa: E402
from agent_gym.trainers.selection import Refill, fresh_tasks, informative_groups, keep_groups  # noqa: E402

NAN = math.nan
# Four groups under numbers with a gap: spreads 0.5, 0, 1, and 0 for want of a second scored episode.
RETURNS = [0.0, 0.5, 1.0, 0.1, 0.1, 0.1, 0.0, 1.0, 2.0, 7.0, NAN, NAN]
GROUPS = [0, 0, 0, 1, 1, 1, 5, 5, 5, 6, 6, 6]

# Coarse returns, so that groups that agree and groups that tie are common.
coarse = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, NAN]), min_size=3, max_size=3)
rollouts = st.lists(coarse, min_size=1, max_size=6)


def flat(rollout: list[list[float]]) -> tuple[list[float], list[int]]:
    return [r for group in rollout for r in group], [i for i, group in enumerate(rollout) for _ in group]


def test_spreads_skip_failed_episodes() -> None:
    assert group_spreads(RETURNS, GROUPS) == {0: 0.5, 1: 0.0, 5: 1.0, 6: 0.0}
    assert group_spreads([0.0, NAN, 2.0], [3, 3, 3]) == {3: math.sqrt(2)}


@pytest.mark.parametrize(
    ("fraction", "kept"),
    [
        (0.25, [5]),
        (0.74, [0, 5]),
        (0.75, [0, 1, 5]),  # the tie of the two without a spread goes to the lower number
        (1.0, [0, 1, 5, 6]),
        (0.01, [5]),
    ],
)
def test_by_hand(fraction: float, kept: list[int]) -> None:
    assert keep_groups(RETURNS, GROUPS, fraction) == kept
    tensors = torch.tensor(RETURNS, dtype=torch.float32), torch.tensor(GROUPS)
    assert keep_groups(*tensors, fraction) == kept


def test_rounding_alone_loses_no_group() -> None:
    assert int(0.29 * 100) == 28
    returns, groups = flat([[0.0, float(i)] for i in range(100)])
    assert keep_groups(returns, groups, 0.29) == list(range(71, 100))


@given(rollouts, st.floats(0.01, 1.0))
def test_a_fraction_keeps_the_widest(rollout: list[list[float]], fraction: float) -> None:
    kept = keep_groups(*flat(rollout), fraction)
    scored = [[r for r in group if not math.isnan(r)] for group in rollout]
    spreads = [statistics.stdev(group) if len(group) > 1 else 0.0 for group in scored]
    assert len(kept) == max(1, math.floor(fraction * len(rollout) + 1e-9))
    left = set(range(len(rollout))) - set(kept)
    assert all(spreads[a] >= spreads[b] - 1e-12 for a, b in itertools.product(kept, left))


@given(rollouts)
def test_a_group_informs_if_its_scored_members_differ(rollout: list[list[float]]) -> None:
    informative = informative_groups(*flat(rollout))
    assert informative == [i for i, group in enumerate(rollout) if len({r for r in group if not math.isnan(r)}) > 1]


@given(rollouts, st.permutations(range(6)))
def test_the_order_of_members_and_groups_decides_nothing(rollout: list[list[float]], order: list[int]) -> None:
    returns, groups = flat(rollout)
    pairs = sorted(zip(groups, returns, strict=True), key=lambda pair: (order[pair[0]], str(pair[1])))
    mixed = [r for _, r in pairs], [g for g, _ in pairs]
    assert keep_groups(*mixed, 0.5) == keep_groups(returns, groups, 0.5)


def test_each_environment_keeps_its_groups_of_largest_spread() -> None:
    # Four groups with rewards up to 1, four with rewards up to 100; in each, two groups agree.
    unit = [0, 1, 0, 0, 0, 1, 1, 1]
    returns = [*unit, *(100 * one for one in unit)]
    groups, sources = [i // 2 for i in range(16)], [5] * 8 + [2] * 8
    assert keep_groups(returns, groups, 0.5, sources) == [0, 2, 4, 6]
    # One environment: the groups of largest spread, whatever its number.
    assert keep_groups(returns, groups, 0.5, [3] * 16) == keep_groups(returns, groups, 0.5)


def test_returns_that_differ_by_rounding_are_the_same() -> None:
    assert informative_groups(np.array([0.1 + 0.2, 0.3, 0.0, 1.0]), np.array([0, 0, 1, 1])) == [1]


def test_an_empty_rollout_keeps_nothing() -> None:
    assert keep_groups([], [], 0.5) == informative_groups([], []) == []


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.01, NAN])
def test_an_impossible_share_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match=f"is {fraction}; it must be above 0 and at most 1"):
        keep_groups(RETURNS, GROUPS, fraction)


def test_refill_by_hand() -> None:
    refill = Refill(wanted=4, max_refills=3)
    assert refill.tasks_to_draw == 4
    refill.add([], drawn=4)
    assert refill.tasks_to_draw == 4  # nothing is known about the rate
    refill.add([6, 4], drawn=4)
    assert refill.tasks_to_draw == 4  # one in four informs, so eight, but a batch is the most
    refill.add([8, 9, 11], drawn=4)
    assert refill.tasks_to_draw == 0
    assert refill.kept == [6, 4, 8, 9]


def test_refill_asks_for_what_should_be_enough() -> None:
    refill = Refill(wanted=8, max_refills=1)
    refill.add([0, 1, 2, 4, 5, 7], drawn=8)
    assert refill.tasks_to_draw == 3  # two are missing, three in four inform


def test_refill_stops_with_what_there_is() -> None:
    refill = Refill(wanted=4, max_refills=1)
    refill.add([2], drawn=4)
    refill.add([5], drawn=4)
    assert (refill.tasks_to_draw, refill.kept) == (0, [2, 5])
    never = Refill(wanted=4, max_refills=0)
    never.add([], drawn=4)
    assert (never.tasks_to_draw, never.kept) == (0, [])


@given(st.integers(1, 8), st.integers(0, 4), st.randoms(use_true_random=False), st.floats(0.0, 1.0))
def test_refill_ends_full_or_at_its_limit(wanted: int, limit: int, random, rate: float) -> None:
    refill, found, first = Refill(wanted, limit), [], 0
    while count := refill.tasks_to_draw:
        assert 1 <= count <= wanted
        informative = [group for group in range(first, first + count) if random.random() < rate]
        refill.add(informative, count)
        found += informative
        first += count
    assert refill.kept == found[:wanted]
    assert len(refill.kept) == wanted or refill.rounds == limit + 1


@pytest.mark.parametrize(("wanted", "limit", "words"), [(0, 1, "0 groups are wanted"), (1, -1, "refills is -1")])
def test_an_impossible_refill_is_refused(wanted: int, limit: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Refill(wanted, limit)


@given(st.integers(0, 30), st.sets(st.integers(0, 30)), st.integers(0, 12), st.integers(0, 5))
def test_fresh_tasks_are_new_distinct_and_the_same_everywhere(size: int, taken: set, count: int, seed: int) -> None:
    drawn = fresh_tasks(range(size), taken, count, seed)
    left = set(range(size)) - taken
    assert len(drawn) == len(set(drawn)) == min(count, len(left))
    assert set(drawn) <= left
    assert drawn == fresh_tasks(range(size), sorted(taken), count, seed)


def test_another_round_draws_others_from_the_pool_it_is_given() -> None:
    pool = list(range(100, 200))
    one, other = (fresh_tasks(pool, {150}, 20, seed) for seed in (0, 1))
    assert one != other
    assert set(one) | set(other) <= set(pool)
