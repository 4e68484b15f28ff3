"""The record of a training in the folder of its run, whoever has started it: `run.json` and `log.jsonl`.

A command writes the file itself, since it also knows of processes that train on other ranks. A Python program, a
notebook and each part of a speedrun train without a command, and then the trainer writes the file. Either way the
trainer adds the environments and the model, and a line per log.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from agent_gym.trainers.run_file import FILE, add, log, note, of_this_run, recording


@contextmanager
def recorded_training(trainer: Any) -> Iterator[None]:
    """Record a training in the folder of its run; only the first process of a run calls this."""
    folder = Path(str(trainer.args.output_dir))
    if not any(isinstance(one, RunNumbers) and one.folder is None for one in trainer.callback_handler.callbacks):
        trainer.add_callback(RunNumbers())
    if of_this_run(folder):
        add(folder, facts_of(trainer))
        yield
        return
    with recording("python", program(), folder / FILE):
        add(folder, facts_of(trainer))
        yield


def facts_of(trainer: Any) -> dict[str, str]:
    """Return the facts that a list of runs shows: the trainer, its environments and its model."""
    rows = trainer.train_dataset
    columns = getattr(rows, "column_names", None) or ()  # an iterable data set may not know them
    envs = sorted(map(str, rows.unique("env_id"))) if "env_id" in columns else []
    model = getattr(getattr(trainer.model, "config", None), "_name_or_path", "") or ""
    name = type(trainer).__name__
    public = f"{trainer._name}Trainer" if name.startswith("_") else name  # TRL's name of the method
    facts = {"trainer": public, "env": ", ".join(envs), "model": str(model)}
    return {name: value for name, value in facts.items() if value}


def program() -> list[str]:
    """Return the words behind `python` with which this process was started; of a notebook only that it is one."""
    return ["notebook"] if "ipykernel" in sys.modules else [*sys.orig_argv[1:]]


class RunNumbers(TrainerCallback):
    """Writes step and last numbers into run.json, for `agent-gym runs`, and each log into log.jsonl.

    Args:
        folder: the folder of the run; by default the trainer's `output_dir`.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = folder

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(self.folder or args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            log(folder, state.global_step, logs or {})
            note(folder, state.global_step, state.max_steps, logs or {})
