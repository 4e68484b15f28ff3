"""What is counted in an episode, and many condensed: each number with its interval, over all tasks and by kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent_gym.evaluate.statistics import Measure, mean, pass_at_k, share
from agent_gym.rollout import Episode, failure_summary

SHARES = frozenset({"episode/success", "episode/truncated", "env/em", "env/sub_em"})
"""Numbers that are 0 or 1 in each episode, so that their mean is a share; all others are means."""


def episode_values(episode: Episode) -> dict[str, float]:
    """Return the numbers of one episode, by the names of the logs.

    `episode/success`, `episode/turns`, `episode/tokens` (sampled), `episode/truncated`, `episode/tool_calls`,
    `episode/parse_errors` (calls that could not be read, or of a tool that is not there), `reward/<term>`,
    `tool/<name>/calls` and `tool/<name>/errors`, and `env/<name>` for the environment's own numbers at the last step.
    Bad calls are counted under `tool/invalid`, so that a policy cannot invent names. A name that is missing is 0.
    """
    known = {schema["function"]["name"] for schema in episode.tools}
    values = {
        "episode/success": float(episode.success),
        "episode/turns": float(episode.turns),
        "episode/tokens": float(episode.sampled_tokens),
        "episode/truncated": float(episode.truncated),
        "episode/tool_calls": 0.0,
        "episode/parse_errors": 0.0,
    }
    values |= {f"reward/{term}": value for term, value in episode.reward_terms.items()}
    values |= {f"env/{name}": value for name, value in (episode.steps[-1].metrics if episode.steps else {}).items()}
    for step in episode.steps:
        for call in step.tool_calls:
            name = call["name"] if call["name"] in known else "invalid"
            values["episode/tool_calls"] += 1
            values["episode/parse_errors"] += name == "invalid"
            for what, value in (("calls", 1.0), ("errors", float(call["error"]))):
                values[f"tool/{name}/{what}"] = values.get(f"tool/{name}/{what}", 0.0) + value
    return values


def call_seconds(episode: Episode) -> dict[str, float]:
    """Return the seconds that the calls of each tool took in one episode, by the name of the tool."""
    known = {schema["function"]["name"] for schema in episode.tools}
    seconds: dict[str, float] = {}
    for step in episode.steps:
        for call in step.tool_calls:
            name = call["name"] if call["name"] in known else "invalid"
            seconds[name] = seconds.get(name, 0.0) + call["seconds"]
    return seconds


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the means that training logs: of `episode_values`, and per call `tool/<name>/latency` in seconds."""
    totals: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for episode in episodes:
        for into, values in ((totals, episode_values(episode)), (seconds, call_seconds(episode))):
            for name, value in values.items():
                into[name] = into.get(name, 0.0) + value
    means = {name: value / len(episodes) for name, value in totals.items()}
    return means | {f"tool/{name}/latency": value / totals[f"tool/{name}/calls"] for name, value in seconds.items()}


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The outcome of an evaluation.

    Attributes:
        episodes: finished episodes, failed ones not counted.
        failed: episodes lost to a fault of the machinery.
        tasks: tasks that they are of.
        attempts: the most finished episodes that one task has, K in avg@K.
        measures: by name, as in `episode_values`; further `reward`, `episode/seconds`, `tool/<name>/latency` per call,
            and `pass@k` for k = 2, 4, 8, ..., K. statistics.py says how the intervals are made.
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
    values: dict[str, dict[str, list[Episode]]] = {}
    for episode in episodes:
        for name, value in episode.categories.items():
            values.setdefault(name, {}).setdefault(value, []).append(episode)
    categories = {
        name: {value: _condense(part) for value, part in sorted(parts.items())} for name, parts in values.items()
    }
    return _condense(episodes, categories)


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


def _condense(episodes: Sequence[Episode], categories: dict[str, dict[str, EvalResult]] | None = None) -> EvalResult:
    tasks = list(by_task(episodes).values())
    n = sum(map(len, tasks))
    attempts = max(map(len, tasks), default=0)
    failures = failure_summary(episodes)
    return EvalResult(n, len(episodes) - n, len(tasks), attempts, _measures(tasks), categories or {}, failures)


def _measures(tasks: Sequence[Sequence[Episode]]) -> dict[str, Measure]:
    if not tasks:
        return {}
    counts = [len(attempts) for attempts in tasks]
    values, seconds = _sums(tasks, report_values), _sums(tasks, call_seconds)
    measures = {
        name: share(sums, counts, sum(counts)) if name in SHARES else mean(sums, counts, least=_least(name))
        for name, sums in values.items()
    }
    for k in _powers(max(counts)):
        # A task with too few attempts, because some failed, cannot tell what k would have reached.
        solved = [pass_at_k(n, int(c), k) for n, c in zip(counts, values["episode/success"], strict=True) if n >= k]
        measures[f"pass@{k}"] = share(solved, [1] * len(solved), sum(n for n in counts if n >= k))
    return measures | {
        f"tool/{name}/latency": mean(spent, values[f"tool/{name}/calls"], least=0.0) for name, spent in seconds.items()
    }


def _least(name: str) -> float:
    return 0.0 if name.startswith(("episode/", "tool/")) else -math.inf  # turns, tokens, calls, seconds


def _sums(
    tasks: Sequence[Sequence[Episode]], numbers: Callable[[Episode], Mapping[str, float]]
) -> dict[str, list[float]]:
    sums: dict[str, list[float]] = {}
    for i, attempts in enumerate(tasks):
        for episode in attempts:
            for name, value in numbers(episode).items():
                sums.setdefault(name, [0.0] * len(tasks))[i] += value
    return sums


def _powers(most: int) -> list[int]:
    powers = [1 << i for i in range(1, most.bit_length()) if 1 << i < most]
    return [*powers, most] if most > 1 else []
