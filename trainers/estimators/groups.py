"""Advantages without a critic: what an episode earned, compared with other episodes of the same task.

The policy gradient stays unbiased if a baseline is subtracted from the return that does not depend on the actions, and
it becomes less noisy the better that baseline predicts the return. How the policy does on this very task when it tries
again is a good prediction, and it costs nothing but more episodes. That is the idea of all four estimators here; they
differ in who is compared with whom, and in what they divide by.

Shapes: N episodes, K steps, L tokens. Groups may have any size, and their members may stand in any order.
"""

from __future__ import annotations

import torch

from agent_gym.errors import ConfigError
from agent_gym.trainers.estimators.experience import Credit, Estimate, Experience, required
from agent_gym.trainers.estimators.statistics import centre, group_size, group_std, returns_to_go

SCALES = ("group", "batch", "none")
EPSILON = 1e-4
"""What `grpo` adds to the deviation; TRL's number."""


def grpo(
    returns: torch.Tensor, groups: torch.Tensor, scale: str = "group", sources: torch.Tensor | None = None
) -> torch.Tensor:
    """Compare with the mean of the group, in units of its spread: A_i = (R_i - mean(R)) / (std(R) + 1e-4).

    Group Relative Policy Optimization, arXiv:2402.03300.

    Args:
        returns: (N,) R, what each episode earned.
        groups: (N,) which episodes answer the same task.
        scale: "group" divides by the standard deviation of the group, "batch" by that of all episodes
            (arXiv:2508.08221), "none" by nothing.
        sources: (N,) environment of each episode: "batch" then takes the episodes of the same environment, since one of
            rewards up to 100 would leave nothing of another of rewards up to 1. None for one environment.

    Returns:
        (N,) exactly 0 in groups that agree, of which a group of one is a case.

    Raises:
        ConfigError: for an unknown scale.
    """
    if scale not in SCALES:
        raise ConfigError(f"scale_rewards is {scale!r}; allowed: {', '.join(SCALES)}")
    centred = centre(returns, groups)
    if scale == "none":
        return centred
    # The spread of a small group is a poor estimate, and it is smallest where almost all agree: with 7 right and 1
    # wrong, the one gets -2.5. The batch's spread treats all tasks alike and still makes up for the size of rewards.
    batch = torch.zeros_like(groups) if sources is None else sources
    return centred / (group_std(returns, groups if scale == "group" else batch) + EPSILON)


def dr_grpo(returns: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Compare with the mean of the group and leave the units alone: A_i = R_i - mean(R).

    Dr. GRPO, arXiv:2503.20783: dividing by the spread of the group lets the tasks that are almost always or almost
    never solved steer the update. (The paper's other half, not dividing the loss by the length, is
    `loss_normalization="constant"`.)

    Args:
        returns: (N,) R.
        groups: (N,).

    Returns:
        (N,)
    """
    return centre(returns, groups)


def rloo(returns: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Compare with the mean of the others: A_i = R_i - mean of R_j over j != i.

    REINFORCE leave-one-out, arXiv:2402.14740. GRPO's mean contains the episode itself, so its baseline does depend on
    the actions that it judges, and its gradient is biased. This one's is not, and the bias turns out to be a factor: in
    a group of n episodes

        R_i - mean of R_j over j != i  =  n / (n - 1) (R_i - mean(R)).

    Args:
        returns: (N,) R.
        groups: (N,).

    Returns:
        (N,) 0 in a group of one, which has no others.
    """
    size = group_size(returns, groups)
    return centre(returns, groups) * size / (size - 1).clamp(min=1)


def remax(returns: torch.Tensor, baselines: torch.Tensor) -> torch.Tensor:
    """Compare with the greedy episode of the same task: A_i = R_i - R_greedy.

    ReMax, arXiv:2310.10505. One extra episode per task, played without sampling, is the baseline, and a single sampled
    episode is enough to learn from.

    Args:
        returns: (N,) R.
        baselines: (N,) what the greedy episode of the same task earned.

    Returns:
        (N,)
    """
    return returns - baselines


def with_process_rewards(experience: Experience, credit: Credit, advantages: torch.Tensor) -> Estimate:
    """Hand advantages to the tokens and add the process rewards that followed: A_token = A + sum_j g^(j-k) p_j, j >= k.

    The number of an episode goes to all its tokens: nobody knows which of them earned it. A process reward is known to
    the step, so it credits this step and those before it, which made it possible, and never those after it. Inside R it
    would credit them too. PRIME (arXiv:2502.01456) adds the two returns in the same way.

    Args:
        experience: the episodes.
        credit: reads `step_gamma`, g above.
        advantages: (N, 1) per episode or (N, K) per step, without the process rewards.
    """
    return Estimate(experience.to_tokens(advantages + returns_to_go(experience.process, credit.step_gamma)))


def estimate_grpo(experience: Experience, credit: Credit) -> Estimate:
    """`grpo` on the returns of episodes, plus the process rewards."""
    advantages = grpo(experience.episode_returns, experience.groups, credit.scale, experience.sources)
    return with_process_rewards(experience, credit, advantages[:, None])


def estimate_dr_grpo(experience: Experience, credit: Credit) -> Estimate:
    """`dr_grpo` on the returns of episodes, plus the process rewards."""
    advantages = dr_grpo(experience.episode_returns, experience.groups)
    return with_process_rewards(experience, credit, advantages[:, None])


def estimate_rloo(experience: Experience, credit: Credit) -> Estimate:
    """`rloo` on the returns of episodes, plus the process rewards."""
    advantages = rloo(experience.episode_returns, experience.groups)
    return with_process_rewards(experience, credit, advantages[:, None])


def estimate_remax(experience: Experience, credit: Credit) -> Estimate:
    """`remax` on the returns of episodes, plus the process rewards."""
    advantages = remax(experience.episode_returns, required(experience.baselines, "baselines"))
    return with_process_rewards(experience, credit, advantages[:, None])
