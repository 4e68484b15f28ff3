"""Advantages: how much better an episode was than could be expected.

Shapes: N episodes in groups of G that answer the same task, group after group; T tokens of a row. A return is NaN
when the episode could not be scored (its machinery broke), which is not the same as 0.
"""

from __future__ import annotations

import torch

from agent_gym.errors import ConfigError

SCALES = ("group", "batch", "none")


def group_advantages(returns: torch.Tensor, group_size: int, scale: str = "group") -> torch.Tensor:
    """Score each episode against its siblings.

    Args:
        returns: (N,) total reward per episode, NaN for a failed one.
        group_size: G; N is a multiple of it.
        scale: "group" divides by the standard deviation of the group (GRPO, arXiv:2402.03300), "batch" by that of all
            episodes (arXiv:2508.08221), "none" does not divide (Dr. GRPO, arXiv:2503.20783).

    Returns:
        (N,) advantages; 0 for failed episodes and for groups that agree.

    Raises:
        ConfigError: for an unknown scale.
    """
    if scale not in SCALES:
        raise ConfigError(f"scale_rewards is {scale!r}; allowed: {', '.join(SCALES)}")
    groups = returns.view(-1, group_size)
    # The siblings are the critic. Whatever does not depend on the action may be subtracted without biasing the
    # gradient, and how the policy usually does on this very task is the best cheap guess. The mean skips failed
    # episodes: one crashed environment would otherwise turn its whole group into NaN.
    centred = groups - torch.nanmean(groups, dim=1, keepdim=True)
    if scale == "group":
        centred = centred / (nan_std(groups, dim=1) + 1e-4)
    elif scale == "batch":
        centred = centred / (nan_std(groups.reshape(1, -1), dim=1) + 1e-4)
    # A group that agrees teaches nothing. Its mean differs from its members by rounding, which a standard deviation of
    # about zero would blow up into advantages that look like something.
    lowest = groups.nan_to_num(nan=torch.inf).amin(dim=1, keepdim=True)
    highest = groups.nan_to_num(nan=-torch.inf).amax(dim=1, keepdim=True)
    centred = torch.where(highest > lowest, centred, torch.zeros_like(centred))
    return torch.nan_to_num(centred, nan=0.0).view(-1)


def nan_std(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Unbiased standard deviation that skips NaN; 0 where fewer than two values are left.

    Args:
        values: any shape.
        dim: the dimension to reduce; it is kept with size 1.
    """
    count = (~values.isnan()).sum(dim, keepdim=True)
    squared = (values - torch.nanmean(values, dim=dim, keepdim=True)) ** 2
    variance = torch.nansum(squared, dim=dim, keepdim=True) / (count - 1).clamp(min=1)
    return torch.where(count > 1, variance, torch.zeros_like(variance)).sqrt()
