"""Losses: from logprobs and advantages to one number per token, and the weight of each token.

    loss of a batch = sum over all tokens of  weight x loss per token

Shapes: B rows, T tokens. A row may hold several steps of an episode, and tokens of the environment between them. Every
loss here is (B, T) without averaging: a sum can be cut into micro-batches anywhere, a mean of means cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

_AT_ONCE = 1024
CLAMP = 20.0
"""The largest magnitude of a log-ratio. The exp() of a token with a vanishing old probability (forced, or lost to
another precision) overflows, and a single inf makes every weight NaN."""


class PolicyLoss(NamedTuple):
    """The loss (B, T) to be minimised, and the tokens (B, T, bool) at which it was clipped.

    `low`: a bad action had become so much less likely that its gradient was cut off. `high`: a good action had become
    so much more likely, or (dual clip) a bad action far too likely.
    """

    loss: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def probability_ratio(
    logps: torch.Tensor, old_logps: torch.Tensor, step_of: torch.Tensor, level: str = "token"
) -> torch.Tensor:
    """Return the ratio of each action's probability now to its probability when the batch was scored.

    Args:
        logps: (B, T) logprobs now, with gradient.
        old_logps: (B, T) logprobs before the first update on these rows.
        step_of: (B, T) step that sampled the token, -1 where the environment wrote it.
        level: "token" gives each token a separate ratio (PPO). "step" and "sequence" give all tokens of a step, or all
            sampled tokens of a row, the geometric mean of their ratios: s = exp(mean log-ratio) (GSPO,
            arXiv:2507.18071).

    Returns:
        (B, T), with gradient; 1 on the environment's tokens.
    """
    mask = step_of >= 0
    log_ratio = torch.where(mask, logps - old_logps, 0.0).clamp(-CLAMP, CLAMP)
    if level == "token":
        return log_ratio.exp()
    segment = step_of.clamp(min=0) if level == "step" else torch.zeros_like(step_of)
    shape = (len(step_of), int(segment.max()) + 1)
    sums = log_ratio.new_zeros(shape).scatter_add(1, segment, log_ratio * mask)
    counts = log_ratio.new_zeros(shape).scatter_add(1, segment, mask.to(log_ratio.dtype))
    mean = torch.where(mask, (sums / counts.clamp(min=1)).gather(1, segment), 0.0)
    # The value is that of the step, and the gradient is that of the token (GSPO-token). So an advantage that differs
    # between the tokens of a step still reaches its token. With equal advantages both gradients are the same.
    return mean.detach().exp() * (log_ratio - log_ratio.detach()).exp()


def clipped_loss(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
) -> PolicyLoss:
    """PPO's clipped objective (arXiv:1707.06347): -min(ratio A, clip(ratio, 1 - low, 1 + high) A).

    Args:
        ratio: (B, T) from `probability_ratio`.
        advantages: (B, T).
        low: how far the ratio of a bad action may fall.
        high: how far the ratio of a good action may rise. A value above `low` ("clip-higher", DAPO, arXiv:2503.14476)
            leaves room for rare tokens: otherwise a token of probability 0.01 cannot exceed 0.012 in one batch, while a
            token of 0.9 is free.
        dual: for A < 0 the minimum has no floor, and a bad action that has become far more likely would dominate the
            batch. The loss is then cut at -dual A (dual clip, arXiv:1912.09729, which uses 3; TRL's `delta`). None
            leaves it out.
    """
    pulled = ratio if dual is None else ratio.clamp(max=dual)
    loss = -torch.minimum(pulled * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    too_high = (ratio > 1 + high) & (advantages > 0)
    if dual is not None:
        too_high |= (ratio > dual) & (advantages < 0)
    return PolicyLoss(loss, (ratio < 1 - low) & (advantages < 0), too_high)


def cispo_loss(ratio: torch.Tensor, logps: torch.Tensor, advantages: torch.Tensor, cap: float = 5.0) -> PolicyLoss:
    """REINFORCE with a capped importance weight (CISPO, arXiv:2506.13585): -min(ratio, cap) A log p.

    PPO's clip removes the gradient of a token, and first of the rare tokens that change the course of a chain of
    thought. CISPO cuts only the weight, so every token keeps a gradient. All arguments are (B, T); the gradient of
    `logps` is used, and that of `ratio` is not. `cap` is the largest weight (TRL's `epsilon_high` for this loss;
    ScaleRL, arXiv:2510.13786, uses 5).
    """
    weight = ratio.detach().clamp(max=cap)
    return PolicyLoss(-weight * advantages * logps, torch.zeros_like(ratio, dtype=torch.bool), ratio > cap)


def reinforce_loss(ratio: torch.Tensor, logps: torch.Tensor, advantages: torch.Tensor) -> PolicyLoss:
    """REINFORCE: -A log p (Williams, Machine Learning 8, 1992); with A of 1 or 0 it is the likelihood loss of RAFT.

    No ratio weighs a token, so later updates on a rollout equal supervised learning on it. All arguments are (B, T);
    only the shape of `ratio` is used, as nothing is clipped.
    """
    nowhere = torch.zeros_like(ratio, dtype=torch.bool)
    return PolicyLoss(-advantages * logps, nowhere, nowhere)


def logprobs_and_entropy(
    logits: torch.Tensor, labels: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logprob of each label and the entropy of its distribution, (1, M) float32, from logits (1, M, V).

    This function serves the models whose logits TRL's fused output layer does not compute. At most a thousand tokens at
    a time are in float32, also when the gradient is computed.
    """

    def score(part: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = (part.float() / temperature).log_softmax(-1)
        return logprobs.gather(-1, label[..., None])[..., 0], -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)

    pieces = zip(logits.split(_AT_ONCE, 1), labels.to(logits.device).split(_AT_ONCE, 1), strict=True)
    scored = [checkpoint(score, *piece, use_reentrant=False) for piece in pieces]
    logps, entropy = (torch.cat(parts, 1) for parts in zip(*scored, strict=True))
    return logps, entropy


def kl_estimate(logps: torch.Tensor, ref_logps: torch.Tensor) -> torch.Tensor:
    """Estimate KL(policy || reference) per token, (B, T) in nats: exp(d) - d - 1 with d = ref - policy (Schulman's k3).

    The estimate is never negative, is unbiased, and has low variance where the policies are close
    (http://joschu.net/blog/kl-approx.html). Its gradient is not that of the KL. With `use_bias_correction_kl`, TRL's
    default, the loss multiplies it by the probability ratio, which also has a gradient (DeepSeek-V3.2,
    arXiv:2512.02556).
    """
    difference = (ref_logps - logps).clamp(-CLAMP, CLAMP)
    return difference.exp() - difference - 1


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float | None = None
) -> torch.Tensor:
    """Squared error of the critic (B, T), clipped like the policy: 0.5 max((v - R)^2, (clip(v, v_old +- c) - R)^2).

    The clip is that of PPO's implementation (openai/baselines); its use is debated (arXiv:2006.05990).

    Args:
        values: (B, T) with gradient.
        old_values: (B, T) when the batch was scored.
        returns: (B, T) targets.
        clip: c; None disables the clip.
    """
    error = (values - returns) ** 2
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns) ** 2)
    return 0.5 * error


def loss_weights(
    mask: torch.Tensor,
    step_of: torch.Tensor,
    episode_of: torch.Tensor,
    by: str,
    total: Callable[[torch.Tensor], torch.Tensor] = lambda count: count,
    constant: float = 1.0,
) -> torch.Tensor:
    """Weigh tokens so that all units count the same and all weights sum to 1, or by a constant.

    The weights are fixed over all ranks when the rollout is laid out, so the gradient of a rollout does not depend on
    how its rows are shuffled, cut or shared.

        token     every token alike: long episodes and long steps count more (DAPO, arXiv:2503.14476)
        sequence  every row alike: an episode whose context was rewritten has as many votes as rows
        step      every step alike, however many tokens it took: the unit of the step-level MDP
        episode   every episode alike, however many steps it took (GRPO's original form, arXiv:2402.03300)
        constant  every token 1 / constant (Dr. GRPO, arXiv:2503.20783): the weights do not sum to 1

    Args:
        mask: (B, T) True for tokens that are trained on.
        step_of: (B, T) step of the token within its episode.
        episode_of: (B,) number of the row's episode, from 0; whole episodes stay on one rank.
        by: the choice above.
        total: sums a count over all ranks.
        constant: the largest number of tokens of a rollout, over all ranks.

    Returns:
        (B, T) float32, 0 outside the mask; all 0 if nothing is trained on.
    """
    if by == "constant":
        return mask.float() / constant
    rows = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)
    episodes = episode_of[:, None].expand_as(mask)
    keys = {
        "token": rows * mask.size(1) + torch.arange(mask.size(1), device=mask.device),
        "sequence": rows,
        "step": episodes * (step_of.max() + 2) + step_of + 1,
        "episode": episodes,
    }
    # Only units with a trained token count. They are numbered without gaps, and their tokens divide each unit's share.
    _, unit, sizes = keys[by][mask].unique(return_inverse=True, return_counts=True)
    units = total(torch.tensor(len(sizes))).clamp(min=1)
    weights = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    weights[mask] = 1.0 / (units * sizes[unit]).float()
    return weights


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

    An engine computes the logprob of a token with other kernels, in another precision or with older weights, which
    biases the policy gradient. The weight trainer/engine removes the bias, and its bounds prevent one odd token from
    dominating the batch.

    Args:
        logps: (B, T) logprobs under the trainer's weights before the update, detached.
        engine_logps: (B, T) logprobs under the engine that sampled; NaN where it has none, which counts as no
            difference. A logprob of -inf makes the ratio infinite: it is truncated to `high`, or dropped.
        action_mask: (B, T) 1 where the policy sampled the token.
        mode: "token_truncate" clamps exp(logps - engine_logps) to [low, high] (truncated importance sampling, Yao et
            al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"). "token_mask" gives
            tokens outside the bounds a weight of 0. "sequence_..." do the same to the ratio of the whole row.
            "geometric_..." do the same to the geometric mean of its tokens' ratios, whose spread does not grow with the
            row: bounds of a few per cent around 1 are usual there.
        low: lower bound, None for none.
        high: upper bound, None for none.

    Returns:
        (B, T), or (B, 1) for the modes of rows; 1 where nothing was sampled or the engine has no logprob.
    """
    difference = torch.nan_to_num((logps - engine_logps) * action_mask, nan=0.0)
    if not mode.startswith("token"):
        difference = difference.sum(1, keepdim=True)
    if mode.startswith("geometric"):
        difference = difference / action_mask.sum(1, keepdim=True).clamp(min=1)
    ratio = difference.exp()
    if low is None and high is None:
        return ratio
    bounded = ratio.clamp(min=low, max=high)
    if mode.endswith("truncate"):
        return bounded
    # An overflowed ratio is outside every bound, and 0 times infinity is not 0.
    return torch.where((ratio == bounded) & ratio.isfinite(), ratio, 0.0)


def mismatch_kl(logps: torch.Tensor, engine_logps: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
    """Estimate KL(engine || trainer) per token from the engine's samples: ratio - 1 - log ratio (k3).

    Takes the arguments of `engine_ratio` and returns (B, T) in nats; 0 where nothing was sampled or the engine has no
    logprob.
    """
    difference = torch.nan_to_num((logps - engine_logps) * action_mask, nan=0.0)
    return difference.exp() - 1 - difference


def overlong_penalty(length: int, limit: int, buffer: int) -> float:
    """Return the term that is added to the reward of a step of this many tokens (DAPO, arXiv:2503.14476, eq. 13).

    It is 0 up to `limit - buffer` tokens, falls linearly to -1 at `limit`, and stays at -1.
    """
    return min(0.0, max(-1.0, (limit - buffer - length) / buffer))


class RunningMeans:
    """Means and maxima over tokens that are collected piece by piece, and exchanged between ranks once.

    A mean of the pieces' means would depend on how the batch was cut.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._most: dict[str, torch.Tensor] = {}

    def add(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Add the values where the mask is True; both have the same shape."""
        # The values are selected and not multiplied by the mask, because 0 x infinity is not 0.
        part = torch.stack([torch.where(mask, values.detach(), 0).sum().float(), mask.sum().float()])
        self._sums[name] = self._sums.get(name, 0) + part

    def largest(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Keep the largest of the values where the mask is True; both have the same shape."""
        most = torch.where(mask, values.detach(), -math.inf).max().float()
        self._most[name] = torch.maximum(self._most.get(name, most), most)

    def pop(self, accelerator: Any) -> dict[str, float]:
        """Return means and maxima over all ranks, which must have given the same names, and start anew.

        A name without a value on any rank is left out: a 0 would lower its mean over other minibatches.
        """
        if not self._sums:
            return {}
        device = accelerator.device  # some were collected on the CPU, where the batch of a rollout lies
        totals = accelerator.reduce(torch.stack([part.to(device) for part in self._sums.values()]), "sum").tolist()
        found = {name: total / count for name, (total, count) in zip(self._sums, totals, strict=True) if count}
        if self._most:
            parts = accelerator.gather(torch.stack([most.to(device) for most in self._most.values()])[None])
            largest = zip(self._most, parts.amax(0).tolist(), strict=True)
            found |= {name: most for name, most in largest if most > -math.inf}
        self._sums.clear()
        self._most.clear()
        return found
