"""Sums and means over groups of episodes or steps, returns over later steps, and one scale for process rewards.

These are pure functions of tensors, which credit.py and the estimators use. Groups are any integers, in any order.
"""

from __future__ import annotations

import torch

TINY = 1e-8
"""`whiten` and `normalize_process` add this to a divisor; it is too small to be a setting."""


def group_sum(numbers: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Give each member the sum over its group: (M,), (M,) to (M,). Groups are any integers, in any order."""
    ids, index = groups.unique(return_inverse=True)
    return numbers.new_zeros(len(ids)).index_add(0, index, numbers)[index]


def group_size(numbers: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Give each member the size of its group, as a number of the same type: (M,), (M,) to (M,)."""
    return group_sum(torch.ones_like(numbers), groups)


def centre(numbers: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Subtract from each number the mean of its group: (M,), (M,) to (M,); exactly 0 in a group of equal numbers."""
    # The computed mean of three times 0.7 is not 0.7, and a later division by a deviation near zero turns that rounding
    # error into large advantages. After subtraction of the lowest member, a group of equal numbers consists of zeros,
    # whose mean is exact.
    ids, index = groups.unique(return_inverse=True)
    lowest = numbers.new_zeros(len(ids)).scatter_reduce(0, index, numbers, "amin", include_self=False)
    above = numbers - lowest[index]
    return above - group_sum(above, groups) / group_size(above, groups)


def group_std(numbers: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Give each member the unbiased standard deviation of its group: (M,), (M,) to (M,); 0 in a group of one."""
    squares = group_sum(centre(numbers, groups) ** 2, groups)
    return (squares / (group_size(numbers, groups) - 1).clamp(min=1)).sqrt()


def returns_to_go(rewards: torch.Tensor, gamma: float) -> torch.Tensor:
    """Sum the present and later rewards, G_t = r_t + gamma G_{t+1}: (N, T), 0 in padding on the right, to (N, T)."""
    returns = torch.zeros_like(rewards)
    later = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.size(1))):
        later = returns[:, t] = rewards[:, t] + gamma * later
    return returns


def normalize_process(
    process: torch.Tensor,
    step_mask: torch.Tensor,
    groups: torch.Tensor,
    truncated: torch.Tensor,
    norm: str,
    step_gamma: float,
    sources: torch.Tensor | None = None,
) -> torch.Tensor:
    """Bring process rewards to one scale: remove the gain from stalling, then divide by a size.

    A mean is never subtracted, because every step would then be paid or charged for its mere presence. A truncated
    episode keeps no positive process reward; negative ones are kept. Otherwise one more paid tool call would always
    beat an answer that may be wrong, up to the limit of steps. Let p be the process rewards after this first rule:

        none        p
        trajectory  p / root mean square of the trajectory's process rewards
        group       p / the same over all episodes of the task
        batch       p / the same over all episodes of the environment
        prime       p / max_k |p_k + step_gamma p_{k+1} + ...| of the trajectory (after PRIME, arXiv:2502.01456)

    The mean is over the steps that have a process reward: with a mean over all steps, more steps would again be paid.
    "prime" bounds the sum of process rewards in an advantage to [-1, 1], however many there are.

    Args:
        process: (N, K) process reward of each step.
        step_mask: (N, K) True where there is a step.
        groups: (N,) equal for the episodes of one task.
        truncated: (N,) True where a limit truncated the episode.
        norm: the choice above.
        step_gamma: discount per step.
        sources: (N,) environment of each episode, None for one environment.

    Returns:
        (N, K) of the same sign as the process rewards after the first rule, 0 in padding.
    """
    left = torch.where(step_mask, process, 0.0)
    left = torch.where(truncated[:, None], left.clamp(max=0.0), left)
    if norm == "none" or not left.numel():
        return left
    if norm == "prime":
        size = returns_to_go(left, step_gamma).abs().amax(1)
    else:
        batch = torch.zeros_like(groups) if sources is None else sources
        scopes = {"trajectory": torch.arange(len(groups)), "group": groups, "batch": batch}
        counts = group_sum((left != 0).to(left).sum(1), scopes[norm])
        size = (group_sum((left**2).sum(1), scopes[norm]) / counts.clamp(min=1)).sqrt()
    return left / (size + TINY)[:, None]
