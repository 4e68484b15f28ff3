"""The losses per token: closed forms, gradients, and the numbers that must not blow up."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.trainers.losses import (  # noqa: E402
    cispo_loss,
    clipped_loss,
    kl_estimate,
    probability_ratio,
    value_loss,
)

ADVANTAGES = torch.tensor([[1.0, 1.0, 1.0, -1.0, -1.0, -1.0]])
RATIOS = torch.tensor([[0.5, 1.1, 2.0, 0.5, 1.1, 5.0]])


def test_the_clip_is_pessimistic() -> None:
    found = clipped_loss(RATIOS, ADVANTAGES, low=0.2, high=0.3)
    # Good actions gain up to 1.3; bad ones gain down to 0.8, and lose without limit.
    assert torch.allclose(found.loss, torch.tensor([[-0.5, -1.1, -1.3, 0.8, 1.1, 5.0]]))
    assert found.high.tolist() == [[False, False, True, False, False, False]]
    assert found.low.tolist() == [[False, False, False, True, False, False]]


def test_the_dual_clip_bounds_a_bad_action_that_became_likely() -> None:
    found = clipped_loss(RATIOS, ADVANTAGES, low=0.2, high=0.3, dual=3.0)
    assert torch.allclose(found.loss, torch.tensor([[-0.5, -1.1, -1.3, 0.8, 1.1, 3.0]]))
    assert found.high.tolist() == [[False, False, True, False, False, True]]


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(-3, 3)), min_size=1, max_size=8), st.floats(1.5, 5))
def test_the_clipped_loss_equals_the_formula_case_by_case(pairs: list[tuple[float, float]], dual: float) -> None:
    ratio = torch.tensor([[r for r, _ in pairs]], dtype=torch.float64)
    advantages = torch.tensor([[a for _, a in pairs]], dtype=torch.float64)
    expected = []
    for r, a in pairs:
        gain = min(r * a, min(max(r, 0.8), 1.28) * a)
        expected.append(-(max(gain, dual * a) if a < 0 else gain))
    found = clipped_loss(ratio, advantages, 0.2, 0.28, dual)
    assert torch.allclose(found.loss, torch.tensor([expected], dtype=torch.float64), atol=1e-12)


def test_a_clipped_token_has_no_gradient_and_the_others_have_the_policy_gradient() -> None:
    logps = torch.log(RATIOS).requires_grad_()
    ratio = probability_ratio(logps, torch.zeros(1, 6), torch.zeros(1, 6, dtype=torch.long))
    clipped_loss(ratio, ADVANTAGES, 0.2, 0.3, dual=3.0).loss.sum().backward()
    assert torch.allclose(logps.grad, torch.tensor([[-0.5, -1.1, 0.0, 0.0, 1.1, 0.0]]))


def test_cispo_keeps_a_gradient_for_every_token() -> None:
    logps = torch.log(RATIOS).requires_grad_()
    ratio = probability_ratio(logps, torch.zeros(1, 6), torch.zeros(1, 6, dtype=torch.long))
    found = cispo_loss(ratio, logps, ADVANTAGES, cap=3.0)
    found.loss.sum().backward()
    assert torch.allclose(logps.grad, torch.tensor([[-0.5, -1.1, -2.0, 0.5, 1.1, 3.0]]))
    assert found.high.tolist() == [[False] * 5 + [True]]


STEPS = torch.tensor([[-1, 0, 0, -1, 1, 1, 1, -1], [-1, 2, -1, 3, 3, -1, -1, -1]])


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


def test_with_one_advantage_per_step_the_gradient_is_that_of_gspo() -> None:
    """GSPO differentiates exp(mean log-ratio) itself; here each token keeps its own share of the same gradient."""
    logps = torch.randn(2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = torch.where(STEPS == 1, 2.0, 0.5).double() * (STEPS >= 0)

    def gradient(ratio: Any, leaf: Any) -> Any:
        (ratio * weight).sum().backward()
        return leaf.grad

    ours = logps.clone().requires_grad_()
    found = gradient(probability_ratio(ours, torch.zeros_like(logps), STEPS, "step"), ours)
    plain = logps.clone().requires_grad_()
    ratio = torch.ones_like(plain)
    for row in range(2):
        for step in range(4):
            inside = STEPS[row] == step
            if inside.any():
                ratio = torch.where(inside & (torch.arange(2)[:, None] == row), plain[row][inside].mean().exp(), ratio)
    assert torch.allclose(found, gradient(ratio, plain), atol=1e-12)


@pytest.mark.parametrize("level", ["token", "step", "sequence"])
def test_an_impossible_old_probability_stays_finite(level: str) -> None:
    logps = torch.full((2, 8), -0.1, requires_grad=True)
    old = torch.full((2, 8), -0.1)
    old[0, 1], old[0, 3] = -1e4, float("nan")  # a forced token of the policy, and an unscored one of the world
    ratio = probability_ratio(logps, old, STEPS, level)
    assert ratio.isfinite().all() and ratio.max() <= math.exp(20) * 1.01
    clipped_loss(ratio, torch.ones(2, 8), dual=3.0).loss.sum().backward()
    assert logps.grad.isfinite().all()
    assert (logps.grad[STEPS < 0] == 0).all()


def test_the_kl_estimate() -> None:
    logps, ref = torch.log(torch.tensor([[0.2, 0.5, 0.3]])), torch.log(torch.tensor([[0.4, 0.4, 0.2]]))
    expected = (logps.exp() * (logps - ref)).sum()
    # Each token weighed by its probability: the mean of the estimate is the divergence.
    assert torch.allclose((logps.exp() * kl_estimate(logps, ref)).sum(), expected)
    assert (kl_estimate(logps, ref) >= 0).all() and (kl_estimate(logps, logps) == 0).all()
    assert kl_estimate(torch.tensor([[-1e4]]), torch.tensor([[0.0]])).isfinite().all()


def test_the_value_loss_takes_the_worse_of_clipped_and_plain() -> None:
    values = torch.tensor([[1.0, 1.0, 0.1]], requires_grad=True)
    old, returns = torch.zeros(1, 3), torch.tensor([[2.0, 0.0, 0.0]])
    assert torch.allclose(value_loss(values, old, returns), torch.tensor([[0.5, 0.5, 0.005]]))
    clipped = value_loss(values, old, returns, clip=0.2)
    # First: right direction but too far, so the clipped value is the worse one and there is no gradient.
    assert torch.allclose(clipped, torch.tensor([[0.5 * 1.8**2, 0.5, 0.005]]))
    clipped.sum().backward()
    assert torch.allclose(values.grad, torch.tensor([[0.0, 1.0, 0.1]]))
