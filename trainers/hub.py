"""The files that `--push_to_hub` uploads: the model, its card, and no other file of a run's folder.

transformers uploads the whole folder. The folder of a run also holds the command line (`run.json`), the lock with the
name of the machine, logs, trajectories with rows of the training data, and files of the user. So this file names the
files that may leave the machine. A checkpoint is uploaded only for `--hub_strategy checkpoint` and `all_checkpoints`,
with the files that are needed to resume from it.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from huggingface_hub import HfApi
from transformers import Trainer
from transformers.trainer_utils import HubStrategy, SaveStrategy
from transformers.utils import PushInProgress

from agent_gym.trainers.saving import aside_name, move_into

MODEL_FILES = (
    *("config.json", "generation_config.json", "chat_template.jinja", "tokenizer*", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.*", "merges.txt", "*processor_config.json"),
    *("adapter_config.json", "adapter_model.safetensors", "model*.safetensors", "model.safetensors.index.json"),
)
"""The files of a model; other files of a checkpoint are the trainer's (optimizer, schedule, random states, logs)."""
_ABOUT = ("README.md", "agent_gym.json", "critic/model.safetensors")
# Code that belongs to a model, as `save_pretrained` names it.
_CODE = tuple(
    f"{part}_*.py"
    for part in (
        *("configuration", "modeling", "tokenization", "processing", "image_processing", "video_processing"),
        *("feature_extraction", "modular"),
    )
)
_OF_TRAINER = (
    *("optimizer*", "scheduler.pt", "scaler.pt", "rng_state*.pth", "trainer_state.json", "training_args.bin"),
    *("pytorch_model*", "optimizer_*/*", "pytorch_model_fsdp_*/*", "global_step*/*", "latest", "zero_to_fp32.py"),
)


def model_files(folder: Path, *, resumed: bool = False) -> list[str]:
    """Name the files of a folder that may be uploaded, relative to it; with `resumed` also the files for resuming."""
    patterns = (*MODEL_FILES, *_ABOUT, *_CODE, *(_OF_TRAINER if resumed else ()))
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(str(path.relative_to(folder)) for path in found)


class ModelUploads(Trainer):
    """A trainer that uploads its model, and no other file of its folder."""

    args: Any
    push_in_progress: Any

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model and upload it with its card; return the commit, or its future with `blocking=False`."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        token = token or self.args.hub_token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**kwargs)
        self._finish_current_push()
        return self._upload(
            Path(self.args.output_dir),
            model_files(Path(self.args.output_dir)),
            commit_message=commit_message,
            token=token,
            revision=revision or self.args.hub_revision,
            run_as_future=not blocking,
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Upload the model of a checkpoint while training continues, according to `hub_strategy`."""
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        running = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if running and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        folder, checkpoint = Path(self.args.output_dir), Path(checkpoint_folder)
        self._show_model(checkpoint, folder)
        when = f"step {self.state.global_step}"
        if self.args.save_strategy != SaveStrategy.STEPS:
            when = f"epoch {int(self.state.epoch or 0)}"
        about = {"token": self.args.hub_token, "revision": self.args.hub_revision, "run_as_future": True}
        message = f"Training in progress, {when}"
        jobs = [self._upload(folder, model_files(folder), commit_message=message, **about)]
        if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            last = self.args.hub_strategy == HubStrategy.CHECKPOINT
            about |= {"path_in_repo": "last-checkpoint" if last else checkpoint.name}
            files = model_files(checkpoint, resumed=True)
            jobs.append(self._upload(checkpoint, files, commit_message=f"{message}, checkpoint", **about))
        if running:
            self.push_in_progress.jobs.extend(jobs)
        else:
            self.push_in_progress = PushInProgress(cast(Any, jobs))  # declared as one job, used as a list

    def _show_model(self, checkpoint: Path, folder: Path) -> None:
        """Copy the model of a checkpoint to the run's folder, as it may be removed before its upload ends."""
        aside = folder / aside_name() / "hub"
        try:
            for name in model_files(checkpoint):
                (aside / name).parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(checkpoint / name, aside / name)
                except OSError:  # a file system without hard links
                    shutil.copy2(checkpoint / name, aside / name)
            move_into(folder, aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            with suppress(OSError):
                aside.parent.rmdir()
                aside.parent.parent.rmdir()

    def _upload(self, folder: Path, files: Sequence[str], **about: Any) -> Any:
        # The hub's client takes patterns, and a name may contain their special characters.
        allowed = [glob.escape(name) for name in files]
        return HfApi().upload_folder(
            repo_id=str(self.hub_model_id), folder_path=str(folder), allow_patterns=allowed, **about
        )
