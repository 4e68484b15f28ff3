"""Sums, means and spreads over groups of numbers, and sums along time.

All of it must survive the small cases that real batches contain: a group of one, a batch in which everybody scored the
same, an episode without tokens. What cannot be computed there is 0, which for an advantage means "nothing learnt".
"""

from __future__ import annotations

import torch

WHITENING_EPSILON = 1e-8
"""What `whiten` adds to the deviation: small enough to be no setting, large enough to divide by."""


def group_sum(numbers: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Give each member the sum over its group.

    Args:
        numbers: (M,).
        groups: (M,) any integers; members of a group may stand anywhere, and groups may differ in size.

    Returns:
        (M,)
    """
    ids, index = groups.unique(return_inverse=True)
    return numbers.new_zeros(len(ids)).index_add(0, index, numbers)[index]


def group_size(numbers: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Give each member the size of its group, as a number of the same type: (M,), (M,) to (M,)."""
    return group_sum(torch.ones_like(numbers), groups)


def centre(numbers: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Subtract from each number the mean of its group: (M,), (M,) to (M,); exactly 0 in a group that agrees."""
    # The computed mean of three times 0.7 is not 0.7, and whoever divides by a deviation of about zero afterwards blows
    # that rounding up into advantages that look like something. Counted from the lowest member, a group that agrees
    # consists of zeros, whose mean is exact.
    ids, index = groups.unique(return_inverse=True)
    lowest = numbers.new_zeros(len(ids)).scatter_reduce(0, index, numbers, "amin", include_self=False)
    above = numbers - lowest[index]
    return above - group_sum(above, groups) / group_size(above, groups)


def group_std(numbers: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Give each member the unbiased standard deviation of its group: (M,), (M,) to (M,); 0 in a group of one."""
    squares = group_sum(centre(numbers, groups) ** 2, groups)
    return (squares / (group_size(numbers, groups) - 1).clamp(min=1)).sqrt()


def whiten(numbers: torch.Tensor, mask: torch.Tensor, sources: torch.Tensor | None = None) -> torch.Tensor:
    """Shift and scale the masked numbers of the whole batch to mean 0 and standard deviation 1.

    It takes no part in the theory: subtracting the mean is a crude baseline, and dividing by the deviation makes one
    learning rate and one clip range fit rewards of any size.

    Args:
        numbers: any shape.
        mask: the same shape, True where a number counts; each has one vote.
        sources: (N,) environment of each entry of the first dimension; each environment has a mean and a deviation of
            its own. None for one environment.

    Returns:
        The same shape, 0 outside the mask. A single number, or numbers that are all equal, become 0.
    """
    inside = numbers[mask]
    batch = torch.zeros_like(inside, dtype=torch.long)
    if sources is not None:
        batch = sources.view(-1, *[1] * (numbers.ndim - 1)).expand(numbers.shape)[mask]
    white = centre(inside, batch) / (group_std(inside, batch) + WHITENING_EPSILON)
    return torch.zeros_like(numbers).masked_scatter(mask, white)


def returns_to_go(rewards: torch.Tensor, gamma: float) -> torch.Tensor:
    """Sum up what is still to come: G_t = r_t + gamma G_{t+1}.

    Args:
        rewards: (N, T), 0 in padding on the right.
        gamma: discount.

    Returns:
        (N, T)
    """
    returns = torch.zeros_like(rewards)
    later = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.size(1))):
        later = returns[:, t] = rewards[:, t] + gamma * later
    return returns
