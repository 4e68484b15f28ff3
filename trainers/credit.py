"""From the rewards of a rollout to the advantage of each sampled token.

    TrainingEpisode (rewards, flags) + batch (values, KL)  ->  Experience of this process
      -> merged over processes  ->  process rewards normalised  ->  estimator  ->  this process's rows

Every process computes the credit of all episodes. Groups are spread over processes and normalisation needs the whole
batch, and a few numbers per token are cheap to send. In return, what an estimator says cannot depend on who holds what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch.nn.functional import pad

from agent_gym.trainers.batching import TrainingEpisode
from agent_gym.trainers.estimators import Experience, normalize_process
from agent_gym.trainers.timeline import Timeline

_PER_STEP = ("outcome", "process", "step_mask", "anchors")
_PER_TOKEN = ("penalty", "token_mask", "step_of", "values")


def experience(
    episodes: Sequence[TrainingEpisode],
    timeline: Timeline,
    *,
    penalty: torch.Tensor | None = None,
    values: torch.Tensor | None = None,
    last_values: torch.Tensor | None = None,
) -> Experience:
    """Collect what is known of the episodes of this process.

    Args:
        episodes: N episodes.
        timeline: their tokens.
        penalty: (N, L) reward per token, None for none.
        values: (N, L) critic's values before each token.
        last_values: (N,) critic's values after the end.
    """
    width = max((len(episode.outcome) for episode in episodes), default=0)

    def stack(columns: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
        rows = [[*column, *[0] * (width - len(column))] for column in columns]
        return torch.tensor(rows, dtype=dtype).view(len(rows), width)

    return Experience(
        outcome=stack([episode.outcome for episode in episodes], torch.float64),
        process=stack([episode.process for episode in episodes], torch.float64),
        penalty=torch.zeros(timeline.mask.shape, dtype=torch.float64) if penalty is None else penalty,
        step_mask=stack([[1] * len(episode.outcome) for episode in episodes], torch.bool),
        token_mask=timeline.mask,
        step_of=timeline.step_of,
        terminated=torch.tensor([episode.terminated for episode in episodes], dtype=torch.bool),
        groups=torch.tensor([episode.group for episode in episodes], dtype=torch.long),
        values=values,
        last_values=last_values,
        anchors=stack([episode.anchors for episode in episodes], torch.long),
        sources=torch.tensor([episode.source for episode in episodes], dtype=torch.long),
    )


def merge(parts: Sequence[tuple[Sequence[int], Experience]]) -> tuple[list[int], Experience]:
    """Put the experience of all processes together.

    Args:
        parts: per process the numbers of its episodes and what is known of them.

    Returns:
        All numbers, rising, and the experience in that order, so that sums round the same however it was shared.
    """
    numbers = [number for part, _ in parts for number in part]
    order = torch.tensor(sorted(range(len(numbers)), key=numbers.__getitem__), dtype=torch.long)
    widths = {name: max(part.outcome.size(1) for _, part in parts) for name in _PER_STEP}
    widths |= {name: max(part.penalty.size(1) for _, part in parts) for name in _PER_TOKEN}
    # A process without episodes has nothing to add, not even a None.
    holders = [part for held, part in parts if held] or [parts[0][1]]
    merged: dict[str, Any] = {}
    for field in fields(Experience):
        columns = [getattr(part, field.name) for part in holders]
        if any(column is None for column in columns):
            merged[field.name] = None
            continue
        if field.name in widths:
            columns = [pad(column, (0, widths[field.name] - column.size(1))) for column in columns]
        merged[field.name] = torch.cat(columns)[order]
    return sorted(numbers), Experience(**merged)


def shape_rewards(found: Experience, process_norm: str | None, outcome_weight: float, step_gamma: float) -> Experience:
    """Decide how outcome and process rewards add up.

    Args:
        found: with process rewards as the environment gave them.
        process_norm: see `normalize_process`; None takes them for rewards like any other.
        outcome_weight: factor of the outcome beside normalised process rewards.
        step_gamma: discount of the process rewards.
    """
    if process_norm is None:
        return replace(found, outcome=found.outcome + found.process, process=torch.zeros_like(found.process))
    process = normalize_process(
        found.process, found.step_mask, found.groups, ~found.terminated, process_norm, step_gamma, found.sources
    )
    return replace(found, outcome=outcome_weight * found.outcome, process=process)


def with_baselines(found: Experience, greedy: torch.Tensor) -> Experience:
    """Give each episode the return of the greedy episode of its task, of rewards that were shaped alike.

    Args:
        found: all episodes, after `shape_rewards`.
        greedy: (N,) True for the greedy episodes, of which each group has one.
    """
    tasks, task_of = found.groups.unique(return_inverse=True)
    returns = found.episode_returns
    baselines = torch.zeros(len(tasks), dtype=returns.dtype).index_put((task_of[greedy],), returns[greedy])
    return replace(found, baselines=baselines[task_of])
