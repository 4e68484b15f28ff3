"""A run that is resumed: whether its checkpoint is whole, and the parts that come from the settings instead of it."""

from __future__ import annotations

import dataclasses
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from torch.distributed.checkpoint import FileSystemReader
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from agent_gym.errors import ConfigError, quoted
from agent_gym.models import check_model, check_weights
from agent_gym.untrusted import NONE, count, number, read_json

# Of transformers' trainer_state.json, the values with which a run continues.
_STATE = {
    "global_step": count, "max_steps": count, "num_train_epochs": int,  # sys.maxsize for a stream of rows
    "num_input_tokens_seen": int, "epoch": (int, float, NONE), "total_flos": (int, float),
    "log_history": [{"step": count}],
    **dict.fromkeys(("logging_steps", "eval_steps", "save_steps"), (number, NONE)), "train_batch_size": (count, NONE),
    "best_metric": (int, float, NONE), "best_global_step": (count, NONE), "best_model_checkpoint": (str, NONE),
    "stateful_callbacks": {"TrainerControl": {"args": dict, "attributes": dict}, "micro_steps?": count},
}  # fmt: skip
_PARTS = {
    "optimizer": ("optimizer*", "global_step*", "pytorch_model_fsdp*"),
    "schedule": ("scheduler.pt", "global_step*"), "random numbers": ("rng_state*.pth",),
}  # fmt: skip
_ARCHIVES = ("*.pt", "*.pth", "pytorch_model_fsdp*.bin", "optimizer*.bin", "global_step*/*.pt")  # written by torch.save


def check_checkpoint(folder: Path) -> None:
    """Read the files of a checkpoint as far as that is cheap: the heads of weights, the state, the ends of archives.

    A part without which training continues with a fresh one (the optimizer, the schedule, random numbers) is a warning.

    Raises:
        ConfigError: if a file is damaged, or the weights or the trainer's state are missing.
    """
    others = sorted(path.name for path in folder.parent.glob("checkpoint-*") if path.is_dir() and path != folder)
    cure = f"resume from another ({', '.join(others[-3:])})" if others else "start anew in another --output_dir"
    try:
        if (folder / "adapter_config.json").is_file():  # whose base the settings name: it may have moved since
            if not any(folder.glob("adapter_model.*")):
                raise ValueError("it has no weights of an adapter")
            check_weights(folder, "adapter_model.safetensors")
        elif not [*folder.glob("pytorch_model_fsdp*"), *folder.glob("global_step*")]:  # shares of several processes
            check_model(str(folder))
        check_weights(folder, "critic/*.safetensors")
        _check_state(folder / TRAINER_STATE_NAME)
        for path in [path for kind in _ARCHIVES for path in sorted(folder.glob(kind))]:
            if not zipfile.is_zipfile(path):
                raise ValueError(f"{path.relative_to(folder)} is not a whole file ({path.stat().st_size:,} bytes)")
        for path in (*folder.glob("pytorch_model_fsdp_*/"), *folder.glob("optimizer_*/")):
            _check_shares(path)
    except (ValueError, OSError, ConfigError, UnpicklingError, EOFError) as error:
        raise ConfigError(f"{folder} cannot be resumed from: {error}; {cure}") from error
    if lost := [part for part, names in _PARTS.items() if not any(next(folder.glob(one), "") for one in names)]:
        warnings.warn(f"{folder} has no file of the {', the '.join(lost)}, which begin anew", stacklevel=3)


def _check_shares(path: Path) -> None:
    """Compare the files of a folder that torch.distributed.checkpoint has written with the places that it names."""
    if not (path / ".metadata").is_file():
        raise ValueError(f"{path.name} has no .metadata, the list of its contents")
    for part in (FileSystemReader(path).read_metadata().storage_data or {}).values():
        file = path / part.relative_path
        if not file.is_file() or file.stat().st_size < part.offset + part.length:
            raise ValueError(f"{path.name}/{file.name} is not a whole file")


def _check_state(path: Path) -> None:
    try:
        state = read_json(path, _STATE)
    except ValueError as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error
    if unknown := state.keys() - {one.name for one in dataclasses.fields(TrainerState)}:
        raise ValueError(f"{path.name} has a field that this transformers does not know: {quoted(min(unknown))}")


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
