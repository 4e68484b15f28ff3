"""Evaluation: how often a policy solves an environment's tasks, with an honest interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.rollout import Episode, EpisodeSpec, Runner, derive_seed, make_env


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The outcome of an evaluation.

    Attributes:
        episodes: finished episodes, failed ones not counted.
        failed: episodes lost to a fault of the machinery.
        success: share of episodes that solved their task.
        low: lower end of the 95% interval of `success`.
        high: upper end.
        reward: mean reward.
        metrics: further means, named as in training: reward/<term>, episode/turns, tool/<name>/calls, ...
    """

    episodes: int
    failed: int
    success: float
    low: float
    high: float
    reward: float
    metrics: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """One line for a table."""
        return f"{self.success:.1%} [{self.low:.1%}, {self.high:.1%}] of {self.episodes}"


def wilson_interval(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion (E. B. Wilson, JASA 22, 1927).

    Unlike the normal approximation it stays inside [0, 1] and is right near both ends, where evaluations often are.

    Args:
        successes: number of successes.
        n: number of trials.
        z: quantile of the normal distribution; 1.96 gives 95%.
    """
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # Both ends are exact where nothing or everything succeeded; the formula is off there by rounding.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def summarize(episodes: Sequence[Episode]) -> EvalResult:
    """Condense finished episodes; failed ones are counted but not averaged."""
    done = [episode for episode in episodes if not episode.failure]
    wins = sum(episode.success for episode in done)
    low, high = wilson_interval(wins, len(done))
    n = max(1, len(done))
    reward = sum(episode.reward for episode in done) / n
    return EvalResult(len(done), len(episodes) - len(done), wins / n, low, high, reward, episode_metrics(done))


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the means that training and evaluation log, by name.

    Per episode: `reward/<term>`, `episode/turns`, `episode/tokens` (sampled), `episode/truncated`, `episode/success`,
    `tool/<name>/calls`, `tool/<name>/errors`, and `env/<name>` for the environment's own numbers at the last step. Per
    call: `tool/<name>/latency` in seconds. Malformed calls and calls of
    unknown tools are counted under `tool/invalid`, so that a policy cannot invent metric names.
    """
    totals: dict[str, float] = {}
    calls: dict[str, int] = {}
    seconds: dict[str, float] = {}

    def add(name: str, value: float) -> None:
        totals[name] = totals.get(name, 0.0) + value

    for episode in episodes:
        known = {schema["function"]["name"] for schema in episode.tools}
        add("episode/success", float(episode.success))
        add("episode/turns", episode.turns)
        add("episode/tokens", episode.sampled_tokens)
        add("episode/truncated", float(episode.truncated))
        for term, value in episode.reward_terms.items():
            add(f"reward/{term}", value)
        for name, value in (episode.steps[-1].metrics if episode.steps else {}).items():
            add(f"env/{name}", value)
        for step in episode.steps:
            for call in step.tool_calls:
                name = call["name"] if call["name"] in known else "invalid"
                calls[name] = calls.get(name, 0) + 1
                seconds[name] = seconds.get(name, 0.0) + call["seconds"]
                add(f"tool/{name}/errors", float(call["error"]))
    means = {name: value / max(1, len(episodes)) for name, value in totals.items()}
    for name, count in calls.items():
        means[f"tool/{name}/calls"] = count / max(1, len(episodes))
        means[f"tool/{name}/latency"] = seconds[name] / count
    return means


def make_specs(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    split: str,
    episodes: int | None = None,
    group_size: int = 1,
    seed: int = 0,
) -> list[EpisodeSpec]:
    """Spread episodes over the tasks of a split, from its first task on.

    Args:
        env_id: a Gymnasium id.
        env_kwargs: arguments of the environment.
        split: the split to take tasks from.
        episodes: number of tasks, None for all; each is played `group_size` times.
        group_size: attempts per task.
        seed: base of the environment and sampling seeds.

    Raises:
        ConfigError: if the split has fewer tasks.
    """
    kwargs = dict(env_kwargs or {})
    env = make_env(env_id, kwargs)
    tasks = env.get_wrapper_attr("tasks")
    available = len(tasks[split]) if split in tasks else None
    env.close()
    if available is None:
        raise ConfigError(f"unknown split {split!r}; {env_id} has: {', '.join(tasks)}")
    if episodes is None:
        episodes = available
    if episodes > available:
        raise ConfigError(f"{episodes} episodes asked for, but split {split!r} of {env_id} has {available} tasks")
    return [
        EpisodeSpec(
            env_id,
            kwargs,
            seed=derive_seed(seed, index),
            split=split,
            index=index,
            group=index,
            member=member,
            sampling_seed=derive_seed(seed, index, member),
        )
        for index in range(episodes)
        for member in range(group_size)
    ]


def evaluate(runner: Runner, specs: Sequence[EpisodeSpec], *, temperature: float = 0.0) -> EvalResult:
    """Play the specs, greedily by default, and condense the outcome."""
    return summarize(runner.run(specs, temperature=temperature))
