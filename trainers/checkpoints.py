"""Checkpoints that are written whole or not at all, and that describe their model.

A run can end while it writes a checkpoint: it is killed, its time ends, or the disk is full. transformers writes into
`checkpoint-N` from the start, and resumes from the highest N, whole or not. Here the files are written to the folder
`unfinished`. The folder gets its name when all ranks have written their part and every file is on disk: a rename is
atomic. The model at the end is written in the same way. Weights come first; another file that cannot be written is
named and left out (saving.py). Old checkpoints are removed in the order of their step numbers, and not by the clock.

With FSDP2 each rank writes its own share of weights and optimizer (adapters are written whole). Nothing is gathered,
and training continues while the shares are written. The folder gets its name after the first step at whose end all
shares are whole. The next checkpoint and the end of the run wait for that. `agent-gym export model` joins the shares.
The model that is saved at the end is whole.

Each folder that a trainer saves gets `agent_gym.json`, from which `agent-gym export model` writes a model card. The
file holds the facts that decided the training. It holds no paths of the machine and no access tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from pickle import PicklingError
from typing import Any

import torch
from accelerate.utils import is_peft_model
from accelerate.utils.constants import FSDP_MODEL_NAME, OPTIMIZER_NAME
from transformers import TrainerCallback
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from agent_gym.distributed import barrier_on_error, gather
from agent_gym.errors import ConfigError, RolloutError, write_whole
from agent_gym.evaluate.cards import versions
from agent_gym.public import public
from agent_gym.trainers.best_metric import check_best_metric
from agent_gym.trainers.common import with_metric
from agent_gym.trainers.hub import ModelUploads
from agent_gym.trainers.model_card import MEASURED, write_card
from agent_gym.trainers.public_arguments import public_arguments
from agent_gym.trainers.rehearsal import rehearse
from agent_gym.trainers.resumed import best_here, check_checkpoint, resume_schedule
from agent_gym.trainers.run_lock import held
from agent_gym.trainers.run_record import recorded_training
from agent_gym.trainers.saving import (
    Write,
    aside_name,
    clear_aside,
    files_of,
    move_into,
    rotate,
    settle,
    sync,
    write_beside,
    write_weights,
)
from agent_gym.untrusted import NONE, Values, count, read_json

FILE = "agent_gym.json"
# Settings of these groups and names are shown on a card where they differ from their defaults; _ALWAYS are shown
# anyway.
_DECISIVE = ("episodes", "credit", "selection", "loss", "teacher", "critic")
_INHERITED = (
    "epsilon_high", "delta", "scale_rewards", "mask_truncated_completions", "entropy_coef", "sync_ref_model",
    "vllm_importance_sampling_correction", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min",
    "optim", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm",
)  # fmt: skip
_ALWAYS = (
    "advantage_estimator", "loss_type", "learning_rate", "beta", "epsilon", "num_generations", "num_iterations",
    "per_device_train_batch_size", "gradient_accumulation_steps", "max_steps", "num_train_epochs", "temperature",
    "max_turn_tokens", "max_episode_tokens", "max_turns", "max_staleness", "context", "seed",
)  # fmt: skip
_SHAPE = {
    "trainer": str, "settings": dict, "step": count, "versions?": Values(str),
    "environments": [{"env_id": str, "env_kwargs": dict, "split": str, "tasks": count}],
    "evaluations?": [{"step": (count, NONE), "tasks?": str, **dict.fromkeys(MEASURED, (int, float))}],
}  # fmt: skip
_MARKS = (f"{PREFIX_CHECKPOINT_DIR}-*", "trajectories/*.jsonl", "*.safetensors")  # files that a run leaves


class WholeCheckpoints(ModelUploads):
    """A trainer that shows a checkpoint only when it is complete. All ranks share one output folder."""

    args: Any
    lr_scheduler: Any
    processing_class: Any
    _writing = False
    _weights_written = False  # of the checkpoint that is being written
    _unnamed: Path | None = None  # the name that the checkpoint being written will get
    _aside = ""  # the folder for files without their final name, chosen by the first rank for all ranks

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train.

        Raises `ConfigError` if the folder holds another run, or cannot take the files of a checkpoint, or if the
        checkpoint to resume from is damaged; `RolloutError` if a rank is lost.
        """
        if not args and "resume_from_checkpoint" not in kwargs:
            kwargs["resume_from_checkpoint"] = resume_point(self.args)
        checkpoint = args[0] if args else kwargs.get("resume_from_checkpoint")
        if checkpoint is True:
            checkpoint = get_last_checkpoint(self.args.output_dir)
        with ExitStack() as stack:
            with barrier_on_error():
                if self.is_world_process_zero():
                    stack.enter_context(held(self.args.output_dir))
                    if checkpoint:
                        check_checkpoint(Path(checkpoint))
                if not args and not kwargs.get("resume_from_checkpoint") and not self.state.global_step:
                    refuse_used(self.args.output_dir, marks=(f"{PREFIX_CHECKPOINT_DIR}-*",))
                if self.is_world_process_zero():
                    clear_aside(Path(self.args.output_dir), aside_name())
                    rehearse(self, self._files())
                    check_best_metric(self)
                    stack.enter_context(recorded_training(self))
            if self.is_fsdp_enabled and is_peft_model(self.model):
                # Adapters are small. For a model with adapters transformers writes a share of the adapters only,
                # without the critic.
                plugin = self.accelerator.state.fsdp_plugin
                plugin.state_dict_config = plugin.optim_state_dict_config = None
                plugin.set_state_dict_type("FULL_STATE_DICT")
            return self._train(*args, **kwargs)

    def _train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            result = super().train(*args, **kwargs)
            self._finish_checkpoint()
            return result
        except RuntimeError as error:
            # Between CPUs the error has the class RuntimeError, and only its text names the library.
            if not isinstance(error, torch.distributed.DistError) and "gloo" not in str(error):
                raise
            way = resume_hint(self.args.output_dir)
            raise RolloutError(f"another process of this run is gone ({error}). {way}") from error

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder, self._aside)) if self._writing else folder

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        rates = [*getattr(self.lr_scheduler, "base_lrs", ())]
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            resume_schedule(self.lr_scheduler, rates)

    def _files(self) -> dict[str, Write]:
        """Return the writers of all files of a saved folder but the weights, by the names of the files."""
        model = self.accelerator.unwrap_model(self.model)
        return files_of(model, self.processing_class, public_arguments(self.args))

    def _write_weights(self, folder: Path, state_dict: Any) -> None:
        write_weights(self.accelerator.unwrap_model(self.model), folder, state_dict)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Write the model: the weights first, then each other file separately."""
        folder = Path(self.args.output_dir if output_dir is None else output_dir)
        if self._writing:
            return self._write_model(folder, state_dict)
        aside = folder / aside_name() / "model"
        try:
            shutil.rmtree(aside, ignore_errors=True)
            clear_aside(folder)  # a run that was killed while it wrote this model left files
            self._write_model(aside, state_dict)
            settle(aside)
            move_into(folder, aside)
            sync(folder)
        except Exception as error:
            way = resume_hint(self.args.output_dir)
            raise RolloutError(f"the model could not be written to {folder}: {error}. {way}") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            with suppress(OSError):
                aside.parent.rmdir()
                aside.parent.parent.rmdir()

    def _write_model(self, folder: Path, state_dict: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._write_weights(folder, state_dict)
        self._weights_written = True
        write_beside(folder, self._files(), whole=self._writing)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write our model card as README.md, in place of TRL's; a card that cannot be written does not end the run."""
        if self.is_world_process_zero():
            card: Write = lambda folder: write_card(self, self._about(), folder)  # noqa: E731
            write_beside(Path(self.args.output_dir), {"README.md": card})

    def _about(self) -> dict[str, Any]:
        """Return the facts of the run that the card states."""
        return provenance(self)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the whole model; in a checkpoint of FSDP2, whose weights are in shares, save all other files."""
        if not self._in_shares:
            return super().save_model(output_dir, _internal_call)
        folder = self.args.output_dir if output_dir is None else output_dir
        if not self._writing:
            state = self.accelerator.get_state_dict(self.model)
            if self.args.should_save:
                self._save(folder, state_dict=state)
            return
        if self.args.should_save:
            Path(folder).mkdir(parents=True, exist_ok=True)
            write_beside(Path(folder), self._files(), whole=True)

    @property
    def _in_shares(self) -> bool:
        plugin = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        return plugin is not None and "SHARDED" in str(plugin.state_dict_type)

    @functools.cached_property
    def _shares(self) -> ShareWriter:
        self.add_callback(_NameWhenWritten(self))
        return ShareWriter()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self._in_shares:
            return super()._save_optimizer_and_scheduler(output_dir)
        self._shares.begin(self.model, self.optimizer, Path(output_dir))
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir, SCHEDULER_NAME))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._finish_checkpoint()
        self._aside = gather(aside_name())[0]
        folder = Path(self._get_output_dir(trial))
        final = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        written = folder / self._aside / final.name
        self.state.best_model_checkpoint = best_here(self.state.best_model_checkpoint, folder)
        if self.args.should_save:  # a run that was killed may have left files
            clear_aside(folder, self._aside)
        self.accelerator.wait_for_everyone()
        # The hub gets the checkpoint under its final name, and not the folder that is about to be renamed.
        pushes, self.args.push_to_hub = self.args.push_to_hub, False
        self._writing, self._weights_written = True, False
        try:
            with self._reported(final):
                super()._save_checkpoint(model, trial)
                if self.state.best_model_checkpoint == str(written):
                    self.state.best_model_checkpoint = str(final)
                    if self.args.should_save:
                        self.state.save_to_json(str(written / TRAINER_STATE_NAME))
        finally:
            self._writing = False
            self.args.push_to_hub = pushes
        self.accelerator.wait_for_everyone()
        self._unnamed = final
        if not self._shares.busy:
            self._finish_checkpoint()

    def _finish_checkpoint(self) -> None:
        """Wait until the last checkpoint is whole, and give it its name; raises `RolloutError` if that fails."""
        final, self._unnamed = self._unnamed, None
        if final is None:
            return
        with self._reported(final):
            self._shares.wait()
            if self.args.should_save:
                settle(final.parent / self._aside / final.name)
        with barrier_on_error():
            if self.args.should_save:
                self._give_name(final)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(final))

    def _give_name(self, final: Path) -> None:
        """Give a whole checkpoint its name, and remove old checkpoints."""
        written = final.parent / self._aside / final.name
        replaced = written.with_name(f"replaced-{final.name}")
        try:
            if final.exists():  # the same step, saved again
                final.rename(replaced)
            written.rename(final)
            sync(final.parent)
        except OSError as error:
            if not final.exists() and replaced.exists():
                replaced.rename(final)
            raise RolloutError(
                f"{final} could not get its name: {error}. It is whole in {written}: move it there, to resume from it"
            ) from error
        shutil.rmtree(replaced, ignore_errors=True)
        rotate(final.parent, self.args.save_total_limit, (final.name, self._best_name()), written.parent)
        with suppress(OSError):
            written.parent.rmdir()
            written.parent.parent.rmdir()

    def _best_name(self) -> str:
        best = self.state.best_model_checkpoint
        return f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}" if best is None else Path(best).name

    @contextmanager
    def _reported(self, final: Path) -> Iterator[None]:
        """Write on all ranks, or fail on all of them with an error that names the checkpoint and the free room."""
        try:
            with barrier_on_error():
                yield
        except Exception as error:  # a full disk is an OSError, RuntimeError or SafetensorError, by its writer
            folder = final.parent
            # Not every error names the cause: the error of torch only counts bytes.
            free = shutil.disk_usage(folder).free // 2**20 if folder.is_dir() else 0
            kept = self._keep_weights(final, error) if self.args.should_save else ""
            if self.args.should_save:
                clear_aside(folder, self._aside)
            raise RolloutError(
                f"{final} could not be written: {error}. {free} MiB were free there. "
                f"{kept}{resume_hint(self.args.output_dir)}"
            ) from error

    def _keep_weights(self, final: Path, error: Exception) -> str:
        """Keep the weights of a broken checkpoint if no other checkpoint exists, or if the disk has room.

        Training cannot resume from such weights.
        """
        written, kept = final.parent / self._aside / final.name, final.with_name(f"weights-{self.state.global_step}")
        mistake = isinstance(error, TypeError | ValueError | AttributeError | KeyError | PicklingError)
        if not self._weights_written or not written.is_dir() or kept.exists():
            return ""
        if not mistake and get_last_checkpoint(str(final.parent)) is not None:
            return ""  # resuming may need their room
        with suppress(OSError):
            written.rename(kept)
            return f"The model at this step is in {kept}. "
        return ""

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        if (name := self.args.metric_for_best_model) is not None:
            metrics = with_metric(name, metrics, first=self.state.best_metric is None)
        return super()._determine_best_metric(metrics, trial)

    def _load_best_model(self) -> None:
        self._finish_checkpoint()
        self.state.best_model_checkpoint = best_here(self.state.best_model_checkpoint, Path(self.args.output_dir))
        super()._load_best_model()


class ShareWriter:
    """Writes one checkpoint at a time with torch's DCP; all ranks call its methods at the same points.

    Training pauses for a copy to the memory of the CPU. The copy takes as many bytes as the share until the share is
    written: for AdamW in float32, 12 bytes per parameter divided by the number of ranks. The files have the format of
    accelerate, which reads them when a run is resumed. export_model.py reads them, too.
    """

    def __init__(self) -> None:
        self._writes: list[Future[Any]] = []
        self._groups: list[Any] = []

    @property
    def busy(self) -> bool:
        """Whether a checkpoint was begun and has not been waited for."""
        return bool(self._writes)

    def begin(self, model: Any, optimizer: Any, folder: Path) -> None:
        """Copy this rank's share of weights and optimizer, and begin to write it into a folder."""
        from torch.distributed import checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

        states: dict[str, dict[str, Any]] = {
            f"{FSDP_MODEL_NAME}_0": {"model": get_model_state_dict(model)},
            f"{OPTIMIZER_NAME}_0": {"optimizer": get_optimizer_state_dict(model, optimizer)},
        }
        # Two writes at the same time must not share a group, and the group of the run may support GPUs only.
        self._groups = self._groups or [torch.distributed.new_group(backend="gloo") for _ in states]
        for group, (name, state) in zip(self._groups, states.items(), strict=True):
            (folder / name).mkdir(parents=True, exist_ok=True)
            writer = dcp.FileSystemWriter(str(folder / name))
            write: Any = dcp.async_save(state, storage_writer=writer, process_group=group)
            self._writes.append(write)

    def is_done(self) -> bool:
        """Whether all ranks have ended their writes, with success or failure."""
        return all(gather(all(write.done() for write in self._writes)))

    def wait(self) -> None:
        """Wait until the writes have ended; if a write failed, raise its error."""
        from torch.distributed.checkpoint import CheckpointException

        writes, self._writes = self._writes, []
        failures = [failure for write in writes if (failure := write.exception()) is not None]
        for failure in failures:
            if isinstance(failure, CheckpointException):  # not an `Exception`, and its text is a page of tracebacks
                process, (cause, _) = next(iter(failure.failures.items()))
                raise RolloutError(f"process {process}: {cause}") from failure
            raise failure


class _NameWhenWritten(TrainerCallback):
    """Checks after each step whether the checkpoint that is being written is whole."""

    def __init__(self, trainer: WholeCheckpoints) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trainer._unnamed is not None and self._trainer._shares.is_done():
            self._trainer._finish_checkpoint()


def refuse_used(output_dir: str | Path, marks: Sequence[str] = _MARKS) -> None:
    """Raise `ConfigError` if a folder holds a file that matches one of the patterns, which means another run."""
    folder = Path(output_dir)
    found = next((path for mark in marks for path in sorted(folder.glob(mark))), None)
    if found is None:
        return
    cure = "go on with --resume_from_checkpoint true, or " if get_last_checkpoint(output_dir) else ""
    raise ConfigError(f"{output_dir} holds another run ({found.relative_to(folder)}): {cure}name another --output_dir")


def resume_point(args: Any) -> str | None:
    """Return the checkpoint to resume from, if any: the named one, or the last one for "true" and "auto"."""
    wanted = str(args.resume_from_checkpoint or "false")
    if wanted.lower() == "false":
        return None
    if wanted.lower() in ("true", "auto"):
        last = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
        if last is None and wanted.lower() == "true":
            raise ConfigError(f"there is no checkpoint to resume from in {args.output_dir}")
        return last
    if not Path(wanted).is_dir():
        raise ConfigError(f"there is no checkpoint at {wanted}")
    return wanted


def resume_hint(output_dir: str | Path) -> str:
    """Return the sentence that names the checkpoint from which a run in a folder can be resumed."""
    last = get_last_checkpoint(output_dir) if Path(output_dir).is_dir() else None
    return f"Resume from {last} with --resume_from_checkpoint true" if last else "There is no checkpoint yet"


def write_provenance(trainer: Any, folder: Path) -> None:
    """Write `agent_gym.json` into a folder: the training of its model, the tasks, and the results."""
    write_whole(Path(folder, FILE), json.dumps(public(provenance(trainer)), indent=2, default=str) + "\n")


def provenance(trainer: Any) -> dict[str, Any]:
    """Return the facts of a training: its settings, its tasks, and its results."""
    args, state, data = trainer.args, trainer.state, trainer.train_dataset
    sources = Counter(zip(data["env_id"], data["env_kwargs"], data["split"], strict=True))
    changed = [
        field.name
        for field in dataclasses.fields(args)
        if (field.metadata.get("group") in _DECISIVE or field.name in _INHERITED)
        and getattr(args, field.name) != field.default
    ]
    environments = [
        {"env_id": env_id, "env_kwargs": json.loads(kwargs), "split": split, "tasks": tasks}
        for (env_id, kwargs, split), tasks in sources.items()
    ]
    return {
        **run_facts(trainer, environments, (*_ALWAYS, *changed)),
        "evaluations": [found for entry in state.log_history for found in _evaluations(entry)],
    }


def _evaluations(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the evaluations of an entry of the log: of one set, or of several named sets."""
    for found in filter(None, (re.fullmatch("eval_(?:([^/]+)_)?success_low", name) for name in entry)):
        start, tasks = found[0].removesuffix("success_low"), {"tasks": found[1]} if found[1] else {}
        yield {"step": entry.get("step"), **tasks, **{name: entry.get(f"{start}{name}") for name in MEASURED}}


def run_facts(trainer: Any, environments: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> dict[str, Any]:
    """Return the facts that identify any trainer's run: its model, tasks, some settings, step, and versions."""
    named = {name: getattr(trainer.args, name) for name in settings}
    if named.get("teacher"):
        named["teacher"] = _public(named["teacher"])
    return {
        "trainer": type(trainer).__name__,
        "base_model": _public(str(trainer.model.config.name_or_path or "")),
        "environments": [*environments],
        "settings": named,
        "step": trainer.state.global_step,
        "versions": versions(),
    }


def _public(model: str) -> str:
    """Return the name of a model without its location: the last part of a folder, and "a server" for an address."""
    if model.startswith(("http://", "https://")):
        return "a server"
    return os.path.basename(model.rstrip("/")) if os.path.isdir(model) else model


def read_provenance(folder: str | Path) -> dict[str, Any]:
    """Return the content of `agent_gym.json`, empty if there is none; raises `ConfigError` if the file is broken."""
    path = Path(folder, FILE)
    try:
        return dict(read_json(path, _SHAPE)) if path.is_file() else {}
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read: {error}; delete it, and the card goes without it") from error
