"""Process rewards brought to one scale before they are added to the outcome.

What a tool or a step pays may be 0.01 in one environment and 10 in another. The norms divide it by a size, so that one
weight balances process and outcome everywhere. They only divide, and never subtract a mean. A subtracted mean would
charge or pay every step for merely being there: the number of steps would become a reward of its own, and a lone
process reward would turn into nothing, or into its opposite.

Shapes: N episodes, K steps.
"""

from __future__ import annotations

import torch

from agent_gym.errors import ConfigError
from agent_gym.trainers.estimators.groups import group_sum, returns_to_go

PROCESS_NORMS = ("none", "trajectory", "group", "batch", "prime")
EPSILON = 1e-8


def normalize_process(
    process: torch.Tensor,
    step_mask: torch.Tensor,
    groups: torch.Tensor,
    truncated: torch.Tensor,
    norm: str,
    step_gamma: float,
    sources: torch.Tensor | None = None,
) -> torch.Tensor:
    """Take back what stalling earned, then divide by a size.

    First of all, an episode that we had to stop keeps no positive process reward; negative ones stay. Otherwise one
    more paid tool call would always beat an answer that may be wrong, up to the limit of steps.

    Then, with p what is left:

        none        p
        trajectory  p / root mean square of the trajectory's process rewards
        group       p / the same over all episodes of the task
        batch       p / the same over all episodes of the environment
        prime       p / max_k |p_k + step_gamma p_{k+1} + ...| of the trajectory (after PRIME, arXiv:2502.01456)

    The mean runs over the steps that have a process reward. Over all steps, each step that earns nothing would lower it
    and so raise the worth of the others: the number of steps would pay again.

    "prime" bounds what process rewards add to an advantage to [-1, 1], however many there are. Agent-R1 divides by the
    maximum of the whole batch instead, so there the scale of an episode depends on who else is in the batch.

    Args:
        process: (N, K) process reward of each step.
        step_mask: (N, K) True where there is a step.
        groups: (N,) which episodes answer the same task.
        truncated: (N,) True where we stopped the episode.
        norm: one of `PROCESS_NORMS`.
        step_gamma: discount per step.
        sources: (N,) environment of each episode, None for one environment.

    Returns:
        (N, K) of the same sign as what is left after the first rule, 0 in padding.

    Raises:
        ConfigError: for an unknown norm.
    """
    if norm not in PROCESS_NORMS:
        raise ConfigError(f"process_norm is {norm!r}; allowed: {', '.join(PROCESS_NORMS)}")
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
    return left / (size + EPSILON)[:, None]
