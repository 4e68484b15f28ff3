"""Many episodes condensed: each number with its interval, over all tasks and by kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent_gym.evaluate.statistics import Measure, mean, pass_at_k, share
from agent_gym.rollout import Episode, failure_summary
from agent_gym.rollout.episode import call_seconds, episode_values

SHARES = frozenset({"episode/success", "episode/truncated", "env/em", "env/sub_em"})
"""Numbers that are 0 or 1 in each episode, so that their mean is a share; all others are means."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The outcome of an evaluation.

    Attributes:
        episodes, failed: those that finished, and those lost to a fault of the machinery.
        tasks: how many tasks the finished ones are of.
        attempts: the most finished episodes that one task has, K in avg@K.
        measures: by name, as in `episode_values`; further `reward`, `episode/seconds`, `tool/<name>/latency` per call,
            and `pass@k` for k = 2, 4, 8, ..., K. statistics.py has the intervals.
        categories: the same for the tasks of one kind: field of `Episode.categories`, its value, the result.
        failures: why episodes failed, a line for each kind, as in `failure_summary`.
    """

    episodes: int
    failed: int
    tasks: int = 0
    attempts: int = 0
    measures: dict[str, Measure] = field(default_factory=dict)
    categories: dict[str, dict[str, EvalResult]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def success(self) -> float:
        """Share of episodes that solved their task: avg@K."""
        return self.measures["episode/success"].value if self.episodes else 0.0

    @property
    def low(self) -> float:
        return self.measures["episode/success"].low or 0.0 if self.episodes else 0.0

    @property
    def high(self) -> float:
        high = self.measures["episode/success"].high if self.episodes else None
        return 1.0 if high is None else high

    @property
    def reward(self) -> float:
        return self.measures["reward"].value if self.episodes else 0.0

    @property
    def metrics(self) -> dict[str, float]:
        return {name: measure.value for name, measure in self.measures.items()}

    def __str__(self) -> str:
        return f"{self.success:.1%} [{self.low:.1%}, {self.high:.1%}] of {self.episodes}"


def summarize(episodes: Sequence[Episode]) -> EvalResult:
    """Condense finished episodes; failed ones are counted but not averaged."""
    kinds: dict[str, dict[str, list[Episode]]] = {}
    for episode in episodes:
        for name, value in episode.categories.items():
            kinds.setdefault(name, {}).setdefault(value, []).append(episode)
    categories = {
        name: {value: _condense(part) for value, part in sorted(parts.items())} for name, parts in kinds.items()
    }
    return replace(_condense(episodes), categories=categories)


def _condense(episodes: Sequence[Episode]) -> EvalResult:
    tasks = list(by_task(episodes).values())
    n, attempts = sum(map(len, tasks)), max(map(len, tasks), default=0)
    measures = _measures(tasks) if tasks else {}
    return EvalResult(n, len(episodes) - n, len(tasks), attempts, measures, failures=failure_summary(episodes))


def by_task(episodes: Iterable[Episode]) -> dict[Hashable, list[Episode]]:
    """Group the episodes that answer the same task, leaving failed ones out."""
    groups: dict[Hashable, list[Episode]] = {}
    for episode in episodes:
        if not episode.failure:
            spec = episode.spec
            # Without an index the seed picks the task.
            groups.setdefault((spec.env_id, spec.split, spec.index, spec.seed), []).append(episode)
    return groups


def report_values(episode: Episode) -> dict[str, float]:
    """Return the numbers of a finished episode that a report averages: reward, `episode_values`, seconds."""
    return {"reward": episode.reward, **episode_values(episode), "episode/seconds": episode.seconds}


def sum_by_task(
    tasks: Sequence[Sequence[Episode]], numbers: Callable[[Episode], Mapping[str, float]]
) -> dict[str, list[float]]:
    """Return the sum of each number over the attempts at each task."""
    sums: dict[str, list[float]] = {}
    for i, attempts in enumerate(tasks):
        for episode in attempts:
            for name, value in numbers(episode).items():
                sums.setdefault(name, [0.0] * len(tasks))[i] += value
    return sums


def _measures(tasks: Sequence[Sequence[Episode]]) -> dict[str, Measure]:
    counts = [len(attempts) for attempts in tasks]
    values, measures = sum_by_task(tasks, report_values), {}
    for name, sums in values.items():
        least = 0.0 if name.startswith(("episode/", "tool/")) else -math.inf  # turns, tokens, calls, seconds
        measures[name] = share(sums, counts, sum(counts)) if name in SHARES else mean(sums, counts, least=least)
    most = max(counts)
    for k in sorted({1 << i for i in range(1, most.bit_length())} | {most} - {1}):
        # A task with too few attempts, because some failed, does not show what k would have reached.
        solved = [pass_at_k(n, int(c), k) for n, c in zip(counts, values["episode/success"], strict=True) if n >= k]
        measures[f"pass@{k}"] = share(solved, [1] * len(solved), sum(n for n in counts if n >= k))
    for name, spent in sum_by_task(tasks, call_seconds).items():
        measures[f"tool/{name}/latency"] = mean(spent, values[f"tool/{name}/calls"], least=0.0)
    return measures
