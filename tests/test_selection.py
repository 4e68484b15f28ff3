"""Which groups are trained on: StarPO-S's filter, DAPO's dynamic sampling, the tasks of a refill, the turn budget."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym.errors import ConfigError
from agent_gym.trainers.selection import TurnCurriculum, fresh_tasks, informative_groups, keep_groups, tasks_to_draw

# Four groups under numbers with a gap: spreads 0.5, 0, 1, and 0 for want of a second scored episode.
RETURNS = {0: [0.0, 0.5, 1.0], 1: [0.1, 0.1, 0.1], 5: [0.0, 1.0, 2.0], 6: [7.0]}

# Coarse returns, so that groups that agree and groups that tie are common; failed episodes have none.
rollouts = st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), max_size=3), min_size=1, max_size=6)


def keep(returns: dict[int, list[float]], fraction: float) -> list[int]:
    return keep_groups(returns, fraction, dict.fromkeys(returns, 3))


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
def test_groups_to_keep_by_hand(fraction: float, kept: list[int]) -> None:
    assert keep(RETURNS, fraction) == kept


def test_rounding_alone_loses_no_group() -> None:
    assert int(0.29 * 100) == 28
    assert keep({i: [0.0, float(i)] for i in range(100)}, 0.29) == list(range(71, 100))


@given(rollouts, st.floats(0.01, 1.0), st.randoms(use_true_random=False))
def test_a_fraction_keeps_the_widest_in_any_order(rollout: list[list[float]], fraction: float, random) -> None:
    kept = keep(dict(enumerate(rollout)), fraction)
    spreads = [statistics.stdev(group) if len(group) > 1 else 0.0 for group in rollout]
    assert len(kept) == max(1, math.floor(fraction * len(rollout) + 1e-9))
    left = set(range(len(rollout))) - set(kept)
    assert all(spreads[a] >= spreads[b] - 1e-12 for a, b in itertools.product(kept, left))
    mixed = {i: random.sample(rollout[i], len(rollout[i])) for i in random.sample(range(len(rollout)), len(rollout))}
    assert keep(mixed, fraction) == kept


@given(rollouts)
def test_a_group_informs_if_its_scored_members_differ(rollout: list[list[float]]) -> None:
    expected = [i for i, group in enumerate(rollout) if len(set(group)) > 1]
    assert informative_groups(dict(enumerate(rollout))) == expected


def test_returns_that_differ_by_rounding_are_the_same() -> None:
    assert informative_groups({1: [0.0, 1.0], 0: [0.1 + 0.2, 0.3]}) == [1]


def test_each_environment_keeps_its_groups_of_largest_spread() -> None:
    # Four groups with rewards up to 1, four with rewards up to 100; in each, two groups agree.
    pairs = [[0.0, 1.0], [0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    returns = dict(enumerate([*pairs, *([100 * one for one in pair] for pair in pairs)]))
    assert keep_groups(returns, 0.5, {i: 5 if i < 4 else 2 for i in range(8)}) == [0, 2, 4, 6]
    assert keep(returns, 0.25) == [4, 6]  # as one environment, the one of larger rewards takes all places


@pytest.mark.parametrize(
    ("informative", "drawn", "count"),
    [
        (0, 4, 4),  # nothing is known about the rate
        (1, 4, 4),  # one in four informs, so twelve, but a batch is the most
        (3, 4, 2),  # one is missing, three in four inform
        (4, 12, 0),
        (6, 8, 0),
    ],
)
def test_a_round_draws_what_should_fill_the_batch(informative: int, drawn: int, count: int) -> None:
    assert tasks_to_draw(4, informative, drawn) == count


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


# The turn budget.


@pytest.mark.parametrize(("step", "turns"), [(0, 2), (99, 2), (100, 4), (199, 4), (200, 8), (10**6, 8)])
def test_the_turn_budget_is_that_of_the_last_stage_that_began(step: int, turns: int) -> None:
    assert TurnCurriculum.parse("0:2, 100:4, 200:8").turns(step) == turns


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "step:turns pairs"),
        ("0:2:3", "step:turns pairs"),
        ("0:2,5", "step:turns pairs"),
        ("0:2.5", "step:turns pairs"),
        ("10:2", "first step must be 0 and not 10"),
        ("0:0", "at least 1 turn, not 0"),
        ("0:2,200:4,100:8", "steps must grow, but 100 follows 200"),
        ("0:2,0:4", "steps must grow, but 0 follows 0"),
        ("0:4,100:2", "turns must grow, but 2 follows 4"),
    ],
)
def test_a_bad_curriculum_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        TurnCurriculum.parse(text)
    assert repr(text) in str(caught.value)
