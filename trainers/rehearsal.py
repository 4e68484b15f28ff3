"""A rehearsal of the checkpoint at the start of a run: all its files but the weights are written once and read back.

A checkpoint comes after hours. The rehearsal finds these faults before the first rollout: a file that cannot be saved,
a file that cannot be read again, a read-only folder, and a disk that is too small. A fault that can be repaired is
repaired, with a warning that names the repair.
"""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from transformers import AutoConfig, AutoProcessor, AutoTokenizer, GenerationConfig, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState

from agent_gym.errors import DISK_FULL, ConfigError, described, writing
from agent_gym.policies.processors import let_videos_be_missing
from agent_gym.policies.savable import repair
from agent_gym.trainers.saving import ASIDE, Write, aside_name

_MIB = 2**20
# Bytes of optimizer state for each byte of trained weight. This is a lower bound, so that no run is refused that would
# fit.
_STATES = {"adamw": 2, "adam": 2, "lion": 1, "rmsprop": 1, "adagrad": 1}
_SMALLER = ("8bit", "4bit", "fp8", "anyprecision", "paged", "galore", "apollo", "lomo", "mini")


def rehearse(trainer: Any, files: Mapping[str, Write]) -> None:
    """Write the files of a trainer's checkpoint into its folder, read them back, and remove them.

    Fields of the model's generation config that cannot be saved are dropped.

    Raises:
        ConfigError: if the folder cannot be written, the adapter or the state of a callback cannot be saved, or the
            disk has not enough room for one checkpoint.
    """
    folder, model = Path(str(trainer.args.output_dir)), trainer.accelerator.unwrap_model(trainer.model)
    if lost := repair(model):
        warnings.warn(
            f"the model's generation config cannot be saved as it is: {', '.join(lost)} left out. Training has its own "
            "settings of sampling",
            stacklevel=4,
        )
    aside = folder / aside_name()
    try:
        with writing(folder, "name another folder with --output_dir"):
            aside.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=aside, prefix="start-", ignore_cleanup_errors=True) as place:
                _try_all(trainer, model, files, Path(place))
    finally:
        with suppress(OSError):
            aside.rmdir()
            (folder / ASIDE).rmdir()
    _check_room(trainer, folder)


def _try_all(trainer: Any, model: Any, files: Mapping[str, Write], place: Path) -> None:
    for number, (name, write) in enumerate(files.items()):
        part = place / str(number)
        part.mkdir()
        _try(name, write, part)
    _try_state(trainer, place)
    if is_peft_model(model):
        _try_adapters(model, place)


def _try(name: str, write: Write, part: Path) -> None:
    """Write a file and read it back, and warn of the parts that will be missing."""
    try:
        lost = write(part)
    except Exception as error:  # an error of a library, or of the user's class
        if isinstance(error, OSError) and error.errno in (*DISK_FULL, errno.EROFS):
            raise
        words = f"{name} cannot be saved, and no checkpoint will have it: {described(error)[:300]}"
        warnings.warn(words, stacklevel=4)
        return
    if lost:
        warnings.warn(f"{name} is saved without {', '.join(lost)}, which cannot be written", stacklevel=4)
    try:
        _READERS.get(name, lambda place: None)(part)
    except Exception as error:
        words = f"{name} can be saved, and what was saved cannot be read again: {described(error)[:300]}"
        warnings.warn(words, stacklevel=4)


def _read_encoder(part: Path) -> None:
    let_videos_be_missing()
    kind = AutoProcessor if any(part.glob("*processor_config.json")) else AutoTokenizer
    kind.from_pretrained(str(part))


_READERS: dict[str, Callable[[Path], Any]] = {
    "config.json": lambda part: AutoConfig.from_pretrained(str(part)),
    "generation_config.json": lambda part: GenerationConfig.from_pretrained(str(part)),
    "tokenizer": _read_encoder,
    "agent_gym.json": lambda part: json.loads((part / "agent_gym.json").read_text(encoding="utf-8")),
}


def _try_state(trainer: Any, place: Path) -> None:
    """Write the trainer's state with the states of its callbacks, without which a run cannot be resumed."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, ExportableState):
            try:
                json.dumps(callback.state())
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"the state of the callback {type(callback).__name__} has no form in JSON ({error}), so that no "
                    "checkpoint could be resumed: let its state() return texts, numbers, lists and dicts"
                ) from error
    file = place / TRAINER_STATE_NAME
    trainer.state.save_to_json(str(file))
    TrainerState.load_from_json(str(file))


def _try_adapters(model: Any, place: Path) -> None:
    for name in model.peft_config:
        config = model.peft_config[name]
        try:
            config.save_pretrained(str(place))
            type(config).from_pretrained(str(place))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the configuration of the adapter {name!r} cannot be saved, and weights of an adapter cannot be read "
                f"without it: {error}"
            ) from error


def _check_room(trainer: Any, folder: Path) -> None:
    """Compare the size of the checkpoints with the free room on the disk."""
    args, size = trainer.args, checkpoint_bytes(trainer)
    free = shutil.disk_usage(folder).free
    weights = "the model" if args.save_strategy == "no" else "one checkpoint"
    if size > free:
        raise ConfigError(
            f"{weights} takes {size / _MIB:,.0f} MiB or more, and {free / _MIB:,.0f} MiB are free in {folder}: make "
            "room, name another --output_dir, or leave the optimizer out of checkpoints with --save_only_model true"
        )
    if args.save_strategy == "no" or args.max_steps <= 0 or args.save_strategy != "steps" or args.save_steps < 1:
        return
    number = -(-args.max_steps // int(args.save_steps))
    number = min(number, (args.save_total_limit or number) + 1)  # the old one is removed after the new one
    if number * size > free:
        warnings.warn(
            f"{number} checkpoints take {number * size / _MIB:,.0f} MiB or more, and {free / _MIB:,.0f} MiB are free "
            f"in {folder}: --save_total_limit N keeps the last N",
            stacklevel=4,
        )


def checkpoint_bytes(trainer: Any) -> int:
    """Return a lower bound of the bytes of a trainer's checkpoint: its weights and the optimizer's state."""
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    stored = trained = 0
    for weight in model.parameters():  # a tied weight comes once
        size = getattr(weight, "ds_numel", weight.numel()) * weight.element_size()
        trained += size * weight.requires_grad
        stored += size * (weight.requires_grad or not is_peft_model(model))
    if args.save_strategy == "no" or args.save_only_model or any(word in str(args.optim) for word in _SMALLER):
        return stored
    kind = str(getattr(args.optim, "value", args.optim))
    return stored + trained * next((states for name, states in _STATES.items() if kind.startswith(name)), 0)
