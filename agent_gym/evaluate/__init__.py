"""Evaluation: how often a policy solves an environment's tasks, with honest intervals.

from agent_gym.evaluate import evaluate, make_specs

result = evaluate(runner, make_specs("AgentR1/GSM8K-v0", split="test"), output="run.jsonl")
print(result, result.measures["episode/turns"])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.evaluate.results import EvalResult, by_task, summarize
from agent_gym.evaluate.statistics import Measure, pass_at_k, wilson_interval
from agent_gym.evaluate.storage import EpisodeFile
from agent_gym.rollout import EpisodeSpec, Runner, derive_seed, make_env
from agent_gym.rollout.env_threads import close_env
from agent_gym.rollout.episode import episode_values

__all__ = [
    "EpisodeFile",
    "EvalResult",
    "Measure",
    "by_task",
    "episode_values",
    "evaluate",
    "make_specs",
    "pass_at_k",
    "summarize",
    "wilson_interval",
]


def evaluate(
    runner: Runner,
    specs: Sequence[EpisodeSpec],
    *,
    temperature: float = 0.0,
    output: str | Path | None = None,
    resume: bool = False,
) -> EvalResult:
    """Play the specs, greedily (a temperature of 0) by default, and condense the outcome.

    Each episode is written into the trajectory file `output` as it ends; with `resume`, what it holds is not played
    again.

    Raises:
        ConfigError: see `EpisodeFile`.
    """
    if output is None:
        return summarize(runner.run(specs, temperature=temperature))
    file = EpisodeFile(output, resume=resume)
    try:
        settings = {"temperature": temperature, **dataclasses.asdict(runner.budget)}
        done, left = file.begin("policy", settings, specs, runner.renderer.tokenizer)
        return summarize(done + runner.run(left, temperature=temperature, on_end=file.write))
    finally:
        file.close()


def make_specs(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    episodes: int | None = None,
    group_size: int = 1,
    seed: int = 0,
) -> list[EpisodeSpec]:
    """Spread episodes over the tasks of a split, from its first task on.

    The split is by default "test", or the only one there is. `episodes` is the number of tasks, None for all; each is
    played `group_size` times. `seed` is the base of the seeds of environments and sampling.

    Raises:
        ConfigError: if there is no such split, or it has fewer tasks.
    """
    kwargs = dict(env_kwargs or {})
    env = make_env(env_id, kwargs)
    tasks = env.get_wrapper_attr("tasks")
    if split is None:
        split = next(iter(tasks)) if len(tasks) == 1 else "test"
    available = len(tasks[split]) if split in tasks else None
    close_env(env)
    if available is None:
        raise ConfigError(f"unknown split {split!r}; {env_id} has: {', '.join(tasks)}; choose one by split")
    episodes = available if episodes is None else episodes
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
