"""Numbers averaged over processes: those of episodes, named as in `agent_gym.evaluate`, and those of the loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object

from agent_gym.evaluate import episode_metrics, wilson_interval
from agent_gym.rollout import Episode
from agent_gym.trainers.mixture import by_env


def mean_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Average `episode_metrics` over the episodes of all processes; failed ones are left out.

    Where several environments were played, the means of each follow as `<environment id>/<name>`, with its reward.
    """
    done = [episode for episode in episodes if not episode.failure]
    mine = {"": (episode_metrics(done), len(done))}
    for env_id, part in by_env(done).items():
        reward = {"reward": sum(episode.reward for episode in part) / len(part)}
        mine[env_id] = (episode_metrics(part) | reward, len(part))
    everyone, played = gather_object([mine]), gather_object([list(by_env(episodes))])
    means = merge_means([part[""] for part in everyone])
    env_ids = sorted({env_id for ids in played for env_id in ids})
    for env_id in env_ids if len(env_ids) > 1 else ():
        parts = [part[env_id] for part in everyone if env_id in part]
        if parts:  # all of its episodes may have failed
            means |= {f"{env_id}/{name}": value for name, value in merge_means(parts).items()}
    return means


def merge_means(parts: Sequence[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """Combine the `episode_metrics` of several sets of episodes into those of all.

    Args:
        parts: the metrics of a set and its number of episodes.
    """
    episodes = sum(n for _, n in parts)
    totals: dict[str, float] = defaultdict(float)
    calls: dict[str, float] = defaultdict(float)
    for metrics, n in parts:
        for name, value in metrics.items():
            if name.endswith("/latency"):  # a mean over calls and not over episodes
                n_calls = metrics[name.removesuffix("latency") + "calls"] * n
                calls[name] += n_calls
                totals[name] += value * n_calls
            else:
                totals[name] += value * n
    # A set without a name has nothing of it (no call of a tool, no term of a reward), which is 0 and not unknown.
    return {name: total / (calls[name] if name in calls else episodes) for name, total in totals.items()}


def eval_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Success over all processes with its 95% interval, mean reward, counts, and `mean_metrics`."""
    done = [episode for episode in episodes if not episode.failure]
    mine = (sum(e.success for e in done), sum(e.reward for e in done), len(done), len(episodes))
    wins, reward, n, tried = (sum(column) for column in zip(*gather_object([mine]), strict=True))
    low, high = wilson_interval(int(wins), int(n))
    return {
        "success": wins / max(1, n),
        "success_low": low,
        "success_high": high,
        "reward": reward / max(1, n),
        "episodes": n,
        "failed": tried - n,
        **mean_metrics(episodes),
    }


def staleness(episodes: Sequence[Episode], step: int) -> dict[str, float]:
    """How old the weights were that sampled the tokens of all processes, in optimizer steps: mean over tokens and most.

    Args:
        episodes: this process's episodes, also failed ones.
        step: the optimizer steps made so far.
    """
    runs = [run for episode in episodes for made in episode.steps for run in made.versions]
    mine = [
        (
            sum((step - version) * count for version, count in runs),
            sum(count for _, count in runs),
            max((step - version for version, _ in runs), default=0),
        )
    ]
    ages, tokens, oldest = zip(*gather_object(mine), strict=True)
    return {"rollout/staleness": sum(ages) / max(1, sum(tokens)), "rollout/staleness_max": max(oldest)}


class RunningMeans:
    """Means and maxima over tokens that are collected piece by piece, and exchanged between processes once.

    A mean of the pieces' means would depend on how the batch was cut, and an exchange per piece costs more than the
    numbers are worth.
    """

    def __init__(self) -> None:
        """Start with nothing."""
        self._sums: dict[str, torch.Tensor] = {}
        self._most: dict[str, torch.Tensor] = {}

    def add(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Count the values where the mask is True; both have the same shape."""
        # Selected and not multiplied: what is infinite outside the mask is not 0 x infinity.
        part = torch.stack([torch.where(mask, values.detach(), 0).sum().float(), mask.sum().float()])
        self._sums[name] = self._sums[name] + part if name in self._sums else part

    def largest(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Keep the largest of the values where the mask is True, 0 if all are below; both have the same shape."""
        most = torch.where(mask, values.detach(), 0).max().float()
        self._most[name] = torch.maximum(self._most[name], most) if name in self._most else most

    def pop(self, accelerator: Any) -> dict[str, float]:
        """Return means and maxima over all processes, which must have given the same names, and start anew."""
        if not self._sums:
            return {}
        totals = accelerator.reduce(torch.stack(list(self._sums.values())), reduction="sum").tolist()
        found = {name: total / max(1.0, count) for name, (total, count) in zip(self._sums, totals, strict=True)}
        if self._most:
            parts = accelerator.gather(torch.stack(list(self._most.values()))[None])
            found |= dict(zip(self._most, parts.amax(0).tolist(), strict=True))
        self._sums.clear()
        self._most.clear()
        return found
