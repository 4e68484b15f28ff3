"""Estimators that compare episodes of the same task, against their formulas and their oracles."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from estimator_tools import (  # noqa: E402
    CREDITS,
    Played,
    Step,
    batches,
    mean_and_std,
    numbers,
    pack,
    process_to_go,
    same,
    step_of_tokens,
    total,
    whitened,
    without_process,
)
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.estimators import SCALES, Credit, get_estimator  # noqa: E402
from agent_gym.trainers.estimators.groups import (  # noqa: E402
    dr_grpo,
    grpo,
    reinforce_pp_baseline,  # noqa: E402
    remax,
    rloo,
)

RETURNS = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=12)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def oracle(name: str, episodes: list[Played], credit: Credit) -> list[float]:
    """One number per episode, each looked at by itself."""
    result = []
    for me in episodes:
        returns = [total(other) for other in episodes if other.group == me.group]
        mean, std = mean_and_std(returns)
        if name == "remax":
            advantage = total(me) - me.baseline
        elif name == "rloo":
            others = [total(other) for other in episodes if other.group == me.group and other is not me]
            advantage = total(me) - sum(others) / len(others) if others else 0.0
        else:
            advantage = total(me) - mean
            if name == "grpo" and credit.scale == "group":
                advantage /= std + 1e-4
            if name == "grpo" and credit.scale == "batch":
                advantage /= mean_and_std([total(other) for other in episodes])[1] + 1e-4
        result.append(advantage)
    return whitened(result) if name == "reinforce_pp_baseline" and credit.whiten else result


NAMES = ("grpo", "dr_grpo", "rloo", "remax", "reinforce_pp_baseline")


@settings(max_examples=500)
@given(batches(), CREDITS)
def test_the_estimators_are_their_oracles(episodes: list[Played], credit: Credit) -> None:
    for name in NAMES:
        estimate = get_estimator(name).estimate(pack(episodes), credit)
        expected = []
        for episode, advantage in zip(episodes, oracle(name, episodes, credit), strict=True):
            later = process_to_go(episode, credit.step_gamma)
            expected.append([advantage + later[k] for k in step_of_tokens(episode)])
        # Returns that differ by rounding alone are blown up by the whitening to something still small.
        same(numbers(episodes, estimate.advantages), expected, 1e-6)
        assert estimate.returns is None and estimate.value_mask is None


def test_grpo_by_hand_with_groups_of_different_sizes_in_any_order() -> None:
    returns, groups = tensor(1.0, 3.0, 0.0, 0.0, 9.0), torch.tensor([4, 2, 4, 2, 7])
    assert grpo(returns, groups, "none").tolist() == [0.5, 1.5, -0.5, -1.5, 0.0]
    by_group = [0.5 / (0.5**0.5 + 1e-4), 1.5 / (4.5**0.5 + 1e-4)]
    assert grpo(returns, groups).tolist() == pytest.approx([*by_group, -by_group[0], -by_group[1], 0.0])
    by_batch = grpo(returns, groups, "batch")
    assert torch.allclose(by_batch, tensor(0.5, 1.5, -0.5, -1.5, 0.0) / (returns.std() + 1e-4))


def test_rloo_by_hand() -> None:
    got = rloo(tensor(6.0, 0.0, 3.0, 8.0), torch.tensor([1, 1, 1, 0]))
    assert got.tolist() == pytest.approx([4.5, -4.5, 0.0, 0.0])


def test_remax_subtracts_the_greedy_return() -> None:
    assert remax(tensor(1.0, 0.0), tensor(0.25, 0.5)).tolist() == [0.75, -0.5]


def test_reinforce_pp_baseline_by_hand() -> None:
    returns, groups = tensor(1.0, 0.0, 5.0, 3.0), torch.tensor([0, 0, 1, 1])
    centred = tensor(0.5, -0.5, 1.0, -1.0)
    assert reinforce_pp_baseline(returns, groups, whitened=False).tolist() == centred.tolist()
    assert torch.allclose(reinforce_pp_baseline(returns, groups), centred / centred.std(), atol=1e-7)


@pytest.mark.parametrize("scale", SCALES)
def test_trl_computes_the_same_numbers(scale: str) -> None:
    # As in trl/trainer/grpo_trainer.py, `_generate_and_score_completions`.
    returns = torch.randn(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grouped = returns.view(-1, 6)
    theirs = returns - grouped.mean(dim=1).repeat_interleave(6)
    if scale == "group":
        theirs = theirs / (grouped.std(dim=1).repeat_interleave(6) + 1e-4)
    elif scale == "batch":
        theirs = theirs / (returns.std() + 1e-4)
    assert torch.allclose(grpo(returns, torch.arange(4).repeat_interleave(6), scale), theirs, atol=1e-12)


@given(RETURNS, st.data())
def test_each_group_sums_to_zero_and_keeps_its_order(values: list[float], data: st.DataObject) -> None:
    returns = tensor(*values)
    groups = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values))))
    for advantages in (*(grpo(returns, groups, scale) for scale in SCALES), rloo(returns, groups)):
        assert advantages.isfinite().all()
        for group in groups.unique():
            mine = groups == group
            assert advantages[mine].sum().item() == pytest.approx(0.0, abs=1e-6)
            assert (advantages[mine][returns[mine].argmax()] >= advantages[mine] - 1e-9).all()


@pytest.mark.parametrize("value", [0.1, 0.7, -1 / 3, 1e6 + 0.1])
def test_groups_with_nothing_to_compare_get_exactly_zero(value: float) -> None:
    # Three times 0.7 sum up to something else than 2.1; that rounding must not be divided by a spread of zero.
    groups = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2])
    returns = torch.full((11,), value, dtype=torch.float64)
    for advantages in (
        *(grpo(returns, groups, scale) for scale in SCALES),
        dr_grpo(returns, groups),
        rloo(returns, groups),
        reinforce_pp_baseline(returns, groups),
    ):
        assert advantages.tolist() == [0.0] * 11


def test_an_unknown_scale_is_named_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="'groups'; allowed: group, batch, none"):
        grpo(torch.zeros(4), torch.zeros(4).long(), "groups")


@pytest.mark.parametrize("name", NAMES)
def test_a_process_reward_credits_its_step_and_those_before(name: str) -> None:
    def advantages(process: float) -> list[list[float]]:
        long = Step(penalties=(0.0, 0.0), values=(0.0, 0.0))
        paid = Played((long, Step(process=process), Step(outcome=1.0)))
        batch = pack([paid, Played((Step(),))])
        return get_estimator(name).estimate(batch, Credit(step_gamma=0.5)).advantages.tolist()

    (paid, other), (unpaid, same_other) = advantages(0.8), advantages(0.0)
    assert [a - b for a, b in zip(paid, unpaid, strict=True)] == pytest.approx([0.4, 0.4, 0.8, 0.0])
    assert other == same_other


@given(batches(), CREDITS)
def test_without_process_rewards_all_tokens_of_an_episode_are_alike(episodes: list[Played], credit: Credit) -> None:
    episodes = without_process(episodes)
    for name in NAMES:
        for row in numbers(episodes, get_estimator(name).estimate(pack(episodes), credit).advantages):
            assert len(set(row)) <= 1
