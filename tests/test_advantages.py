"""Group advantages against the formulas of their papers, and with episodes that could not be scored."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.advantages import SCALES, group_advantages, nan_std  # noqa: E402

NAN = float("nan")
RETURNS = st.lists(st.floats(-100, 100, width=32), min_size=12, max_size=12)


def test_group_scale_is_grpo() -> None:
    returns = torch.tensor([1.0, 0.0, 0.0, 1.0, 3.0, 3.0, 3.0, 7.0])
    expected = []
    for group in (returns[:4], returns[4:]):
        expected += ((group - group.mean()) / (group.std() + 1e-4)).tolist()
    assert group_advantages(returns, 4).tolist() == pytest.approx(expected, rel=1e-6)


def test_batch_scale_divides_all_groups_alike() -> None:
    returns = torch.tensor([1.0, 0.0, 10.0, 0.0])
    centred = torch.tensor([0.5, -0.5, 5.0, -5.0])
    got = group_advantages(returns, 2, "batch")
    assert torch.allclose(got, centred / (returns.std() + 1e-4))


def test_no_scale_only_centres() -> None:
    assert group_advantages(torch.tensor([1.0, 0.0, 4.0, 8.0]), 2, "none").tolist() == [0.5, -0.5, -2.0, 2.0]


@pytest.mark.parametrize("scale", SCALES)
def test_trl_computes_the_same_numbers(scale: str) -> None:
    # As in trl/trainer/grpo_trainer.py, `_generate_and_score_completions`.
    returns = torch.randn(24, generator=torch.Generator().manual_seed(0))
    grouped = returns.view(-1, 6)
    theirs = returns - grouped.mean(dim=1).repeat_interleave(6)
    if scale == "group":
        theirs = theirs / (grouped.std(dim=1).repeat_interleave(6) + 1e-4)
    elif scale == "batch":
        theirs = theirs / (returns.std() + 1e-4)
    assert torch.allclose(group_advantages(returns, 6, scale), theirs, atol=1e-6)


@given(RETURNS)
def test_each_group_sums_to_zero_and_keeps_its_order(values: list[float]) -> None:
    returns = torch.tensor(values)
    for scale in SCALES:
        advantages = group_advantages(returns, 4, scale).view(-1, 4)
        assert advantages.isfinite().all()
        assert torch.allclose(advantages.sum(1), torch.zeros(3), atol=1e-3)
        for group, reward in zip(advantages, returns.view(-1, 4), strict=True):
            assert (group[reward.argmax()] >= group - 1e-6).all()


@given(RETURNS, st.lists(st.booleans(), min_size=12, max_size=12))
def test_a_failed_member_changes_nobody_in_another_group(values: list[float], failed: list[bool]) -> None:
    whole = torch.tensor(values)
    failed[4:] = [False] * 8
    broken = torch.where(torch.tensor(failed), torch.full_like(whole, NAN), whole)
    for scale in ("group", "none"):
        assert torch.equal(group_advantages(whole, 4, scale)[4:], group_advantages(broken, 4, scale)[4:])


def test_a_failed_member_gets_nothing_and_the_others_are_compared_without_it() -> None:
    got = group_advantages(torch.tensor([1.0, NAN, 0.0, 0.5]), 4)
    alone = group_advantages(torch.tensor([1.0, 0.0, 0.5]), 3)
    assert got[1] == 0.0
    assert torch.allclose(got[[0, 2, 3]], alone)


@pytest.mark.parametrize("scale", SCALES)
def test_groups_with_nothing_to_compare_get_zero(scale: str) -> None:
    nobody, alone, agreed = [NAN] * 3, [NAN, 2.0, NAN], [0.7, 0.7, 0.7]
    got = group_advantages(torch.tensor([*nobody, *alone, *agreed]), 3, scale)
    # The mean of three times 0.7 is not 0.7 in float32, and 1e-4 in the divisor does not blow that up.
    assert torch.allclose(got, torch.zeros(9), atol=1e-3)
    assert got[:6].tolist() == [0.0] * 6


def test_an_unknown_scale_is_named_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="'groups'; allowed: group, batch, none"):
        group_advantages(torch.zeros(4), 2, "groups")


def test_nan_std_skips_nan() -> None:
    values = torch.tensor([[1.0, NAN, 3.0], [NAN, NAN, 5.0], [NAN, NAN, NAN], [1.0, 2.0, 6.0]])
    got = nan_std(values, dim=1)
    assert got.shape == (4, 1)
    assert got[:, 0].tolist() == pytest.approx([math.sqrt(2.0), 0.0, 0.0, torch.tensor([1.0, 2.0, 6.0]).std().item()])
