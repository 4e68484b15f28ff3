"""Numbers about episodes, averaged over processes, under the names of `agent_gym.evaluate.episode_metrics`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from accelerate.utils import gather_object

from agent_gym.evaluate import episode_metrics, wilson_interval
from agent_gym.rollout import Episode


def mean_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Average `episode_metrics` over the episodes of all processes; failed ones are left out."""
    done = [episode for episode in episodes if not episode.failure]
    return merge_means(gather_object([(episode_metrics(done), len(done))]))


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
