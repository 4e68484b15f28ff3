"""Losses: from logprobs and advantages to one number per token.

Shapes: B rows, T tokens. A row may hold several steps of an episode, and tokens of the world between them. Every
function here returns (B, T) without averaging; normalization.py decides what a token counts, and the loss is the sum of
weight times token. A sum can be cut into micro-batches anywhere, a mean of means cannot.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

LOSSES = ("clip", "cispo")
RATIO_LEVELS = ("token", "step", "sequence")
CLAMP = 20.0
"""Largest magnitude of a log-ratio: one impossible token cannot make the loss infinite."""


class PolicyLoss(NamedTuple):
    """The policy's loss and what was clipped.

    Attributes:
        loss: (B, T) to be minimised.
        low: (B, T) True where a bad action had become so much less likely that the gradient was cut off.
        high: (B, T) True where a good action had become so much more likely, or (dual clip) a bad one far too likely.
    """

    loss: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def probability_ratio(
    logps: torch.Tensor, old_logps: torch.Tensor, step_of: torch.Tensor, level: str = "token", clamp: float = CLAMP
) -> torch.Tensor:
    """How much more likely the policy finds its actions now than when the batch was scored.

    Args:
        logps: (B, T) logprobs now, with gradient.
        old_logps: (B, T) logprobs before the first update on these rows.
        step_of: (B, T) step that sampled the token, -1 where the world wrote it.
        level: "token" gives each token its own ratio (PPO). "step" and "sequence" give all tokens of a step, or all
            sampled tokens of a row, the geometric mean of theirs: s = exp(mean log-ratio) (GSPO, arXiv:2507.18071).
            A single token then cannot push a whole action out of the trust region, nor be clipped alone. With step GAE
            this is StepPO: step-level advantages and step-level ratios.
        clamp: largest magnitude of a log-ratio. One token with a vanishing old probability (forced, or lost to another
            precision) has an exp() that overflows, and a single inf makes every weight NaN (Agent-R1's issue 30).

    Returns:
        (B, T), with gradient; 1 on the world's tokens.
    """
    mask = step_of >= 0
    log_ratio = torch.where(mask, logps - old_logps, 0.0).clamp(-clamp, clamp)
    if level == "token":
        return log_ratio.exp()
    segment = step_of.clamp(min=0) if level == "step" else torch.zeros_like(step_of)
    shape = (len(step_of), int(segment.max()) + 1)
    sums = log_ratio.new_zeros(shape).scatter_add(1, segment, log_ratio * mask)
    counts = log_ratio.new_zeros(shape).scatter_add(1, segment, mask.to(log_ratio.dtype))
    mean = torch.where(mask, (sums / counts.clamp(min=1)).gather(1, segment), 0.0)
    # The value is the step's, the gradient is the token's own (GSPO-token): so an advantage that differs between the
    # tokens of a step still reaches the token it belongs to. With equal advantages both gradients are the same.
    return mean.detach().exp() * (log_ratio - log_ratio.detach()).exp()


def clipped_loss(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
) -> PolicyLoss:
    """PPO's clipped objective (arXiv:1707.06347): -min(ratio A, clip(ratio, 1 - low, 1 + high) A).

    The minimum is pessimistic: once an action is better by more than the clip, there is nothing more to gain from it in
    this batch, but a move in the wrong direction can always be taken back.

    Args:
        ratio: (B, T) from `probability_ratio`.
        advantages: (B, T).
        low: how far a bad action may fall.
        high: how far a good action may rise. More than `low` ("clip-higher", DAPO, arXiv:2503.14476) leaves room for
            rare tokens: one of probability 0.01 can otherwise not get beyond 0.012 in one batch, one of 0.9 is free.
        dual: for A < 0 the minimum has no floor: an action that has become far *more* likely although it is bad would
            rule the batch. The loss is then cut at -dual A (dual clip, arXiv:1912.09729, which uses 3; TRL calls it
            `delta`). None leaves it out.
    """
    pulled = ratio if dual is None else ratio.clamp(max=dual)
    loss = -torch.minimum(pulled * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    too_high = (ratio > 1 + high) & (advantages > 0)
    if dual is not None:
        too_high |= (ratio > dual) & (advantages < 0)
    return PolicyLoss(loss, (ratio < 1 - low) & (advantages < 0), too_high)


def cispo_loss(ratio: torch.Tensor, logps: torch.Tensor, advantages: torch.Tensor, cap: float = 5.0) -> PolicyLoss:
    """REINFORCE with a capped importance weight (CISPO, arXiv:2506.13585): -min(ratio, cap) A log p.

    PPO's clip silences a token, and the first to leave the trust region are the rare ones that turn a chain of thought
    around ("wait", "however"). Here only the weight is cut off, so that every token keeps a gradient.

    Args:
        ratio: (B, T) importance weights; their gradient is not used.
        logps: (B, T) logprobs, with gradient.
        advantages: (B, T).
        cap: largest weight (TRL's `epsilon_high` for this loss; ScaleRL, arXiv:2510.13786, uses 5).
    """
    weight = ratio.detach().clamp(max=cap)
    return PolicyLoss(-weight * advantages * logps, torch.zeros_like(ratio, dtype=torch.bool), ratio > cap)


def kl_estimate(logps: torch.Tensor, ref_logps: torch.Tensor, clamp: float = CLAMP) -> torch.Tensor:
    """Estimate KL(policy || reference) per token: exp(d) - d - 1 with d = ref - policy (Schulman's k3).

    Never negative, unbiased, and of low variance where the policies are close (http://joschu.net/blog/kl-approx.html).
    Its gradient is not that of the KL. With `use_bias_correction_kl`, TRL's default, the loss multiplies it by the
    probability ratio, which has a gradient, too (DeepSeek-V3.2, arXiv:2512.02556).

    Args:
        logps: (B, T), with gradient.
        ref_logps: (B, T).
        clamp: largest magnitude of d.

    Returns:
        (B, T) in nats.
    """
    difference = (ref_logps - logps).clamp(-clamp, clamp)
    return difference.exp() - difference - 1


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float | None = None
) -> torch.Tensor:
    """Squared error of the critic, clipped like the policy: 0.5 max((v - R)^2, (clip(v, v_old +- c) - R)^2).

    Without the clip a few minibatches with large errors can move a critic that shares nothing else with the policy's
    trust region (PPO's implementation, openai/baselines; its use is debated: "What Matters in On-Policy RL",
    arXiv:2006.05990).

    Args:
        values: (B, T) with gradient.
        old_values: (B, T) when the batch was scored.
        returns: (B, T) targets.
        clip: c, None for none.

    Returns:
        (B, T).
    """
    error = (values - returns) ** 2
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns) ** 2)
    return 0.5 * error
