"""Evaluation: how often a policy solves an environment's tasks, with honest intervals.

from agent_gym.evaluate import evaluate, make_specs

result = evaluate(runner, make_specs("AgentR1/GSM8K-v0", split="test"), output="run.jsonl")
print(result, result.measures["episode/turns"])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from agent_gym.evaluate.results import EvalResult, by_task, summarize
from agent_gym.evaluate.specs import make_specs
from agent_gym.evaluate.statistics import Measure, pass_at_k, wilson_interval
from agent_gym.evaluate.storage import EpisodeFile
from agent_gym.evaluate.values import episode_metrics, episode_values
from agent_gym.rollout import EpisodeSpec, Runner

__all__ = [
    "EpisodeFile",
    "EvalResult",
    "Measure",
    "by_task",
    "episode_metrics",
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
    """Play the specs, greedily by default, and condense the outcome.

    Args:
        runner: plays.
        specs: what to play.
        temperature: of the sampling; 0 is greedy.
        output: a trajectory file, into which each episode is written as it ends.
        resume: go on with that file: what it holds is not played again.

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
