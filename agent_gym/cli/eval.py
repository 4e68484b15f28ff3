"""`agent-gym eval ENV...`: how often a model succeeds, with an interval that the data can bear.

With several samples per task the samples of one task are alike, so that they are worth less than as many tasks. The
interval is then Wilson's at the effective number of samples, the number of independent ones with the same spread of the
mean (Korn and Graubard, Survey Methodology 24, 1998).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from agent_gym.cli.episodes import add_limits, add_player, check_player, open_runner
from agent_gym.cli.parser import Parser, check_output, positive
from agent_gym.errors import ConfigError
from agent_gym.evaluate import EvalResult, make_specs, summarize, wilson_interval
from agent_gym.rollout import Episode


def main(argv: Sequence[str]) -> int:
    """Evaluate and report."""
    parser = Parser("eval", "Measure how often a model, or the expert, solves an environment's tasks.")
    parser.add_argument("env_id", metavar="ENV", nargs="+", help="environment ids, for example AgentR1/GSM8K-v0")
    parser.add_argument("--episodes", type=positive, metavar="N", help="number of tasks per environment; default: all")
    parser.add_argument("--split", default="test", help="split to take the tasks from, its first one first")
    parser.add_argument("--samples", type=positive, default=1, metavar="K", help="attempts per task, averaged (avg@K)")
    parser.add_argument("--temperature", type=float, default=0.0, help="of the sampling; 0 is greedy")
    help_text = "further columns, by the names of --output, for example env/f1; a dash where there is no such metric"
    parser.add_argument("--metrics", nargs="+", default=[], metavar="NAME", help=help_text)
    parser.add_argument("--output", metavar="FILE", help="also write the results as JSON, with all metrics")
    add_player(parser)
    add_limits(parser)
    arguments = parser.parse(argv)
    env_ids = arguments.env_id if isinstance(arguments.env_id, list) else [arguments.env_id]
    check_player(arguments, env_ids)
    if arguments.output:
        check_output(arguments.output)
    if arguments.samples > 1 and arguments.temperature == 0 and not arguments.expert:
        raise ConfigError(f"{arguments.samples} samples at temperature 0 are all the same: give --temperature, say 1.0")
    specs = {
        env_id: make_specs(
            env_id,
            arguments.env_kwargs,
            split=arguments.split,
            episodes=arguments.episodes,
            group_size=arguments.samples,
            seed=arguments.seed,
        )
        for env_id in env_ids
    }
    results = {}
    with open_runner(arguments, env_ids[0]) as (_, runner):
        for env_id in env_ids:
            results[env_id] = summarize_samples(runner.run(specs[env_id], temperature=arguments.temperature))
    print(_table(results, arguments.samples, arguments.metrics))
    if arguments.output:
        left_out = ("env_id", "metrics", "output", "workers")
        settings = {key: value for key, value in vars(arguments).items() if key not in left_out}
        _write(arguments.output, settings, results)
    return 0


def summarize_samples(episodes: Sequence[Episode]) -> EvalResult:
    """Condense episodes of which several may answer the same task."""
    result = summarize(episodes)
    by_task: dict[int, list[float]] = {}
    for episode in episodes:
        if not episode.failure:
            by_task.setdefault(episode.spec.group, []).append(float(episode.success))
    if len(by_task) < 2 or len(by_task) == result.episodes:
        return result
    n = effective_samples(list(by_task.values()))
    low, high = wilson_interval(round(result.success * n), n)
    return dataclasses.replace(result, low=low, high=high)


def effective_samples(by_task: Sequence[Sequence[float]]) -> int:
    """Return how many independent samples would leave the mean as uncertain as these are.

    Args:
        by_task: outcomes (0 or 1) of each task, at least two tasks.
    """
    means = [fmean(outcomes) for outcomes in by_task]
    p, spread = fmean(means), variance(means) / len(means)
    # All tasks alike (all solved, none solved): the samples tell nothing new, so each task counts once.
    return len(means) if spread == 0 else max(1, min(round(p * (1 - p) / spread), sum(map(len, by_task))))


def _table(results: dict[str, EvalResult], samples: int, metrics: Sequence[str]) -> str:
    column = "success" if samples == 1 else f"avg@{samples}"
    rows = [("environment", column, "95% interval", "episodes", "reward", "turns", "failed", *metrics)]
    for env_id, result in results.items():
        interval = f"{result.low:.1%} to {result.high:.1%}"
        turns = f"{result.metrics.get('episode/turns', 0.0):.2f}"
        counts = (str(result.episodes), f"{result.reward:.3f}", turns, str(result.failed))
        more = (f"{result.metrics[name]:.3f}" if name in result.metrics else "-" for name in metrics)
        rows.append((env_id, f"{result.success:.1%}", interval, *counts, *more))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _write(path: str, settings: dict[str, Any], results: dict[str, EvalResult]) -> None:
    content = {"settings": settings, "results": {key: dataclasses.asdict(value) for key, value in results.items()}}
    Path(path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
