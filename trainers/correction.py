"""The mismatch between the engine that sampled and the model that trains.

vLLM and the trainer compute the same logprob with different kernels and often in another precision. The policy
gradient then has a small bias, which weighting each token by trainer/engine removes; bounding the weight keeps one odd
token from ruling the batch.
"""

from __future__ import annotations

import torch

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def engine_ratio(
    logps: torch.Tensor,
    engine_logps: torch.Tensor,
    action_mask: torch.Tensor,
    *,
    mode: str = "token_truncate",
    low: float | None = None,
    high: float | None = 3.0,
) -> torch.Tensor:
    """Return the importance weight of each token under bounded importance sampling.

    Args:
        logps: (B, T) logprobs under the trainer's weights before the update, detached.
        engine_logps: (B, T) logprobs under the engine that sampled; NaN where it has none, which counts as no
            difference. One of -inf makes the ratio infinite: truncated to `high`, or dropped.
        action_mask: (B, T) 1 where the policy sampled the token.
        mode: "token_truncate" clamps exp(logps - engine_logps) to [low, high] (truncated importance sampling, Yao et
            al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"), "token_mask" gives
            tokens outside a weight of 0; "sequence_truncate" and "sequence_mask" do the same to the ratio of the whole
            row.
        low: lower bound, None for none.
        high: upper bound, None for none.

    Returns:
        (B, T), or (B, 1) for the sequence modes; 1 where nothing was sampled or the engine has no logprob.
    """
    difference = _difference(logps, engine_logps, action_mask)
    ratio = (difference.sum(1, keepdim=True) if mode.startswith("sequence") else difference).exp()
    if low is None and high is None:
        return ratio
    if mode.endswith("truncate"):
        return ratio.clamp(min=low, max=high)
    # A ratio that overflowed is outside of every bound, and 0 times infinity is not 0.
    inside = ratio.isfinite() if high is None else ratio <= high
    return torch.where(inside & (ratio >= (0.0 if low is None else low)), ratio, 0.0)


def mismatch_kl(logps: torch.Tensor, engine_logps: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
    """Estimate KL(engine || trainer) per token from what the engine sampled: ratio - 1 - log ratio (k3).

    Arguments as of `engine_ratio`; see `losses.kl_estimate` for the estimator. A small difference d of logprobs counts
    d^2 / 2.

    Returns:
        (B, T) in nats; 0 where nothing was sampled or the engine has no logprob.
    """
    difference = _difference(logps, engine_logps, action_mask)
    return difference.exp() - 1 - difference


def _difference(logps: torch.Tensor, engine_logps: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num((logps - engine_logps) * action_mask, nan=0.0)
