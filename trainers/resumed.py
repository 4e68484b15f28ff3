"""The parts of a resumed run that come from its settings, not its checkpoint: the schedule, and the best folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LambdaLR


def resume_schedule(scheduler: Any, rates: Sequence[float]) -> None:
    """Set the learning rates to the values that a schedule of the present settings has at the resumed step.

    A checkpoint holds the rate that its schedule had reached, which is 0 at the end of most schedules. The first step
    of a longer run would then learn nothing. A schedule that is a function of the step is set again. A schedule that
    follows a metric, or that the user has made, continues unchanged.

    Args:
        scheduler: has the state of the checkpoint, which holds the number of steps so far.
        rates: the rate of each group of parameters in the present settings, before the schedule.
    """
    if not isinstance(scheduler, LambdaLR) or len(rates) != len(scheduler.base_lrs):
        return
    scheduler.base_lrs = [*rates]
    factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
    scheduler._last_lr = [rate * factor for rate, factor in zip(rates, factors, strict=True)]
    for group, rate, now in zip(scheduler.optimizer.param_groups, rates, scheduler._last_lr, strict=True):
        group["initial_lr"], group["lr"] = rate, now


def best_here(best: str | None, folder: Path) -> str | None:
    """Return the folder of the best checkpoint, in a run's folder that may have been moved since `best` was written."""
    here = folder / Path(best).name if best else None
    return str(here) if here is not None and here.is_dir() else best
