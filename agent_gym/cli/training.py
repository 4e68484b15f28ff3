"""What the training commands do alike: model arguments for TRL, resuming, saving."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from transformers import Trainer, get_scheduler
from transformers.integrations import get_reporting_integration_callbacks
from trl import ModelConfig, get_peft_config, get_quantization_config

from agent_gym.cli.engine import check_folder
from agent_gym.cli.parser import one_line
from agent_gym.errors import ConfigError, writing
from agent_gym.trainers.checkpoints import refuse_used, way_on


def check_model(model: ModelConfig) -> None:
    """Raise `ConfigError` unless a model is named that may exist."""
    if model.model_name_or_path is None:
        raise ConfigError("which model? give --model_name_or_path with a folder or hub id")
    check_folder(model.model_name_or_path)


def use_model(args: Any, model: ModelConfig) -> dict[str, Any]:
    """Move the model's arguments to where TRL's trainers look for them.

    Args:
        args: the trainer's settings; its `model_init_kwargs` are completed and win.
        model: the model's arguments.

    Returns:
        The trainer's own arguments for LoRA and quantization.
    """
    args.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": args.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(args.model_init_kwargs or {}),
    }
    return {"peft_config": get_peft_config(model), "quantization_config": get_quantization_config(model)}


def resume_point(args: Any) -> str | bool | None:
    """Return what `Trainer.train` wants to know: a checkpoint, True for the last one, or None.

    Raises:
        ConfigError: if there is no such checkpoint.
    """
    wanted = args.resume_from_checkpoint
    if wanted is None or str(wanted).lower() == "false":
        return None
    if str(wanted).lower() == "true":
        from transformers.trainer_utils import get_last_checkpoint

        if not os.path.isdir(args.output_dir) or get_last_checkpoint(args.output_dir) is None:
            raise ConfigError(f"there is no checkpoint to resume from in {args.output_dir}")
        return True
    if not Path(wanted).is_dir():
        raise ConfigError(f"there is no checkpoint at {wanted}")
    return str(wanted)


def check_run(args: Any) -> None:
    """Find what would end the run after its model is loaded: a used or closed folder, trackers, the optimizer.

    Raises:
        ConfigError: in one line.
    """
    if resume_point(args) is None:
        refuse_used(args.output_dir)
    with writing(args.output_dir, "name another folder with --output_dir"):
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=args.output_dir):
            pass
    for name in args.report_to:
        _check_tracker(name)
    _check_optimizer(args)


def _check_tracker(name: str) -> None:
    try:
        (callback,) = get_reporting_integration_callbacks([name])
        if name != "codecarbon":  # which begins to measure when it is made
            callback()
    except ValueError as error:
        raise ConfigError(f"report_to: {one_line(error)}") from error
    except (ImportError, RuntimeError) as error:
        cure = "pip install 'agent-gym[trackers]', or --report_to none"
        raise ConfigError(f"report_to {name}: {one_line(error)}; {cure}") from error


def _check_optimizer(args: Any) -> None:
    """Make the optimizer and its schedule for one weight."""
    if not str(getattr(args.optim, "value", args.optim)).startswith(("adamw_torch", "sgd", "adagrad", "rmsprop")):
        return  # others want the whole model
    steps = args.max_steps if args.max_steps > 0 else 10**6
    try:
        make, settings = Trainer.get_optimizer_cls_and_kwargs(args)
        get_scheduler(
            args.lr_scheduler_type,
            make([torch.nn.Parameter(torch.zeros(1))], **settings),
            num_warmup_steps=args.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the optimizer cannot be made of these settings: {one_line(error)}") from error


@contextmanager
def telling_what_is_left(args: Any) -> Iterator[None]:
    """Say what to resume from when somebody presses Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        if args.process_index == 0:
            print(f"agent-gym: {way_on(args.output_dir)}", file=sys.stderr)
        raise


def finish(trainer: Any, args: Any) -> None:
    """Save the model, say where it is, push it if asked to, and part from the other processes."""
    trainer.save_model(args.output_dir)
    trainer.accelerator.print(f"model: {args.output_dir}")
    if args.push_to_hub:
        trainer.push_to_hub()
    # A process group that the interpreter's end has to take down now and then aborts the process instead, and the
    # launcher reports a failure after all is done.
    trainer.accelerator.end_training()
