"""Losses per token, what a token counts, and the correction against the engine: closed forms and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from property_tools import examples  # noqa: E402

from agent_gym.trainers.losses import (  # noqa: E402
    cispo_loss,
    clipped_loss,
    engine_ratio,
    kl_estimate,
    loss_weights,
    mismatch_kl,
    overlong_penalty,
    probability_ratio,
    reinforce_loss,
    value_loss,
)
from agent_gym.trainers.settings import AgentSettings, choices  # noqa: E402

ADVANTAGES = torch.tensor([[1.0, 1.0, 1.0, -1.0, -1.0, -1.0]])
RATIOS = torch.tensor([[0.5, 1.1, 2.0, 0.5, 1.1, 5.0]])
STEPS = torch.tensor([[-1, 0, 0, -1, 1, 1, 1, -1], [-1, 2, -1, 3, 3, -1, -1, -1]])


@pytest.mark.parametrize(("dual", "last"), [(None, 5.0), (3.0, 3.0)])
def test_the_clip_is_pessimistic_and_the_dual_clip_bounds_what_is_left(dual: float | None, last: float) -> None:
    found = clipped_loss(RATIOS, ADVANTAGES, low=0.2, high=0.3, dual=dual)
    # Good actions gain up to 1.3; bad ones gain down to 0.8, and lose without limit unless there is a dual clip.
    assert torch.allclose(found.loss, torch.tensor([[-0.5, -1.1, -1.3, 0.8, 1.1, last]]))
    assert found.high.tolist() == [[False, False, True, False, False, dual is not None]]
    assert found.low.tolist() == [[False, False, False, True, False, False]]


def test_a_clipped_token_has_no_gradient_and_cispo_keeps_one_for_every_token() -> None:
    gradients = []
    for cispo in (False, True):
        logps = torch.log(RATIOS).requires_grad_()
        ratio = probability_ratio(logps, torch.zeros(1, 6), torch.zeros(1, 6, dtype=torch.long))
        clipped = clipped_loss(ratio, ADVANTAGES, 0.2, 0.3, dual=3.0)
        found = cispo_loss(ratio, logps, ADVANTAGES, cap=3.0) if cispo else clipped
        found.loss.sum().backward()
        gradients.append(logps.grad)
    assert torch.allclose(gradients[0], torch.tensor([[-0.5, -1.1, 0.0, 0.0, 1.1, 0.0]]))
    assert torch.allclose(gradients[1], torch.tensor([[-0.5, -1.1, -2.0, 0.5, 1.1, 3.0]]))
    assert found.high.tolist() == [[False] * 5 + [True]]


def test_reinforce_has_the_gradient_of_the_likelihood_wherever_the_policy_has_gone() -> None:
    logps = torch.log(RATIOS).requires_grad_()
    ratio = probability_ratio(logps, torch.zeros(1, 6), torch.zeros(1, 6, dtype=torch.long))
    found = reinforce_loss(ratio, logps, ADVANTAGES)
    found.loss.sum().backward()
    assert torch.equal(logps.grad, -ADVANTAGES) and not found.low.any() and not found.high.any()


def test_the_ratio_of_a_step_is_the_geometric_mean_of_its_tokens() -> None:
    difference = torch.arange(16.0).view(2, 8) / 10
    found = probability_ratio(difference, torch.zeros(2, 8), STEPS, "step")
    for row in range(2):
        for step in set(STEPS[row].tolist()):
            inside = STEPS[row] == step
            expected = difference[row][inside].mean().exp() if step >= 0 else torch.tensor(1.0)
            assert torch.allclose(found[row][inside], expected.expand(int(inside.sum())))
    whole = probability_ratio(difference, torch.zeros(2, 8), STEPS, "sequence")
    assert torch.allclose(whole[0][STEPS[0] >= 0], difference[0][STEPS[0] >= 0].mean().exp().expand(5))
    assert (whole[STEPS < 0] == 1.0).all()


@pytest.mark.parametrize("level", ["token", "step", "sequence"])
def test_an_impossible_old_probability_stays_finite(level: str) -> None:
    logps = torch.full((2, 8), -0.1, requires_grad=True)
    old = torch.full((2, 8), -0.1)
    old[0, 1], old[0, 3] = -1e4, float("nan")  # a forced token of the policy, and an unscored one of the environment
    ratio = probability_ratio(logps, old, STEPS, level)
    assert ratio.isfinite().all() and ratio.max() <= math.exp(20) * 1.01
    clipped_loss(ratio, torch.ones(2, 8), dual=3.0).loss.sum().backward()
    assert logps.grad.isfinite().all()
    assert (logps.grad[STEPS < 0] == 0).all()


def test_both_kl_estimates_have_the_divergence_as_their_mean() -> None:
    policy, ref = torch.tensor([[0.2, 0.5, 0.3]]).log(), torch.tensor([[0.4, 0.4, 0.2]]).log()
    mask = torch.ones(1, 3).bool()
    divergence = (policy.exp() * (policy - ref)).sum()
    for estimate in (kl_estimate(policy, ref), mismatch_kl(ref, policy, mask)):
        assert torch.allclose((policy.exp() * estimate).sum(), divergence)
        assert (estimate >= 0).all()
    assert not kl_estimate(policy, policy).any() and not mismatch_kl(policy, policy, mask).any()
    assert kl_estimate(torch.tensor([[-1e4]]), torch.tensor([[0.0]])).isfinite().all()
    assert not mismatch_kl(ref, torch.full((1, 3), math.nan), mask).any()


def test_the_value_loss_takes_the_worse_of_clipped_and_plain() -> None:
    values = torch.tensor([[1.0, 1.0, 0.1]], requires_grad=True)
    old, returns = torch.zeros(1, 3), torch.tensor([[2.0, 0.0, 0.0]])
    assert torch.allclose(value_loss(values, old, returns), torch.tensor([[0.5, 0.5, 0.005]]))
    clipped = value_loss(values, old, returns, clip=0.2)
    # First: right direction but too far, so the clipped value is the worse one and there is no gradient.
    assert torch.allclose(clipped, torch.tensor([[0.5 * 1.8**2, 0.5, 0.005]]))
    clipped.sum().backward()
    assert torch.allclose(values.grad, torch.tensor([[0.0, 1.0, 0.1]]))


def test_the_penalty_of_a_long_step() -> None:
    found = [overlong_penalty(length, limit=100, buffer=40) for length in (0, 60, 61, 80, 100, 101)]
    assert found == [0.0, 0.0, -0.025, -0.5, -1.0, -1.0]


# What a token counts.

NORMALIZATIONS = choices(AgentSettings, "loss_normalization")

# Two rows of episode 0, one row of episode 1, and a dummy; steps count through the rows of an episode.
LAID = torch.tensor([[-1, 0, 0, 0, -1], [-1, 1, -1, 2, 2], [-1, 0, -1, -1, -1], [-1, -1, -1, -1, -1]])


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("token", [[3 / 7], [1 / 7, 2 / 7], [1 / 7]]),
        ("sequence", [[1 / 3], [1 / 9, 2 / 9], [1 / 3]]),
        ("step", [[1 / 4], [1 / 4, 1 / 4], [1 / 4]]),
        ("episode", [[1 / 4], [1 / 12, 1 / 6], [1 / 2]]),
        ("constant", [[3 / 80], [1 / 80, 2 / 80], [1 / 80]]),
    ],
)
def test_each_unit_counts_the_same(by: str, expected: list[list[float]]) -> None:
    weights = loss_weights(LAID >= 0, LAID, torch.tensor([0, 0, 1, -1]), by, constant=80)
    for row, shares in enumerate(expected):
        steps = sorted(set(LAID[row].tolist()) - {-1})
        assert [weights[row][LAID[row] == step].sum().item() for step in steps] == pytest.approx(shares)
        assert all(weights[row][LAID[row] == step].unique().numel() == 1 for step in steps)
    assert (weights[LAID < 0] == 0).all()


ROWS = st.lists(st.lists(st.integers(-1, 3), min_size=1, max_size=6), min_size=1, max_size=6)


@given(ROWS, st.sampled_from(NORMALIZATIONS), st.data())
@examples(200)
def test_processes_change_no_weight(rows: list[list[int]], by: str, data: st.DataObject) -> None:
    width = max(map(len, rows))
    steps = torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows])
    episodes = torch.tensor(sorted(data.draw(st.integers(0, 2)) for _ in rows))
    whole = loss_weights(steps >= 0, steps, episodes, by)
    if by != "constant":
        assert whole.sum().item() == pytest.approx(float((steps >= 0).any()))
    # Two processes, each with whole episodes and a dummy row, and the counts of both added up.
    counts: list[int] = []

    def share(part: torch.Tensor, total: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        held = torch.cat([steps[part], torch.full((1, width), -1)])
        return loss_weights(held >= 0, held, torch.cat([episodes[part], torch.tensor([-1])]), by, total)[:-1]

    parts = (episodes <= 0, episodes > 0)
    for part in parts:
        share(part, lambda count: (counts.append(int(count)), count)[1])
    for part in parts:
        assert torch.allclose(share(part, lambda count: torch.tensor(sum(counts))), whole[part])


# The weight of a token against the engine that sampled it.

MODES = [m for m in choices(AgentSettings, "vllm_importance_sampling_mode") if m.startswith(("token", "sequence"))]
"""Those that TRL has, too."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("huge", [-9999.0, -math.inf, None], ids=["clamped by vLLM", "minus infinity", "the whole row"])
def test_a_ratio_that_overflows_is_bounded_or_dropped_and_never_nan(mode: str, huge: float | None) -> None:
    logps, mask = torch.full((2, 40), -1.0), torch.ones(2, 40).bool()
    mask[:, ::4] = False
    engine = logps.clone()
    engine[0, 5:6] = -21.0 if huge is None else huge
    if huge is None:
        engine[0] = -21.0
    got = engine_ratio(logps, engine, mask, mode=mode, high=3.0)
    assert torch.equal(got, trl_ratio(logps, engine, mask, mode, None, 3.0))
    assert got.isfinite().all() and (got[1] == 1.0).all()
    assert got[0].max() == 3.0 if mode.endswith("truncate") else got[0].min() == 0.0
    if mode.endswith("mask"):
        # Without an upper bound everything is inside that is a number.
        assert engine_ratio(logps, engine, mask, mode=mode, low=0.5, high=None).isfinite().all()


@pytest.mark.parametrize("mode", MODES)
def test_the_weights_are_trls(mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for low, high in ((None, 3.0), (0.5, 2.0), (0.9, None)):
        logps = -torch.rand(16, 12, generator=generator) * 3
        engine = logps + torch.randn(16, 12, generator=generator) * 0.5
        mask = torch.rand(16, 12, generator=generator) < 0.7
        odd = torch.rand(16, 12, generator=generator)
        engine[odd < 0.05], engine[odd > 0.98] = math.nan, -math.inf
        if high is None:
            engine = engine.nan_to_num(neginf=-3.0)
        got = engine_ratio(logps, engine, mask, mode=mode, low=low, high=high)
        assert torch.equal(got, trl_ratio(logps, engine, mask, mode, low, high))
        # Tokens of the environment count for nothing, whatever the engine reports there.
        unknown = torch.where(mask, engine, math.nan)
        assert torch.equal(engine_ratio(logps, unknown, mask, mode=mode, low=low, high=high), got)
        assert mode.startswith("sequence") or (got[~mask] == 1.0).all()


@given(st.integers(1, 40), st.floats(-0.5, 0.5))
def test_the_geometric_mean_of_a_row_does_not_depend_on_its_length(length: int, difference: float) -> None:
    logps = torch.full((2, 80), -1.0)
    mask = torch.arange(80)[None] < torch.tensor([[length], [2 * length]])
    for mode in ("geometric_truncate", "geometric_mask"):
        ratio = engine_ratio(logps + difference, logps, mask, mode=mode, low=None, high=None)
        assert ratio[:, 0].tolist() == pytest.approx([math.exp(difference)] * 2, rel=1e-5)
        bounded = engine_ratio(logps + difference, logps, mask, mode=mode, low=0.9, high=1.1)
        outside = 1.1 if difference > 0 else 0.9
        expected = ratio[0] if 0.9 <= ratio[0] <= 1.1 else outside if mode.endswith("truncate") else 0.0
        assert bounded[:, 0].tolist() == pytest.approx([float(expected)] * 2, rel=1e-5)


def trl_ratio(logps: Any, engine: Any, mask: Any, mode: str, low: float | None, high: float | None) -> Any:
    """What trl 1.16 computes in `_generate_and_score_completions`."""
    difference = torch.nan_to_num((logps - engine) * mask, nan=0.0)
    ratio = torch.exp(difference.sum(-1, keepdim=True) if mode.startswith("sequence") else difference)
    if mode.endswith("truncate"):
        return torch.clamp(ratio, min=low, max=high)
    least, most = -math.inf if low is None else low, math.inf if high is None else high
    return ratio.masked_fill((ratio < least) | (ratio > most), value=0.0)
