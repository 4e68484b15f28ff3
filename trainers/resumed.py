"""What a resumed run takes from its settings, and not from the checkpoint: the schedule, and where its folder is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LambdaLR


def resume_schedule(scheduler: Any, rates: Sequence[float]) -> None:
    """Set the learning rates to those that a schedule of the present settings has at the step that was resumed.

    A checkpoint holds the rate at which its own schedule had arrived, 0 at the end of most: the first step of a longer
    run would learn nothing. Schedules that are a function of the step are set anew; one that follows a metric, or that
    the user has made, goes on as it was.

    Args:
        scheduler: with the state of the checkpoint, which says how many steps there were.
        rates: of each group of parameters in the present settings, before the schedule.
    """
    if not isinstance(scheduler, LambdaLR) or len(rates) != len(scheduler.base_lrs):
        return
    scheduler.base_lrs = [*rates]
    factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
    scheduler._last_lr = [rate * factor for rate, factor in zip(rates, factors, strict=True)]
    for group, rate, now in zip(scheduler.optimizer.param_groups, rates, scheduler._last_lr, strict=True):
        group["initial_lr"], group["lr"] = rate, now


def best_here(best: str | None, folder: Path) -> str | None:
    """Return where the best checkpoint is, in a run's folder that may have been moved since it was written."""
    here = folder / Path(best).name if best else None
    return str(here) if here is not None and here.is_dir() else best
