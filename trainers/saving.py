"""The saving of a model: first its weights, then each further file separately, and each file is whole or absent.

transformers writes the configuration and the generation configuration before the weights, so that a single value
without a form in JSON keeps hours of training from the disk. Here a warning names a further file that fails, and the
others are written. A value that cannot be saved is left out of its file where training does not use it.
"""

from __future__ import annotations

import copy
import errno
import json
import os
import platform
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from agent_gym.errors import DISK_FULL, described
from agent_gym.policies.savable import write_generation_config

Write = Callable[[Path], Any]
"""Writes a file into a folder, and returns the names of the parts that it had to leave out, if any."""

ASIDE = "unfinished"
"""The place for unfinished files in the folder of a run, with a folder for each process."""
_PART = ".part"
_OF_THE_DISK = (*DISK_FULL, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENODEV, errno.EMFILE, errno.ENFILE)
_OF_THE_DISK_IN_RUST = tuple(f"(os error {number})" for number in _OF_THE_DISK)
_ENCODER_FILES = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model",
    "chat_template.jinja", "*processor_config.json",
)  # fmt: skip


def aside_name() -> str:
    """Return the place of this process's unfinished files, relative to the folder of a run."""
    return f"{ASIDE}/{platform.node() or 'host'}-{os.getpid()}"


def clear_aside(folder: Path, own: str = "") -> None:
    """Remove the unfinished files of ended processes on this machine, and the unfinished files of this process."""
    mine, host = folder / own, f"{platform.node() or 'host'}-"
    for left in folder.glob(f"{ASIDE}/*"):
        number = left.name.removeprefix(host)
        ended = left.name.startswith(host) and number.isdigit() and not Path("/proc", number).exists()
        # Older versions named the folders by checkpoint, not by process.
        if left == mine or (ended and Path("/proc/self").exists()) or left.name.startswith("checkpoint-"):
            shutil.rmtree(left, ignore_errors=True)
    with suppress(OSError):
        (folder / ASIDE).rmdir()


def settle(folder: Path) -> None:
    """Wait until a folder and its whole content are on disk, because a name must not be on disk before its content."""
    for place, _, names in os.walk(folder):
        for path in (*(Path(place, name) for name in names), Path(place)):
            sync(path)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_into(folder: Path, aside: Path) -> None:
    """Move the files of one folder into another, one at a time, weights first, so that a file is never torn."""
    files = [path.relative_to(aside) for path in aside.rglob("*") if path.is_file()]
    for name in sorted(files, key=lambda one: (not one.name.endswith((".safetensors", ".bin", ".pt")), str(one))):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(aside / name, folder / name)


def write_beside(folder: Path, files: Mapping[str, Write], *, whole: bool = False) -> dict[str, Exception]:
    """Write further files after the weights, each separately, and return the error of each file that failed.

    With `whole`, an error of the disk is raised: a checkpoint without a file is worth less than the checkpoint before.
    """
    failed: dict[str, Exception] = {}
    for name, write in files.items():
        part = folder / _PART
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            write(part)
            move_into(folder, part)
        except Exception as error:  # an error of a library, a full disk, or the user's class
            if whole and _is_of_the_disk(error):
                raise
            failed[name] = error
            warnings.warn(f"{name} could not be written into {folder}: {described(error)[:300]}", stacklevel=2)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return failed


def _is_of_the_disk(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
        return True
    return any(sign in str(error) for sign in _OF_THE_DISK_IN_RUST)  # the errors of `tokenizers` have no number


def write_weights(model: Any, folder: Path, state: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write the weights of an unwrapped model, or its adapters if it has any, as transformers and PEFT do."""
    if not isinstance(model, PreTrainedModel) and not is_peft_model(model):
        from safetensors.torch import save_file
        from transformers.utils import SAFE_WEIGHTS_NAME

        save_file({**(model.state_dict() if state is None else state)}, folder / SAFE_WEIGHTS_NAME, {"format": "pt"})
        return
    with _alone(model):
        model.save_pretrained(str(folder), state_dict=state)


@contextmanager
def _alone(model: Any) -> Iterator[None]:
    """Let `save_pretrained` skip the files that it writes before the weights."""
    shadowed: list[tuple[Any, str]] = [(model, "create_or_update_model_card")] if is_peft_model(model) else []
    if isinstance(model, PreTrainedModel):
        shadowed += [(one, "save_pretrained") for one in (model.config, model.generation_config) if one is not None]
    try:
        for owner, name in shadowed:
            vars(owner)[name] = lambda *args, **kwargs: None
        yield
    finally:
        for owner, name in shadowed:
            vars(owner).pop(name, None)


def files_of(model: Any, encoder: Any, args: Any) -> dict[str, Write]:
    """Return the writers of the further files of an unwrapped model, by the names of the files."""
    files: dict[str, Write] = {}
    if isinstance(model, PreTrainedModel):
        files["config.json"] = lambda folder: write_config(model.config, folder)
        if model.can_generate() and model.generation_config is not None:
            files["generation_config.json"] = lambda folder: write_generation_config(model.generation_config, folder)
    if encoder is not None:
        files["tokenizer"] = lambda folder: write_encoder(encoder, folder)
    files["training_args.bin"] = lambda folder: torch.save(args, folder / "training_args.bin")
    return files


def write_config(config: PreTrainedConfig, folder: Path) -> list[str]:
    """Write `config.json` without values that have no form in JSON, and return the names of these values."""
    try:
        config.save_pretrained(str(folder))
        return []
    except Exception as error:
        trial, lost = _plain_config(config)
        if not lost or isinstance(error, OSError):
            raise
    trial.save_pretrained(str(folder))
    return lost


def _plain_config(config: PreTrainedConfig) -> tuple[PreTrainedConfig, list[str]]:
    trial, lost = copy.copy(config), list[str]()
    try:
        sampling = dict(config._get_generation_parameters())  # transformers saves them in the other file
    except Exception:
        sampling = {}
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            vars(trial)[name], inner = _plain_config(value)
            lost += [f"{name}.{one}" for one in inner]
        elif name in sampling or not _is_plain(value):
            del vars(trial)[name]
            lost.append(name)
    return trial, lost


def _is_plain(value: Any) -> bool:
    def known(one: Any) -> Any:
        if isinstance(one, torch.dtype):
            return str(one)
        return one.to_dict()

    try:
        json.dumps(value, default=known, sort_keys=True)
    except Exception:
        return False
    return True


def write_encoder(encoder: Any, folder: Path) -> list[str]:
    """Write a tokenizer or processor without arguments that have no form in JSON, and return their names.

    If its class cannot write it, the files of the folder that it was loaded from are copied.
    """
    try:
        encoder.save_pretrained(str(folder))
        return []
    except Exception as error:  # an error of a library, or of the user's class
        if _is_of_the_disk(error):
            raise
        failure = error
    for path in folder.iterdir():
        path.unlink()
    tokenizer = getattr(encoder, "tokenizer", encoder)
    arguments = getattr(tokenizer, "init_kwargs", {})
    lost = [name for name, value in arguments.items() if not _is_argument(value)]
    if lost and encoder is tokenizer:
        trial = copy.copy(encoder)
        trial.init_kwargs = {name: value for name, value in arguments.items() if name not in lost}
        trial.save_pretrained(str(folder))
        return lost
    source = Path(str(getattr(tokenizer, "name_or_path", "")))
    there = source.is_dir() and source.name
    found = [path for pattern in _ENCODER_FILES for path in source.glob(pattern) if path.is_file()] if there else []
    if not found:
        raise failure
    for path in found:
        shutil.copy2(path, folder)
    return []


def _is_argument(value: Any) -> bool:
    from tokenizers import AddedToken

    def known(one: Any) -> Any:
        if isinstance(one, AddedToken):
            return str(one)
        raise TypeError

    try:
        json.dumps(value, default=known)
    except Exception:
        return False
    return True


def rotate(folder: Path, limit: int | None, kept: Sequence[str], aside: Path) -> None:
    """Remove the checkpoints of the lowest steps until `limit` are left, but none of `kept`, and never the last.

    A checkpoint loses its name before its files are removed: a process that is killed meanwhile leaves no half
    checkpoint under its name.
    """
    named = {path: re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name) for path in folder.iterdir()}
    steps = sorted((int(match[1]), path) for path, match in named.items() if match and path.is_dir())
    protected = {*kept, *(path.name for _, path in steps[-1:])}
    excess = len(steps) - limit if limit is not None and limit > 0 else 0
    for _, path in steps:
        if excess > 0 and path.name not in protected:
            gone = aside / f"removed-{path.name}"
            try:
                aside.mkdir(parents=True, exist_ok=True)
                path.rename(gone)
            except OSError as error:
                warnings.warn(f"{path} could not be removed: {error}", stacklevel=2)
            shutil.rmtree(gone, ignore_errors=True)
            excess -= 1
