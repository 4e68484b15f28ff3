"""Numbers about episodes, averaged over processes, under the names of `agent_gym.evaluate.episode_metrics`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from accelerate.utils import gather_object

from agent_gym.evaluate import episode_metrics, wilson_interval
from agent_gym.rollout import Episode


def mean_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Average `episode_metrics` over all processes, weighted by episodes; failed ones are left out."""
    done = [episode for episode in episodes if not episode.failure]
    totals: dict[str, float] = defaultdict(float)
    weights: dict[str, float] = defaultdict(float)
    for metrics, n in gather_object([(episode_metrics(done), len(done))]):
        for name, value in metrics.items():
            totals[name] += value * n
            weights[name] += n
    return {name: totals[name] / weights[name] for name in totals if weights[name]}


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
