"""Advantages with a critic: generalised advantage estimation over tokens, over steps, and over both.

A critic V(s) predicts the return of the rest of the episode. If the prediction changes, the events in between were
better or worse than expected, and the token or step in between gets the credit:

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t)
    A_t     = delta_t + gamma lam A_{t+1}

lam trades bias for noise. With 0 the critic is believed at once. With 1 the A_t are the sum of the actual rewards minus
V(s_t), and the critic is only a baseline.

No reward follows the end of an episode, even if a limit of turns or tokens truncated it. The goal is success within the
limits, and a policy reads in its history how many turns it has used, so the limit is a part of the task (case (i) of F.
Pardo et al., "Time Limits in Reinforcement Learning", arXiv:1712.00378). If the critic's value were used after a limit,
as for tasks that never end, running out of turns would cost nothing: where failures end at the limit, all values would
rise to that of a success, and nothing could be learned.

Shapes: N episodes, T moments, which are the tokens (L) or the steps (K) of an episode.
"""

from __future__ import annotations

import torch

from agent_gym.trainers.credit import Credit, Estimate, Experience, required
from agent_gym.trainers.estimators.groups import whitened


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    gamma: float | torch.Tensor,
    lam: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the recursion above from the end to the beginning over the moments in the mask.

    PPO, arXiv:1707.06347; GAE, arXiv:1506.02438. Masked moments are skipped: tokens of the environment cost no
    discount, and the last token before a tool's answer reads the value of the first token after it.

    Args:
        rewards: (N, T).
        values: (N, T) V of the state before each moment.
        mask: (N, T) True where the policy acted, in any pattern.
        gamma: discount, or one for each moment (N, T). After a discount of 0, no later moment counts.
        lam: lambda.

    Returns:
        Advantages and returns = advantages + values, the targets of the critic; (N, T), 0 outside the mask.
    """
    discounts = torch.as_tensor(gamma, dtype=values.dtype).expand_as(values)
    advantages = torch.zeros_like(values)
    next_value, next_advantage = values.new_zeros(len(values)), values.new_zeros(len(values))
    for t in reversed(range(values.size(1))):
        delta = rewards[:, t] + discounts[:, t] * next_value - values[:, t]
        advantage = delta + discounts[:, t] * lam * next_advantage
        advantages[:, t] = torch.where(mask[:, t], advantage, 0.0)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        next_advantage = torch.where(mask[:, t], advantage, next_advantage)
    return advantages, torch.where(mask, advantages + values, 0.0)


def over_steps(experience: Experience, credit: Credit) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (N, K) advantages and returns of steps with sampled tokens; a step has the value of its first token."""
    values = experience.to_steps(required(experience.values, "values"))
    rewards, mask = experience.acting_rewards, experience.acting_steps
    return gae(rewards, values, mask, credit.step_gamma, credit.step_lam)


def estimate_gae(experience: Experience, credit: Credit) -> Estimate:
    """`gae` over the sampled tokens, whitened over tokens."""
    values, mask = required(experience.values, "values"), experience.token_mask
    advantages, returns = gae(experience.token_rewards, values, mask, credit.gamma, credit.lam)
    return Estimate(whitened(advantages, mask, experience, credit), returns, mask)


def estimate_step_gae(experience: Experience, credit: Credit) -> Estimate:
    """`gae` over steps, as in StepPO (arXiv:2604.18401): a step is one action, however many tokens it took.

    All tokens of a step share its advantage, and values are trained only at the first token of a step. Whitening counts
    each step once: if it counted tokens, long steps would set the mean for all others.
    """
    advantages, returns = over_steps(experience, credit)
    advantages = whitened(advantages, experience.acting_steps, experience, credit)
    first = experience.first_token_mask
    return Estimate(experience.to_tokens(advantages), torch.where(first, experience.to_tokens(returns), 0.0), first)


def bilevel_gae(experience: Experience, credit: Credit) -> Estimate:
    """`gae` over steps, then over the tokens of each step separately, with the return after the step as a last reward.

    VAGEN's bi-level GAE, arXiv:2510.16907. The target of a step from the upper level, R_k = A_k + V_k, becomes the
    return of the step's last token, and no value crosses the border of a step. The rewards of a step remain at the
    tokens that earned them, so a token's KL penalty counts once. Only the future, R_k - (rewards of the step), is added
    at the last token. The advantages are whitened over tokens.

    RAGEN's code differs: it takes the value of a step at its last token, where most of the step is already decided. It
    finds the ends of steps by looking for rewards that are not 0, so a step without a reward merges with the next one.
    """
    values, mask, ends = required(experience.values, "values"), experience.token_mask, experience.last_token_mask
    _, targets = over_steps(experience, credit)
    futures = experience.to_tokens(targets - experience.acting_rewards)
    rewards = experience.token_rewards + torch.where(ends, futures, 0.0)
    walls = torch.where(ends, 0.0, torch.full_like(values, credit.gamma))
    advantages, returns = gae(rewards, values, mask, walls, credit.lam)
    return Estimate(whitened(advantages, mask, experience, credit), returns, mask)
