"""An end of training by the validation curve: it stops where the curve is flat, and not at a number of steps.

A run that is cut while its curve rises shows how fast an algorithm is, and not where it ends. One that goes on for long
after the curve is flat can fall again. The weights are the last step's: no evaluation chooses among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from agent_gym.errors import ConfigError


class Patience(TrainerCallback):
    """Stops training when the last `evaluations` are on average no better than as many before them.

    Means of several evaluations are compared, since a single one is noisy: with 64 prompts its standard error is up to
    6 points, and a rule that waits for a new best one stops late after a lucky evaluation.

    Args:
        evaluations: how many are averaged, at least 1. Training goes on for twice as many evaluations at least.
        metric: of the log, what is to rise.

    Raises:
        ConfigError: for fewer than 1 evaluation, or a run that does not evaluate.
    """

    def __init__(self, evaluations: int, metric: str = "eval_success") -> None:
        if evaluations < 1:
            raise ConfigError(f"patience is {evaluations}; it must be at least 1 evaluation")
        self.evaluations, self.metric = evaluations, metric
        self.stopped_at: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.eval_strategy == "no":
            raise ConfigError("patience waits for evaluations, and eval_strategy is 'no': set it to steps")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The trainer's own log, so that a run that was resumed knows the evaluations before it.
        curve = [log[self.metric] for log in state.log_history if self.metric in log]
        if state.global_step and flat(curve, self.evaluations):
            self.stopped_at, control.should_training_stop = state.global_step, True


def flat(curve: Sequence[float], n: int) -> bool:
    """Whether the last n values are on average not above the n before them; False where there are fewer than 2 n."""
    return len(curve) >= 2 * n and sum(curve[-n:]) <= sum(curve[-2 * n : -n])
