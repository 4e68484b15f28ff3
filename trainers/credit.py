"""Credit: from the rewards of a rollout to the advantage of each sampled token.

    TrainingEpisode (rewards, flags) + batch (values, KL)  ->  Experience of this rank
      -> a number per step of all ranks  ->  process rewards normalised  ->  estimator  ->  this rank's rows

Episodes are compared with episodes of other ranks, for which a number per step is enough. Every rank computes the
comparison for all episodes, so the result does not depend on how episodes are shared. An estimator that reads single
tokens gets the tokens of its rank, and the moments of all ranks. An estimator reads an `Experience`, which leaves out
the rows, their padding, and the tokens of the environment. The tokens of an episode are in the order of sampling, even
if its context was rewritten and it has several rows.

Shapes: N episodes, K steps of the longest, L sampled tokens of the longest; (B, T) is a batch of rows. The tensors of
an `Experience` are padded on the right, are on the CPU, and are float64: they are small, and a recursion over thousands
of tokens accumulates rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn.functional import pad

from agent_gym.errors import ConfigError
from agent_gym.trainers.batch import Batch, TrainingEpisode

Field = TypeVar("Field")

TINY = 1e-8
"""`whiten` and `normalize_process` add this to a divisor; it is too small to be a setting."""


def no_gather(mine: Any) -> list[Any]:
    """Gather a value from all ranks where there is only one rank."""
    return [mine]


@dataclass(slots=True)
class Experience:
    """N finished episodes. A failed episode has no reward, not even 0; it is left out, so NaN does not occur."""

    outcome: torch.Tensor  # (N, K) reward of each step without its process rewards, 0 in padding
    process: torch.Tensor  # (N, K) process reward of each step, already normalised, 0 in padding
    penalty: torch.Tensor  # (N, L) reward per token: the KL penalty where it is part of the reward, else 0
    step_mask: torch.Tensor  # (N, K) True where there is a step
    token_mask: torch.Tensor  # (N, L) True where there is a token
    step_of: torch.Tensor  # (N, L) index of the step that sampled the token, rising along L; 0 in padding
    terminated: torch.Tensor  # (N,) True where the task itself ended; False where a limit truncated the episode
    groups: torch.Tensor  # (N,) equal for the episodes of one task
    values: torch.Tensor | None = None  # (N, L) critic's value of the state before each token, None without a critic
    # (N, K) number of the state in which each step was taken; equal states have equal numbers (GiGPO).
    anchors: torch.Tensor | None = None
    baselines: torch.Tensor | None = None  # (N,) return of a greedy episode of the same task (ReMax), None without one
    # (N,) number of each episode's environment, None if there is only one. A scale over the batch is a scale over the
    # episodes of the same environment.
    sources: torch.Tensor | None = None
    successes: torch.Tensor | None = None  # (N,) True where the episode solved its task (RAFT)
    # The mean return of each source so far, by its number as a text, because JSON keys are texts; `rae` updates it.
    running_means: dict[str, float] | None = None

    # Returns the values of all ranks, for an estimator that needs facts about the tokens of other ranks.
    gather: Callable[[Any], list[Any]] = no_gather

    def __post_init__(self) -> None:
        for name in ("outcome", "process", "penalty", "values", "baselines"):
            if (given := getattr(self, name)) is not None:
                setattr(self, name, given.double())

    @property
    def episode_returns(self) -> torch.Tensor:
        """(N,) return of each episode, without its process rewards."""
        return (self.outcome + self._sum_to_steps(self.penalty)).sum(1)

    @property
    def step_rewards(self) -> torch.Tensor:
        """(N, K) all rewards of each step."""
        return self.outcome + self.process + self._sum_to_steps(self.penalty)

    @property
    def token_rewards(self) -> torch.Tensor:
        """(N, L) the same rewards per token: the reward of a step is at its last token.

        A reward at a masked token would be lost. So the reward of a step without tokens goes to the last token before
        it, or to the first token if none is before it.
        """
        # (N, K) number of tokens sampled up to the end of each step.
        ends = torch.zeros_like(self.outcome).scatter_add(1, self.step_of, self.token_mask.double()).cumsum(1).long()
        last = (ends - 1).clamp(min=0)
        rewards = torch.zeros_like(self.penalty)
        if self.outcome.size(1) and rewards.size(1):
            rewards.scatter_add_(1, last, (self.outcome + self.process) * self.step_mask)
        return (rewards + self.penalty) * self.token_mask

    @property
    def acting_steps(self) -> torch.Tensor:
        """(N, K) True at steps that sampled at least one token."""
        return self._sum_to_steps(torch.ones_like(self.penalty)) > 0

    @property
    def acting_rewards(self) -> torch.Tensor:
        """(N, K) `token_rewards` summed over each step; 0 at steps without tokens, whose reward a neighbour has."""
        return self._sum_to_steps(self.token_rewards)

    @property
    def first_token_mask(self) -> torch.Tensor:
        """(N, L) True at the first token of each step."""
        return self.token_mask & (self.step_of != pad(self.step_of[:, :-1], (1, 0), value=-1))

    @property
    def last_token_mask(self) -> torch.Tensor:
        """(N, L) True at the last token of each step."""
        following = torch.where(self.token_mask, self.step_of, -1)[:, 1:]
        return self.token_mask & (self.step_of != pad(following, (0, 1), value=-1))

    def by_steps(self) -> Experience:
        """Keep one token of each step that has tokens: comparisons of episodes and of steps read nothing else."""
        steps = torch.arange(self.outcome.size(1)).expand(self.outcome.shape)
        penalty = self._sum_to_steps(self.penalty)
        return replace(self, penalty=penalty, token_mask=self.acting_steps, step_of=steps, values=None)

    def to_tokens(self, per_step: torch.Tensor) -> torch.Tensor:
        """Give each token the number of its step: (N, K) to (N, L), 0 in padding."""
        return torch.where(self.token_mask, per_step.gather(1, self.step_of), 0.0)

    def to_steps(self, per_token: torch.Tensor) -> torch.Tensor:
        """Read a number at the first token of each step: (N, L) to (N, K), 0 for steps without tokens."""
        return self._sum_to_steps(per_token * self.first_token_mask)

    def _sum_to_steps(self, per_token: torch.Tensor) -> torch.Tensor:
        """Sum tokens to steps: (N, L) to (N, K), without padding."""
        return torch.zeros_like(self.outcome).scatter_add(1, self.step_of, per_token * self.token_mask)


def required(tensor: Field | None, name: str) -> Field:
    """Return an optional field of an `Experience`; raise `ConfigError` if it is None."""
    if tensor is None:
        raise ConfigError(
            f"this advantage estimator reads Experience.{name}, which is None; fill it in, or choose an estimator that "
            "does without (see ESTIMATORS)"
        )
    return tensor


@dataclass(slots=True)
class Estimate:
    """The result of an estimator: (N, L) advantages, 0 in padding.

    With a critic also (N, L) `returns`, the targets of its values, and `value_mask`, True where the values are trained.
    """

    advantages: torch.Tensor
    returns: torch.Tensor | None = None
    value_mask: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Credit:
    """The settings of the estimators; each estimator reads some of them."""

    gamma: float = 1.0  # discount per token
    lam: float = 1.0  # lambda of the GAE over tokens
    step_gamma: float = 1.0  # discount per step
    step_lam: float = 1.0  # lambda of the GAE over steps
    scale: str = "group"  # `grpo` and `gigpo` divide by the standard deviation of the "group", the "batch", or "none"
    # Whether the estimators with a critic and the two of REINFORCE++ whiten their advantages: to mean 0 and deviation 1
    # over the batch. In a mixture the batch is the episodes of the same environment, here and in `scale`.
    whiten: bool = True


class Estimator(NamedTuple):
    """An estimator and its needs: a critic, several episodes of a task, a greedy episode, or running means.

    An estimator that `reads_tokens` gets the tokens of this rank's episodes. Any other estimator gets the episodes of
    all ranks `by_steps`, and its advantages are the same for all tokens of a step.
    """

    estimate: Callable[[Experience, Credit], Estimate]
    reads_tokens: bool = False
    needs_critic: bool = False
    needs_groups: bool = False
    needs_baseline: bool = False
    needs_means: bool = False
    reads_rewards: bool = True  # False if only success counts
    loss: str | None = None  # the `loss_type` that it prescribes; None for the one in the settings


class Timeline:
    """The sampled tokens of N episodes in the order of sampling, as a map between rows and episodes.

    `read` maps rows (B, T), as `collate` makes them, to the sampled tokens (N, L), and `write` maps them back.
    """

    def __init__(self, batch: Batch, n_episodes: int) -> None:
        # By episode, then by step; all tokens of a step are in one row, in order.
        mask, owner = batch["action_mask"], batch["episode_of"]
        self._shape = mask.shape
        rows, columns = mask.nonzero(as_tuple=True)
        episodes, steps = owner[rows], batch["step_of"][rows, columns].long()
        order = torch.argsort(steps, stable=True)
        order = order[torch.argsort(episodes[order], stable=True)]
        rows, columns, episodes, steps = (column[order] for column in (rows, columns, episodes, steps))
        lengths = torch.bincount(episodes, minlength=n_episodes)
        place = torch.arange(len(episodes)) - (lengths.cumsum(0) - lengths)[episodes]
        width = int(lengths.max()) if n_episodes else 0
        self.mask = torch.arange(width) < lengths[:, None]  # (N, L) True where there is a token
        self.step_of = torch.zeros(n_episodes, width, dtype=torch.long)  # (N, L) the step that sampled it, or 0
        self.step_of[episodes, place] = steps
        self._position = torch.zeros(n_episodes, width, dtype=torch.long)
        self._position[episodes, place] = rows * self._shape[1] + columns

    def read(self, per_position: torch.Tensor) -> torch.Tensor:
        """Map (B, T) numbers of a batch to (N, L) float64 numbers of its sampled tokens, 0 in padding."""
        numbers = per_position.to(torch.float64).reshape(-1)[self._position]
        return torch.where(self.mask, numbers, 0.0)

    def write(self, per_token: torch.Tensor) -> torch.Tensor:
        """Map (N, L) numbers of sampled tokens to (B, T) numbers of a batch, 0 or False at all other tokens."""
        laid = torch.zeros(self._shape.numel(), dtype=per_token.dtype)
        laid[self._position[self.mask]] = per_token[self.mask]
        return (laid if laid.dtype == torch.bool else laid.float()).view(self._shape)


def experience(episodes: Sequence[TrainingEpisode], timeline: Timeline, **known: torch.Tensor | None) -> Experience:
    """Collect the N episodes of this rank, and the `known` numbers of their tokens: penalty, values."""
    width = max((len(episode.outcome) for episode in episodes), default=0)

    def stack(columns: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
        rows = [[*column, *[0] * (width - len(column))] for column in columns]
        return torch.tensor(rows, dtype=dtype).view(len(rows), width)

    return Experience(
        outcome=stack([episode.outcome for episode in episodes], torch.float64),
        process=stack([episode.process for episode in episodes], torch.float64),
        step_mask=stack([[1] * len(episode.outcome) for episode in episodes], torch.bool),
        token_mask=timeline.mask,
        step_of=timeline.step_of,
        terminated=torch.tensor([episode.terminated for episode in episodes], dtype=torch.bool),
        groups=torch.tensor([episode.group for episode in episodes], dtype=torch.long),
        anchors=stack([episode.anchors for episode in episodes], torch.long),
        sources=torch.tensor([episode.source for episode in episodes], dtype=torch.long),
        successes=torch.tensor([episode.success for episode in episodes], dtype=torch.bool),
        **{"penalty": torch.zeros(timeline.mask.shape, dtype=torch.float64), **known},  # type: ignore[arg-type]
    )


def merge(parts: Sequence[tuple[Sequence[int], Experience]]) -> tuple[list[int], Experience]:
    """Join the experience of all ranks; each part has the numbers of a rank's episodes, and their experience.

    Returns all numbers, rising, and the experience in that order: sums round the same for every division into ranks.
    """
    numbers = [number for part, _ in parts for number in part]
    order = torch.tensor(sorted(range(len(numbers)), key=numbers.__getitem__), dtype=torch.long)
    # A rank without episodes has nothing to add, not even a None.
    holders = [part for held, part in parts if held] or [parts[0][1]]
    merged: dict[str, Any] = {}
    for field in fields(Experience):
        columns = [getattr(part, field.name) for part in holders]
        # A field that is the same on all ranks, or unknown on one of them, keeps its default.
        if field.name in ("gather", "running_means") or any(column is None for column in columns):
            continue
        if columns[0].ndim == 2:  # per step or per token, padded to the longest of its rank
            width = max(column.size(1) for column in columns)
            columns = [pad(column, (0, width - column.size(1))) for column in columns]
        merged[field.name] = torch.cat(columns)[order]
    return sorted(numbers), Experience(**merged)


def shape_rewards(found: Experience, process_norm: str | None, outcome_weight: float, step_gamma: float) -> Experience:
    """Weigh outcome rewards and process rewards.

    Without `process_norm`, process rewards count as other rewards do. With it, `normalize_process` scales them
    (discount `step_gamma`), and `outcome_weight` is the factor of the outcome.
    """
    if process_norm is None:
        return replace(found, outcome=found.outcome + found.process, process=torch.zeros_like(found.process))
    process = normalize_process(
        found.process, found.step_mask, found.groups, ~found.terminated, process_norm, step_gamma, found.sources
    )
    return replace(found, outcome=outcome_weight * found.outcome, process=process)


def with_baselines(found: Experience, greedy: torch.Tensor) -> Experience:
    """Give each episode the return of the greedy episode of its task, after `shape_rewards`.

    `greedy` (N,) is True for the greedy episodes, of which each group has one.
    """
    tasks, task_of = found.groups.unique(return_inverse=True)
    returns = found.episode_returns
    baselines = torch.zeros(len(tasks), dtype=returns.dtype).index_put((task_of[greedy],), returns[greedy])
    return replace(found, baselines=baselines[task_of])


def assign(
    estimator: Estimator,
    credit: Credit,
    local: Experience,
    numbers: Sequence[int],
    *,
    greedy: Collection[int] = (),
    process_norm: str | None = None,
    outcome_weight: float = 1.0,
    running_means: dict[str, float] | None = None,
    gather: Callable[[Any], list[Any]],
) -> Estimate:
    """Estimate the advantages of this rank's episodes, which are compared with the episodes of all ranks.

    Args:
        estimator: the estimator.
        credit: its settings.
        local: the N episodes of this rank.
        numbers: the number of each episode, which no other episode of any rank has.
        greedy: numbers of this rank's greedy episodes; each group has one if the estimator needs them.
        process_norm: the scale of process rewards, see `shape_rewards`.
        outcome_weight: the factor of the outcome under a `process_norm`.
        running_means: the means of `rae`, which are updated; the same on all ranks.
        gather: returns the values of all ranks; all ranks call this function at the same point.
    """
    all_numbers, steps = merge(gather((list(numbers), local.by_steps())))
    steps = shape_rewards(steps, process_norm, outcome_weight, credit.step_gamma)
    mine = torch.searchsorted(torch.tensor(all_numbers, dtype=torch.long), torch.tensor(numbers, dtype=torch.long))
    width = local.outcome.size(1)
    if estimator.reads_tokens:
        outcome, process = steps.outcome[mine, :width], steps.process[mine, :width]
        return estimator.estimate(replace(local, outcome=outcome, process=process, gather=gather), credit)
    if estimator.needs_baseline:
        all_greedy = {number for part in gather(list(greedy)) for number in part}
        steps = with_baselines(steps, torch.tensor([number in all_greedy for number in all_numbers], dtype=torch.bool))
    per_step = estimator.estimate(replace(steps, running_means=running_means), credit).advantages
    return Estimate(local.to_tokens(per_step[mine, :width]))


# Sums and means over groups of episodes or steps: pure functions, which the estimators use, too.


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
