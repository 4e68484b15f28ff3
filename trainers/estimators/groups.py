"""Advantages without a critic: the return of an episode, compared with other episodes.

`grpo`, `dr_grpo`, `rloo` and `remax` take the baseline from other attempts at the same task. They differ in the
episodes that they compare, and in the divisor. `gigpo` also compares steps. REINFORCE++ normalises over the batch, and
`rae` compares with the earlier returns of the same role.

Shapes: N episodes, K steps, L tokens. Groups may have any size, and their members may be in any order. If a small case
cannot be computed (a group of one, a batch of equal returns, an episode without tokens), the result is 0, which for an
advantage means "nothing learnt". R is `Experience.episode_returns`, (N,).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from agent_gym.errors import ConfigError
from agent_gym.trainers.credit import (
    TINY,
    Credit,
    Estimate,
    Experience,
    centre,
    group_size,
    group_std,
    no_gather,
    required,
    returns_to_go,
)

SCALES = ("group", "batch", "none")
EPSILON = 1e-4
"""`grpo` adds this to the standard deviation; the number is TRL's."""
DECAY = 0.95
"""The decay of the running means of `rae`; the number is SPIRAL's."""


def whiten(
    numbers: torch.Tensor,
    mask: torch.Tensor,
    sources: torch.Tensor | None = None,
    gather: Callable[[Any], list[Any]] = no_gather,
) -> torch.Tensor:
    """Shift and scale the masked numbers of the whole batch to mean 0 and standard deviation 1.

    The mean and the deviation are over all ranks. They are computed from the moments of each rank (Chan, Golub,
    LeVeque, 1979), so the numbers themselves are not sent.

    Args:
        numbers: (N, ...).
        mask: the same shape, True where a number counts; each has one vote.
        sources: (N,) environment of each entry of the first dimension; each environment has a separate mean and
            deviation. None for one environment.
        gather: returns the values of all ranks.

    Returns:
        The same shape, 0 outside the mask. A single number, or numbers that are all equal, become 0.
    """
    sources = torch.zeros(len(numbers), dtype=torch.long) if sources is None else sources
    own = sources.view(-1, *[1] * (numbers.ndim - 1)).expand(numbers.shape)[mask]
    inside = numbers[mask]
    moments: dict[int, tuple[float, float, float]] = {}  # of each source: count, mean, sum of squares around it
    for source in own.unique().tolist():
        values = inside[own == source]
        centred = centre(values, torch.zeros_like(values, dtype=torch.long))
        moments[source] = len(values), float(values[0] - centred[0]), float((centred**2).sum())
    everywhere = gather(moments)
    white = torch.zeros_like(inside)
    for source in moments:
        count, mean, squares = functools.reduce(_joined, (part[source] for part in everywhere if source in part))
        deviation = math.sqrt(squares / max(1.0, count - 1))
        white[own == source] = (inside[own == source] - mean) / (deviation + TINY)
    return torch.zeros_like(numbers).masked_scatter(mask, white)


def whitened(numbers: torch.Tensor, mask: torch.Tensor, experience: Experience, credit: Credit) -> torch.Tensor:
    """`whiten` over the batch that contains an experience, if the settings enable it."""
    return whiten(numbers, mask, experience.sources, experience.gather) if credit.whiten else numbers


def _joined(one: tuple[float, float, float], other: tuple[float, float, float]) -> tuple[float, float, float]:
    (n, mean, squares), (m, other_mean, other_squares) = one, other
    apart = other_mean - mean
    return n + m, mean + apart * m / (n + m), squares + other_squares + apart**2 * n * m / (n + m)


def grpo(
    returns: torch.Tensor, groups: torch.Tensor, scale: str = "group", sources: torch.Tensor | None = None
) -> torch.Tensor:
    """Compare with the mean of the group, in units of its spread: A_i = (R_i - mean(R)) / (std(R) + 1e-4).

    Group Relative Policy Optimization, arXiv:2402.03300. Raises `ConfigError` for an unknown scale.

    Args:
        returns: (N,) R, the return of each episode.
        groups: (N,) equal for the episodes of one task.
        scale: "group" divides by the standard deviation of the group, "batch" by that of all episodes of the same
            environment (arXiv:2508.08221), "none" by nothing.
        sources: (N,) environment of each episode. None for one environment.

    Returns:
        (N,) exactly 0 in groups of equal returns, such as a group of one.
    """
    if scale not in SCALES:
        raise ConfigError(f"scale_rewards is {scale!r}; allowed: {', '.join(SCALES)}")
    centred = centre(returns, groups)
    if scale == "none":
        return centred
    # The spread of a small group is a poor estimate, and it is smallest where almost all returns are equal: with 7
    # right and 1 wrong, the wrong one gets -2.5. The spread of the batch treats all tasks alike and still normalises
    # the size of rewards.
    batch = torch.zeros_like(groups) if sources is None else sources
    return centred / (group_std(returns, groups if scale == "group" else batch) + EPSILON)


def with_process_rewards(experience: Experience, credit: Credit, advantages: torch.Tensor) -> Estimate:
    """Give the advantages to the tokens and add the later process rewards: A_token = A + sum_j g^(j-k) p_j, j >= k.

    A process reward credits its step and the earlier steps, which made it possible, and no later step. PRIME
    (arXiv:2502.01456) adds the two returns in the same way. g is `credit.step_gamma`; `advantages` are (N,) per episode
    or (N, K) per step, without the process rewards.
    """
    per_step = advantages[:, None] if advantages.ndim == 1 else advantages
    return Estimate(experience.to_tokens(per_step + returns_to_go(experience.process, credit.step_gamma)))


def estimate_grpo(experience: Experience, credit: Credit) -> Estimate:
    """`grpo` on the returns of episodes, plus the process rewards."""
    advantages = grpo(experience.episode_returns, experience.groups, credit.scale, experience.sources)
    return with_process_rewards(experience, credit, advantages)


def dr_grpo(experience: Experience, credit: Credit) -> Estimate:
    """Compare with the mean of the group without scaling: A_i = R_i - mean(R), plus the process rewards.

    Dr. GRPO, arXiv:2503.20783: a division by the spread of the group gives the most weight to tasks that are almost
    always or almost never solved. The paper's other half is `loss_normalization="constant"`.
    """
    return with_process_rewards(experience, credit, centre(experience.episode_returns, experience.groups))


def rloo(experience: Experience, credit: Credit) -> Estimate:
    """Compare with the mean of the others: A_i = R_i - mean of R_j over j != i, plus the process rewards.

    REINFORCE leave-one-out, arXiv:2402.14740. GRPO's mean contains the episode itself, which biases its gradient. The
    bias is a factor: in a group of n episodes

        R_i - mean of R_j over j != i  =  n / (n - 1) (R_i - mean(R)).

    A group of one has no others, and gets 0.
    """
    returns, groups = experience.episode_returns, experience.groups
    size = group_size(returns, groups)
    return with_process_rewards(experience, credit, centre(returns, groups) * size / (size - 1).clamp(min=1))


def remax(experience: Experience, credit: Credit) -> Estimate:
    """Compare with the greedy episode of the same task: A_i = R_i - R_greedy, plus the process rewards.

    ReMax, arXiv:2310.10505.
    """
    advantages = experience.episode_returns - required(experience.baselines, "baselines")
    return with_process_rewards(experience, credit, advantages)


def gigpo(experience: Experience, credit: Credit) -> Estimate:
    """Compare episodes of a task, and steps from a state: A_ik = grpo(R)_i + grpo(G)_ik (GiGPO, arXiv:2505.10978).

    G_ik = r_ik + step_gamma G_i,k+1 is the return of episode i from its step k on, process rewards included. It is
    compared over all steps with the same anchor in the same group of episodes, steps of one episode included: a step
    that enters a circle is further from the reward than the step that leaves it. A state that was met once gives 0, so
    without common states this is GRPO.

    Reads `scale` (the paper has "group" and "none") and `step_gamma` (below 1 it prefers the shorter way; with 1 a
    circle costs nothing).
    """
    anchors, mask = required(experience.anchors, "anchors"), experience.step_mask
    scores = returns_to_go(experience.step_rewards, credit.step_gamma)
    tasks = experience.groups[:, None].expand_as(anchors)
    _, states = torch.stack([tasks[mask], anchors[mask]], dim=1).unique(dim=0, return_inverse=True)
    sources = None if experience.sources is None else experience.sources[:, None].expand_as(anchors)[mask]
    of_steps = torch.zeros_like(scores).masked_scatter(mask, grpo(scores[mask], states, credit.scale, sources))
    of_episodes = grpo(experience.episode_returns, experience.groups, credit.scale, experience.sources)
    return with_process_rewards(experience, credit, of_episodes[:, None] + of_steps)


def reinforce_pp(experience: Experience, credit: Credit) -> Estimate:
    """Score each token by its return: A_t = r_t + gamma A_{t+1}, then whitened over all tokens of the batch.

    REINFORCE++, arXiv:2501.03262. The only baseline is the mean of the batch, so one episode per task is enough, and a
    hard task looks like bad play. Process rewards are at the tokens that earned them.
    """
    returns = returns_to_go(experience.token_rewards, credit.gamma)
    return Estimate(whitened(returns, experience.token_mask, experience, credit))


def reinforce_pp_baseline(experience: Experience, credit: Credit) -> Estimate:
    """Compare with the mean of the group, in units of the whole batch: whiten(R - mean(R)), plus the process rewards.

    Unlike `grpo` with the scale "batch", it measures the spread after the difficulty of the tasks was subtracted. Each
    episode has one vote; with an average over tokens, long episodes would set the unit.
    """
    advantages = centre(experience.episode_returns, experience.groups)
    advantages = whitened(advantages, torch.ones_like(advantages, dtype=torch.bool), experience, credit)
    return with_process_rewards(experience, credit, advantages)


def rae(experience: Experience, credit: Credit) -> Estimate:
    """Compare with a running mean of the same role in the same game: A_i = R_i - b, plus the process rewards.

    Role-conditioned advantage estimation (SPIRAL, arXiv:2506.24119). In self-play the roles of a game earn different
    amounts however well they are played, and the mean of a group of games is the same for both. Each role has a
    separate b, 0 at first. After each episode b <- 0.95 b + 0.05 R_i. As in SPIRAL's program, b is read before it is
    updated, so no episode is compared with itself. Episodes count in the order of their numbers.

    Reads and updates `running_means`, by number of the source, which `source_number` makes of environment and role.
    """
    means, returns = required(experience.running_means, "running_means"), experience.episode_returns
    sources = torch.zeros_like(experience.groups) if experience.sources is None else experience.sources
    advantages = torch.zeros_like(returns)
    for i, (source, earned) in enumerate(zip(sources.tolist(), returns.tolist(), strict=True)):
        before = means.get(str(source), 0.0)
        advantages[i] = earned - before
        means[str(source)] = DECAY * before + (1 - DECAY) * earned
    return with_process_rewards(experience, credit, advantages)
