"""Process rewards on one scale: who is asked for it, what never changes, and that stalling does not pay."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.estimators import PROCESS_NORMS, normalize_process  # noqa: E402
from agent_gym.trainers.estimators.groups import returns_to_go  # noqa: E402

REWARDS = st.lists(st.just(0.0) | st.floats(-1e6, 1e6, width=32), max_size=4)
PAID = st.lists(st.just(0.0) | st.floats(0, 1e6, width=32), max_size=4)
GAMMAS = st.sampled_from([0.0, 0.5, 0.95, 1.0])
COMPANY = st.lists(st.tuples(REWARDS, st.integers(0, 2), st.booleans()), max_size=4)
Row = tuple[list[float], int, bool]


def normalised(
    rows: list[Row], norm: str, gamma: float = 1.0, extra: int = 0, sources: torch.Tensor | None = None
) -> list[list[float]]:
    """Rows of (process rewards, group, truncated), through tensors and back."""
    width = max([len(rewards) for rewards, _, _ in rows], default=0) + extra
    process = torch.tensor([r + [0.0] * (width - len(r)) for r, _, _ in rows], dtype=torch.float64)
    process = process.view(len(rows), width)
    mask = torch.arange(width) < torch.tensor([len(r) for r, _, _ in rows], dtype=torch.long)[:, None]
    groups = torch.tensor([group for _, group, _ in rows], dtype=torch.long)
    truncated = torch.tensor([stopped for _, _, stopped in rows], dtype=torch.bool)
    # What stands in padding does not count, whatever it is.
    got = normalize_process(torch.where(mask, process, 7.0), mask, groups, truncated, norm, gamma, sources)
    assert got.shape == (len(rows), width) and not got[~mask].any()
    return [row[: len(r)].tolist() for row, (r, _, _) in zip(got, rows, strict=True)]


def to_go(rewards: list[float], gamma: float) -> list[float]:
    return [sum(gamma ** (j - k) * rewards[j] for j in range(k, len(rewards))) for k in range(len(rewards))]


def oracle(rows: list[Row], norm: str, gamma: float) -> list[list[float]]:
    kept = [[min(x, 0.0) if stopped else x for x in rewards] for rewards, _, stopped in rows]
    result = []
    for me, (_, group, _) in zip(kept, rows, strict=True):
        scope = {
            "trajectory": [me],
            "group": [other for other, (_, theirs, _) in zip(kept, rows, strict=True) if theirs == group],
            "batch": kept,
        }.get(norm, [])
        paid = [x for row in scope for x in row if x]
        size = math.sqrt(sum(x * x for x in paid) / len(paid)) if paid else 0.0
        if norm == "prime":
            size = max([abs(x) for x in to_go(me, gamma)], default=0.0)
        result.append(me if norm == "none" else [x / (size + 1e-8) for x in me])
    return result


@settings(max_examples=500)
@given(COMPANY, GAMMAS)
def test_each_norm_is_its_oracle(rows: list[Row], gamma: float) -> None:
    for norm in PROCESS_NORMS:
        got, expected = normalised(rows, norm, gamma), oracle(rows, norm, gamma)
        assert [len(row) for row in got] == [len(row) for row in expected]
        assert sum(got, []) == pytest.approx(sum(expected, []), rel=1e-9, abs=1e-12)


@settings(max_examples=500)
@given(PAID, PAID, COMPANY, GAMMAS)
def test_going_on_until_we_stop_it_never_beats_answering_now(
    so_far: list[float], more: list[float], company: list[Row], gamma: float
) -> None:
    for norm in PROCESS_NORMS:
        now = normalised([(so_far, 0, False), *company], norm, gamma)[0]
        later = normalised([(so_far + more, 0, True), *company], norm, gamma)[0]
        for answered, stalled in zip(to_go(now, gamma), to_go(later, gamma), strict=False):
            assert stalled <= answered


@given(st.lists(st.floats(2**-10, 1e6, width=32), min_size=1, max_size=3), st.integers(0, 3), COMPANY)
def test_steps_that_earn_nothing_pay_nothing(paid: list[float], idle: int, company: list[Row]) -> None:
    for norm in PROCESS_NORMS:
        short = normalised([(paid, 0, False), *company], norm)
        long = normalised([(paid + [0.0] * idle, 0, False), *company], norm)
        assert long[0][: len(paid)] == pytest.approx(short[0], rel=1e-12)
        assert long[0][len(paid) :] == [0.0] * idle


@given(COMPANY, GAMMAS)
def test_signs_stay_and_zero_stays_zero(rows: list[Row], gamma: float) -> None:
    for norm in PROCESS_NORMS:
        for (before, _, stopped), after in zip(rows, normalised(rows, norm, gamma), strict=True):
            for x, y in zip(before, after, strict=True):
                expected = 0.0 if stopped and x > 0 else x
                assert math.isfinite(y) and (y > 0) == (expected > 0) and (y < 0) == (expected < 0)


@given(REWARDS, st.booleans(), COMPANY, GAMMAS)
def test_a_trajectory_can_be_scaled_without_looking_at_others(
    mine: list[float], stopped: bool, company: list[Row], gamma: float
) -> None:
    for norm in ("none", "trajectory", "prime"):
        alone = normalised([(mine, 0, stopped)], norm, gamma)[0]
        assert normalised([*company, (mine, 0, stopped)], norm, gamma)[-1] == pytest.approx(alone, rel=1e-12)


@given(REWARDS, COMPANY, GAMMAS, st.sampled_from(PROCESS_NORMS))
def test_the_rewards_of_another_environment_are_no_measure(
    mine: list[float], others: list[Row], gamma: float, norm: str
) -> None:
    rows = [(mine, 0, False), *((rewards, group + 1, stopped) for rewards, group, stopped in others)]
    sources = torch.tensor([4, *[9] * len(others)])
    assert normalised(rows, norm, gamma, sources=sources)[0] == normalised(rows[:1], norm, gamma)[0]


def test_group_and_batch_do_look_at_others() -> None:
    mine, sibling, stranger = ([1.0, 1.0], 0, False), ([7.0, 7.0], 0, False), ([7.0, 7.0], 1, False)
    for norm in ("group", "batch"):
        assert normalised([mine], norm)[0] == pytest.approx([1.0, 1.0])
        assert normalised([mine, sibling], norm)[0] == pytest.approx([0.2, 0.2])
    assert normalised([mine, stranger], "group")[0] == pytest.approx([1.0, 1.0])
    assert normalised([mine, stranger], "batch")[0] == pytest.approx([0.2, 0.2])


@given(COMPANY, GAMMAS)
def test_prime_bounds_every_return_to_go(rows: list[Row], gamma: float) -> None:
    for row in normalised(rows, "prime", gamma):
        assert all(abs(x) <= 1.0 + 1e-12 for x in to_go(row, gamma))


@given(COMPANY, GAMMAS, st.integers(0, 3))
def test_padding_does_not_matter(rows: list[Row], gamma: float, extra: int) -> None:
    for norm in PROCESS_NORMS:
        plain, padded = normalised(rows, norm, gamma), normalised(rows, norm, gamma, extra)
        assert sum(padded, []) == pytest.approx(sum(plain, []), rel=1e-12)


def test_a_stopped_episode_keeps_only_what_it_lost() -> None:
    assert normalised([([1.0, -0.5, 2.0], 0, True)], "none") == [[0.0, -0.5, 0.0]]


def test_by_hand() -> None:
    row = ([0.0, 3.0, -4.0, 0.0], 0, False)
    unit = math.sqrt(12.5)
    assert normalised([row], "trajectory")[0] == pytest.approx([0.0, 3 / unit, -4 / unit, 0.0])
    # Returns-to-go with a discount of 0.5: 0.5, 1, -4, 0.
    assert normalised([row], "prime", 0.5)[0] == pytest.approx([0.0, 0.75, -1.0, 0.0])
    assert returns_to_go(torch.tensor([row[0]]), 0.5).tolist() == [[0.5, 1.0, -4.0, 0.0]]


def test_an_unknown_norm_is_named_with_what_is_allowed() -> None:
    empty = torch.zeros(0, 0)
    with pytest.raises(ConfigError, match="'Prime'; allowed: none, trajectory, group, batch, prime"):
        normalize_process(empty, empty.bool(), torch.zeros(0).long(), torch.zeros(0).bool(), "Prime", 1.0)
