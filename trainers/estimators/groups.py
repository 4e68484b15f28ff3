"""Advantages without a critic: what an episode earned, compared with other episodes.

The policy gradient stays unbiased if a baseline is subtracted from the return that does not depend on the actions, and
it becomes less noisy the better that baseline predicts the return. How the policy does on this very task when it tries
again is a good prediction, and it costs nothing but more episodes. That is the idea of `grpo`, `dr_grpo`, `rloo` and
`remax`; they differ in who is compared with whom, and in what they divide by. `gigpo` compares steps, too. REINFORCE++
normalises over the whole batch instead of within a task.

Shapes: N episodes, K steps, L tokens. Groups may have any size, and their members may stand in any order. What cannot
be computed in a small case (a group of one, a batch that agrees, an episode without tokens) is 0, which for an
advantage means "nothing learnt".
"""

from __future__ import annotations

import torch

from agent_gym.errors import ConfigError
from agent_gym.trainers.credit import Credit, Estimate, Experience, required

SCALES = ("group", "batch", "none")
EPSILON = 1e-4
"""What `grpo` adds to the deviation; TRL's number."""
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
    """Compare episodes of a task, and steps from a state: A_ik = grpo(R)_i + w grpo(G)_ik (GiGPO, arXiv:2505.10978).

    Episodes of the same task start in the same state and often come back to states that others have seen. Two steps
    taken in the same state are two answers to the same question, just as two episodes are two answers to the same task.

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


def reinforce_pp(
    rewards: torch.Tensor,
    mask: torch.Tensor,
    gamma: float,
    whitened: bool = True,
    sources: torch.Tensor | None = None,
) -> torch.Tensor:
    """Score each token by what came after it: A_t = r_t + gamma A_{t+1}, then whitened over all tokens of the batch.

    REINFORCE++, arXiv:2501.03262. A mean and a deviation over hundreds of numbers are better estimates than those over
    a group of eight, and no task gets a larger say because its group happened to agree.

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
