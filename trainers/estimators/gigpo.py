"""GiGPO (arXiv:2505.10978): groups inside groups, so that steps are compared without a critic.

Episodes of the same task start in the same state and often come back to states that others have seen. Two steps taken
in the same state are two answers to the same question, just as two episodes are two answers to the same task. What
they earned from there on can be compared in the same way, without playing anything twice.
"""

from __future__ import annotations

import torch

from agent_gym.trainers.estimators.experience import Credit, Estimate, Experience, required
from agent_gym.trainers.estimators.groups import grpo, with_process_rewards
from agent_gym.trainers.estimators.statistics import returns_to_go


def gigpo(
    returns: torch.Tensor,
    step_rewards: torch.Tensor,
    anchors: torch.Tensor,
    step_mask: torch.Tensor,
    groups: torch.Tensor,
    *,
    scale: str,
    step_gamma: float,
    step_weight: float,
    sources: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compare episodes of a task, and steps from a state: A_ik = grpo(R)_i + w grpo(G)_ik.

    G_ik = r_ik + step_gamma G_i,k+1 is what episode i earned from its step k on. The second comparison runs over all
    steps with the same anchor in the same group of episodes, those of one episode included: who walks in a circle comes
    back to a state, and the step that walked into the circle is further from the reward than the one that left it. A
    state that was met once gives 0, so without common states this is GRPO.

    Args:
        returns: (N,) R, what each episode earned.
        step_rewards: (N, K) r, what each step earned.
        anchors: (N, K) integers; equal numbers are equal states.
        step_mask: (N, K) True where there is a step.
        groups: (N,) which episodes answer the same task.
        scale: what both comparisons divide by, see `grpo`. The paper has "group" and "none".
        step_gamma: discount per step; below 1 it prefers the shorter way; with 1 a circle costs nothing.
        step_weight: w.
        sources: (N,) environment of each episode, for the scale "batch"; see `grpo`.

    Returns:
        (N, K), with the episode's number alone in padding.

    Raises:
        ConfigError: for an unknown scale.
    """
    scores = returns_to_go(step_rewards, step_gamma)
    tasks = groups[:, None].expand_as(anchors)
    pairs = torch.stack([tasks[step_mask], anchors[step_mask]], dim=1)
    _, states = pairs.unique(dim=0, return_inverse=True)
    of_steps = None if sources is None else sources[:, None].expand_as(anchors)[step_mask]
    per_step = torch.zeros_like(scores).masked_scatter(step_mask, grpo(scores[step_mask], states, scale, of_steps))
    return grpo(returns, groups, scale, sources)[:, None] + step_weight * per_step


def estimate_gigpo(experience: Experience, credit: Credit) -> Estimate:
    """`gigpo`, plus the process rewards: like the outcome they count in both comparisons.

    Left to the step groups alone they would vanish wherever a state is met once; so it is GRPO with a step's share.
    """
    advantages = gigpo(
        experience.episode_returns,
        experience.step_rewards,
        required(experience.anchors, "anchors"),
        experience.step_mask,
        experience.groups,
        scale=credit.scale,
        step_gamma=credit.step_gamma,
        step_weight=credit.step_weight,
        sources=experience.sources,
    )
    return with_process_rewards(experience, credit, advantages)
