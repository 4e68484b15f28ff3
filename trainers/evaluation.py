"""Evaluation during training: every task is played, and success is reported with its interval; there is no loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from transformers.trainer_utils import EvalLoopOutput

from agent_gym.evaluate.cards import Meter
from agent_gym.trainers.hooks.metrics import eval_metrics, mean_metrics
from agent_gym.trainers.schedule import group_specs


def evaluate(trainer: Any, tasks: Iterable[Mapping[str, Any]], prefix: str) -> EvalLoopOutput:
    """Play each task `num_generations_eval` times with a trainer's weights; names of metrics begin with `prefix`."""
    size, seed, accelerator = trainer.num_generations_eval, trainer.args.seed, trainer.accelerator
    # The tasks are divided here. The loader would repeat tasks until all ranks have equally many. A rank without a task
    # plays, too, because all ranks take part in the transfer of sharded weights.
    rows = list(tasks)
    specs = [
        spec
        for i in range(accelerator.process_index, len(rows), accelerator.num_processes)
        for spec in group_specs([rows[i]] * size, first=i * size, group_size=size, sampling_seed=seed)
    ]
    meter = Meter()
    episodes = trainer.rollout(specs, trainer.args.eval_temperature)
    seconds = meter.seconds()
    for hook in trainer.hooks:
        hook.after_evaluation(prefix, episodes, seconds)
    found = eval_metrics(episodes) | mean_metrics(episodes)
    metrics = {f"{prefix}_{name}": value for name, value in found.items()}
    return EvalLoopOutput(cast(Any, None), None, metrics, int(found["episodes"]))
