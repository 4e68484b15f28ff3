"""The end of training by the validation curve: training stops when the curve is flat, not at a number of steps.

A run that is cut while its curve rises shows how fast an algorithm learns, but not its final level. A run that trains
for long after the curve is flat can fall again. The final weights are the weights of the last step: no evaluation
chooses among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from agent_gym.errors import ConfigError


class Patience(TrainerCallback):
    """Stops training when the last `evaluations` are on average no better than the same number before them.

    The means of several evaluations are compared, since a single one is noisy: with 64 prompts its standard error is up
    to 6 points, and a rule that waits for a new best evaluation stops late after a lucky one.

    Args:
        evaluations: the number of evaluations in a mean, at least 1. Training lasts for at least twice as many.
        metric: the name in the log of the number that should rise.

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
        # The curve comes from the trainer's log, so that a resumed run knows the evaluations before it.
        curve = [log[self.metric] for log in state.log_history if self.metric in log]
        if state.global_step and flat(curve, self.evaluations):
            self.stopped_at, control.should_training_stop = state.global_step, True


def flat(curve: Sequence[float], n: int) -> bool:
    """Whether the mean of the last n values is at most that of the n before; False for fewer than 2 n values."""
    return len(curve) >= 2 * n and sum(curve[-n:]) <= sum(curve[-2 * n : -n])
