"""REINFORCE++ (arXiv:2501.03262): the return itself, normalised over the whole batch instead of within a task.

A mean and a deviation over hundreds of numbers are better estimates than those over a group of eight, and no task gets
a larger say because its group happened to agree.

Shapes: N episodes, L tokens.
"""

from __future__ import annotations

import torch

from agent_gym.trainers.estimators.experience import Credit, Estimate, Experience
from agent_gym.trainers.estimators.groups import with_process_rewards
from agent_gym.trainers.estimators.statistics import centre, returns_to_go, whiten


def reinforce_pp(
    rewards: torch.Tensor,
    mask: torch.Tensor,
    gamma: float,
    whitened: bool = True,
    sources: torch.Tensor | None = None,
) -> torch.Tensor:
    """Score each token by what came after it: A_t = r_t + gamma A_{t+1}, then whitened over all tokens of the batch.

    Only later rewards count, since a token cannot have caused earlier ones. There is no baseline but the batch's mean,
    so one episode per task is enough, and a hard task looks like bad play.

    Args:
        rewards: (N, L) per token, 0 in padding on the right.
        mask: (N, L) True where there is a token.
        gamma: discount per token.
        whitened: whether to whiten.
        sources: (N,) environment of each episode, see `whiten`.

    Returns:
        (N, L)
    """
    returns = returns_to_go(rewards, gamma)
    return whiten(returns, mask, sources) if whitened else returns


def reinforce_pp_baseline(
    returns: torch.Tensor, groups: torch.Tensor, whitened: bool = True, sources: torch.Tensor | None = None
) -> torch.Tensor:
    """Compare with the mean of the group, in units of the whole batch: A = whiten(R - mean of the group).

    The group makes up for hard tasks, as in GRPO, but it is not asked for the unit. Against `grpo` with the scale
    "batch": here the spread is measured after the difficulty of the tasks was taken out. One vote per episode; an
    average over tokens would let long episodes set the unit.

    Args:
        returns: (N,) what each episode earned.
        groups: (N,) which episodes answer the same task.
        whitened: whether to whiten.
        sources: (N,) environment of each episode, see `whiten`.

    Returns:
        (N,)
    """
    centred = centre(returns, groups)
    return whiten(centred, torch.ones_like(groups, dtype=torch.bool), sources) if whitened else centred


def estimate_reinforce_pp(experience: Experience, credit: Credit) -> Estimate:
    """`reinforce_pp` on all rewards, those of the way included, at the tokens that earned them."""
    rewards, mask = experience.token_rewards, experience.token_mask
    return Estimate(reinforce_pp(rewards, mask, credit.gamma, credit.whiten, experience.sources))


def estimate_reinforce_pp_baseline(experience: Experience, credit: Credit) -> Estimate:
    """`reinforce_pp_baseline` on the returns of episodes, plus the process rewards."""
    returns, groups = experience.episode_returns, experience.groups
    advantages = reinforce_pp_baseline(returns, groups, credit.whiten, experience.sources)
    return with_process_rewards(experience, credit, advantages[:, None])
