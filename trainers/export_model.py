"""A trained checkpoint as a plain Hugging Face folder, which `AutoModelForCausalLM` and vLLM load.

A whole model is copied, bit for bit. The shares of a sharded model (FSDP2) are joined first. An adapter is copied, or
merged: each weight and its delta are added in float32, and the sum is rounded once to the type of the weight
(`engine.merged_weights`, which also gave the engines their weights during training). `push` uploads a folder to the
hub.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
import torch
from accelerate.utils import merge_fsdp_weights
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoProcessor, AutoTokenizer, GenerationConfig
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import SAFE_WEIGHTS_NAME

from agent_gym.errors import ConfigError, whole_folder
from agent_gym.models import adapter_base, model_source
from agent_gym.policies.loading import loading
from agent_gym.policies.processors import let_videos_be_missing, model_class
from agent_gym.policies.savable import repair, write_generation_config
from agent_gym.renamed import renamed
from agent_gym.trainers.critic import FILE as CRITIC
from agent_gym.trainers.critic import PREFIX, save_critic
from agent_gym.trainers.engine import merged_weights
from agent_gym.trainers.hub import MODEL_FILES
from agent_gym.untrusted import MAX_BYTES, read_json

_SHARES = "pytorch_model_fsdp_0"  # accelerate's name


class Checkpoint(NamedTuple):
    """A folder with a model, whole or in shares."""

    folder: Path
    base: str | None  # the base model of an adapter, a hub id or a folder; None for a whole model


def find_checkpoint(path: str | Path) -> Checkpoint:
    """Find the model of a folder, or of its last checkpoint; raises `ConfigError` if neither has a whole model."""
    folder = Path(model_source(str(path))).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"no folder at {path}; give the folder of a run, or one of its checkpoints")
    for place in (folder, Path(get_last_checkpoint(str(folder)) or folder)):
        adapter = place / "adapter_config.json"
        if adapter.is_file() and (place / "adapter_model.safetensors").is_file():
            return Checkpoint(place, _base_of(adapter))
        weights = (place / _SHARES).is_dir() or any(place.glob("model*.safetensors"))
        if not adapter.is_file() and (place / "config.json").is_file() and weights:
            return Checkpoint(place, None)
    raise ConfigError(
        f"{place} holds no model: neither adapter_config.json nor config.json with safetensors. Weights that DeepSpeed "
        "has left in shares become whole with its zero_to_fp32.py"
    )


def _base_of(adapter: Path) -> str:
    try:
        return str(read_json(adapter, {"base_model_name_or_path": str})["base_model_name_or_path"])
    except ValueError as error:
        raise ConfigError(f"{adapter} cannot be read: {error}; copy it again, or set the base model in it") from error


def export_model(checkpoint: Checkpoint, out: str | Path, *, merge_adapter: bool = False, critic: bool = False) -> Path:
    """Write the model of a checkpoint to a new or empty folder, and return the folder.

    The critic goes to `critic/`, where no loader of the policy looks. Raises `ConfigError` if the folder has content,
    if a requested part (adapter, critic) or the tokenizer is missing, or if the adapter cannot be merged or its base
    model cannot be loaded.
    """
    if (checkpoint.folder / _SHARES).is_dir():
        with TemporaryDirectory(prefix="agent-gym-") as scratch:
            _join_shares(checkpoint, Path(scratch))
            checkpoint = checkpoint._replace(folder=Path(scratch))
            return export_model(checkpoint, out, merge_adapter=merge_adapter, critic=critic)
    out, folder = Path(out).expanduser(), checkpoint.folder
    kept = sorted({path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.is_file()})
    if large := [path for path in kept if path.suffix == ".json" and path.stat().st_size > MAX_BYTES]:
        raise ConfigError(f"{large[0]} has more than {MAX_BYTES:,} bytes, too many for settings or a tokenizer")
    if merge_adapter and checkpoint.base is None:
        raise ConfigError(f"{folder} is a whole model and no LoRA adapter: leave --merge_adapter out")
    if critic and not (folder / CRITIC).is_file():
        raise ConfigError(f"{folder} has no critic; only agent-gym ppo leaves one")
    if not any(path.name.startswith("tokenizer") for path in kept):
        raise ConfigError(f"{folder} has no tokenizer; save that of the base model into it first")
    with whole_folder(out) as aside:  # a failure leaves no folder that looks like a model
        if merge_adapter:
            _merge(checkpoint, aside)
        else:
            for path in kept:
                shutil.copy2(path, aside)
        if (aside / "config.json").is_file() and not (aside / "generation_config.json").is_file():
            write_generation_config(GenerationConfig.from_model_config(AutoConfig.from_pretrained(aside)), aside)
        if critic:
            (aside / CRITIC).parent.mkdir()
            shutil.copy2(folder / CRITIC, aside / CRITIC)
    return out


def _join_shares(checkpoint: Checkpoint, out: Path) -> None:
    """Write a folder with the contents of an unsharded checkpoint: model, critic, tokenizer, configuration."""
    for path in checkpoint.folder.iterdir():
        if path.is_file():
            shutil.copy2(path, out)
    merge_fsdp_weights(str(checkpoint.folder / _SHARES), str(out))
    joined = out / SAFE_WEIGHTS_NAME
    state = load_file(joined)
    joined.unlink()
    critic = {name.removeprefix(PREFIX): state.pop(name) for name in list(state) if name.startswith(PREFIX)}
    if critic:
        save_critic(critic, out)
    with torch.device("meta"):
        model = model_class(checkpoint.folder).from_config(AutoConfig.from_pretrained(checkpoint.folder))
    model.save_pretrained(out, state_dict=state)


def _merge(checkpoint: Checkpoint, out: Path) -> None:
    from peft import PeftModel

    let_videos_be_missing()
    source = adapter_base(checkpoint.folder)
    kind = model_class(source)
    with loading(source):
        base: Any = kind.from_pretrained(source, dtype="auto")
    repair(base)
    adapted = PeftModel.from_pretrained(base, str(checkpoint.folder))
    base.save_pretrained(out, state_dict={name: weight.contiguous() for name, weight in merged_weights(adapted)})
    encoder = AutoTokenizer if kind is AutoModelForCausalLM else AutoProcessor
    encoder.from_pretrained(checkpoint.folder).save_pretrained(out)


def check_name(name: str) -> None:
    """Raise `ConfigError` for a name that the hub would refuse, or that is not like `user/model`."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(f"{name!r} is not a name for the hub: {error}") from error
    if "/" not in name:
        raise ConfigError(f"{name!r} names no owner; on the hub a name is like user/{name}")


def push(folder: str | Path, name: str, *, kind: str = "model") -> str:
    """Upload a folder as `user/name`, a "model" or a "dataset", and return its address; a missing one is created.

    Raises `ConfigError` if this machine is offline, has no token, or may not write there. The folder is kept.
    """
    api = HfApi()
    try:
        made: Any = api.create_repo(name, repo_type=kind, exist_ok=True)
        api.upload_folder(repo_id=name, repo_type=kind, folder_path=folder, commit_message="Export from agent-gym")
    except (httpx.HTTPError, OSError) as error:  # the base classes of all errors of the hub's client
        reason = f"no hub within reach ({type(error).__name__})"
        if isinstance(error, OfflineModeIsEnabled):
            reason = "HF_HUB_OFFLINE is set"
        elif isinstance(error, LocalTokenNotFoundError):
            reason = "no token; log in with `hf auth login`"
        elif isinstance(error, HfHubHTTPError):
            status = error.response.status_code if error.response is not None else "no"
            cure = "; log in with `hf auth login`, or take a name of your own" if status in (401, 403, 404) else ""
            reason = f"the hub answered {status}{cure}"
        later = f"the folder is complete; push it later with: hf upload {name} {folder} --repo-type {kind}"
        raise ConfigError(f"cannot push {name}: {reason}; {later}") from error
    return str(made)


__getattr__ = renamed(
    __name__, {name: f"agent_gym.trainers.model_card:{name}" for name in ("read_evaluations", "write_card")}
)
