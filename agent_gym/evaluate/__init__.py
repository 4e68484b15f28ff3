"""Evaluation: how often a policy solves an environment's tasks, with honest intervals.

from agent_gym.evaluate import evaluate, make_specs

result = evaluate(runner, make_specs("AgentR1/GSM8K-v0", split="test"), output="run.jsonl")
print(result, result.measures["episode/turns"])
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.evaluate.panels import Panel, count_tasks, opened_env
from agent_gym.evaluate.prompts import prompt_of
from agent_gym.evaluate.statistics import Measure, mean, pass_at_k, pass_hat_k, share, wilson_interval
from agent_gym.evaluate.storage import EpisodeFile
from agent_gym.registry import EnvLike, resolve_env
from agent_gym.rollout import Episode, EpisodeSpec, Runner, derive_seed, failure_summary
from agent_gym.rollout.episode import call_seconds, episode_values

__all__ = [
    "EpisodeFile",
    "EvalResult",
    "Measure",
    "episode_values",
    "evaluate",
    "make_specs",
    "pass_at_k",
    "pass_hat_k",
    "summarize",
    "wilson_interval",
]
SHARES = frozenset({"episode/success", "episode/truncated", "env/em", "env/sub_em"})
"""Numbers that are 0 or 1 in each episode, so that their mean is a share."""


def evaluate(
    runner: Runner,
    specs: Sequence[EpisodeSpec],
    *,
    temperature: float = 0.0,
    output: str | Path | None = None,
    resume: bool = False,
    panel: Panel | None = None,
) -> EvalResult:
    """Play the specs, greedily (a temperature of 0) by default, and condense the outcome.

    Each episode is written into the trajectory file `output` as it ends; with `resume`, episodes in it are not played
    again. Its card is next to it, and names the `panel` that the specs were made of. Raises `ConfigError` as
    `EpisodeFile` does.
    """
    from agent_gym.evaluate.cards import run_specs  # which needs the names below

    if output is None:
        return summarize(runner.run(specs, temperature=temperature))
    limits = dataclasses.asdict(runner.budget)
    with closing(EpisodeFile(output, resume=resume)) as file:
        settings, decoding = {"temperature": temperature, **limits}, {"temperature": temperature, "limits": limits}
        return run_specs(runner, "policy", specs, file, panel, settings=settings, decoding=decoding, model=None)[0]


def make_specs(
    env_id: EnvLike,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    episodes: int | None = None,
    group_size: int = 1,
    seed: int = 0,
    panel: Panel | None = None,
) -> list[EpisodeSpec]:
    """Spread episodes over the tasks of a split, from its first task on, or over the tasks of a panel.

    The environment is an id, or anything that `registry.resolve_env` takes in its place. The split is by default the
    only one there is, else that of the environment's protocol, else "test". `episodes` is the number of tasks, None for
    all; each is played `group_size` times. `seed` is the base of the seeds of environments and sampling; a panel brings
    its own for the environments.

    Raises:
        ConfigError: if the split does not exist or has fewer tasks, or the environment gives others than the panel has.
    """
    env_id, kwargs = resolve_env(env_id, env_kwargs)
    indices: Iterable[int]
    if panel is not None:
        if split is not None or episodes is not None:
            raise ConfigError(f"panel {panel.name} says which tasks are played: leave out the split and the episodes")
        panel.check(kwargs)
        split, indices, env_seed = panel.split, [index for index, *_ in panel.tasks], 0
    else:
        with opened_env(env_id, kwargs) as env:
            if split is None:
                tasks, protocol = env.get_wrapper_attr("tasks"), getattr(env.unwrapped, "protocol", None)
                split = next(iter(tasks)) if len(tasks) == 1 else protocol.split if protocol else "test"
            available = count_tasks(env, split)
        episodes = available if episodes is None else episodes
        if episodes > available:
            raise ConfigError(f"{episodes} episodes asked for, but split {split!r} of {env_id} has {available} tasks")
        indices, env_seed = range(episodes), seed
    return [
        EpisodeSpec(
            env_id,
            kwargs,
            seed=derive_seed(env_seed, index),
            split=split,
            index=index,
            group=index,
            member=member,
            sampling_seed=derive_seed(seed, index, member),
        )
        for index in indices
        for member in range(group_size)
    ]


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The outcome of an evaluation."""

    episodes: int  # that finished
    failed: int  # lost to a fault of the machinery
    tasks: int = 0  # how many the finished ones are of
    attempts: int = 0  # the most finished episodes that one task has, K in avg@K
    # By name, as in `episode_values`; further `reward`, `episode/seconds`, `tool/<name>/latency` per call, and `pass@k`
    # and `pass^k` for k = 2, 4, 8, ..., K.
    measures: dict[str, Measure] = field(default_factory=dict)
    # The same for the tasks of one kind: field of `Episode.categories`, its value, the result.
    categories: dict[str, dict[str, EvalResult]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)  # why episodes failed, a line for each kind
    prompts: int = 0  # how many distinct prompts the tasks are; intervals are over these

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
    """Condense finished episodes; failed ones are counted but not averaged.

    Intervals are over distinct prompts (prompts.py), and not over tasks, of which several may begin alike.
    """
    kinds: dict[str, dict[str, list[Episode]]] = {}
    for episode in episodes:
        for name, value in episode.categories.items():
            kinds.setdefault(name, {}).setdefault(value, []).append(episode)
    result = _condense(episodes)
    for name, parts in kinds.items():
        result.categories[name] = {value: _condense(part) for value, part in sorted(parts.items())}
    return result


def _condense(episodes: Sequence[Episode]) -> EvalResult:
    tasks: dict[Hashable, list[Episode]] = {}
    prompts: dict[Hashable, list[Episode]] = {}
    for episode in episodes:
        if not episode.failure:
            spec = episode.spec
            # Without an index the seed picks the task.
            key = spec.env_id, spec.split, spec.index, spec.seed
            tasks.setdefault(key, []).append(episode)
            prompts.setdefault(prompt_of(episode), []).append(episode)
    counts = [len(attempts) for attempts in tasks.values()]
    n, measures = sum(counts), _measures([*prompts.values()], [*tasks.values()]) if tasks else {}
    failures = failure_summary(episodes)
    most = max(counts, default=0)
    return EvalResult(n, len(episodes) - n, len(tasks), most, measures, failures=failures, prompts=len(prompts))


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


def _measures(prompts: Sequence[Sequence[Episode]], tasks: Sequence[Sequence[Episode]]) -> dict[str, Measure]:
    counts = [len(attempts) for attempts in prompts]
    values, measures = sum_by_task(prompts, report_values), {}
    for name, sums in values.items():
        least = 0.0 if name.startswith(("episode/", "tool/")) else -math.inf  # turns, tokens, calls, seconds
        measures[name] = share(sums, counts, sum(counts)) if name in SHARES else mean(sums, counts, least=least)
    most = max(map(len, tasks))
    for k in sorted({1 << i for i in range(1, most.bit_length())} | {most} - {1}):
        # A task with too few attempts, because some failed, does not show the result of k attempts.
        enough = [attempts for attempts in tasks if len(attempts) >= k]
        for name, estimate in (("pass@", pass_at_k), ("pass^", pass_hat_k)):
            of_prompts: dict[Hashable, list[float]] = {}
            for attempts in enough:
                solved = estimate(len(attempts), sum(one.success for one in attempts), k)
                of_prompts.setdefault(prompt_of(attempts[0]), []).append(solved)
            sums, sizes = [sum(some) for some in of_prompts.values()], [len(some) for some in of_prompts.values()]
            measures[f"{name}{k}"] = share(sums, sizes, sum(map(len, enough)))
    for name, spent in sum_by_task(prompts, call_seconds).items():
        measures[f"tool/{name}/latency"] = mean(spent, values[f"tool/{name}/calls"], least=0.0)
    return measures
