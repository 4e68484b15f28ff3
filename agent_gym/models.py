"""Names of models, and whether a name can be one: a hub id, a folder, an adapter's folder, or a prepared name.

An adapter (LoRA and its kin, as PEFT saves them) is a folder without weights of a whole model. It names its base model
in `adapter_config.json`, and wherever a model is wanted it is one: base and adapter together. Nothing here imports
torch; `agent_gym.policies.loading` loads the model.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_gym.data import MODELS, cache_folder
from agent_gym.errors import ConfigError, require
from agent_gym.registry.trained import trained_folder
from agent_gym.untrusted import read_json

ADAPTER = "adapter_config.json"
_CHECKPOINT = "checkpoint-"
_LONGEST_NAME = 255  # characters of a folder or a hub id: file systems take no longer ones
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_WEIGHTS = ("*.safetensors", "*.bin", "*.safetensors.index.json", "*.bin.index.json")
_SHARES = "pytorch_model_fsdp_0"  # accelerate's name
_POINTER = b"version https://git-lfs"
_OTHERS = "a model is a folder or a hub id"

SOURCES: dict[str, Callable[[str], str]] = {"trained": trained_folder}
"""Finders for names with a prefix: `SOURCES["trained"]("NAME")` is the folder or id of `trained:NAME`."""


def model_source(model: str) -> str:
    """Return where a model is loaded from: for a prepared name its folder, else the name itself.

    A folder of that name in the working directory comes first.

    Raises:
        ConfigError: if `agent-gym prepare` has not made that model yet.
    """
    prefix, colon, name = model.partition(":")
    if colon and prefix in SOURCES and not Path(model).is_dir():
        return SOURCES[prefix](name)
    if model not in MODELS or Path(model).is_dir():
        return str(Path(model).expanduser()) if model.startswith("~") else model
    folder = cache_folder() / model / MODELS[model]
    if not folder.is_dir():
        raise ConfigError(f"the model {model!r} is not in {folder.parent} yet; to get it: agent-gym prepare {model}")
    return str(folder)


def adapter_folder(model: str) -> Path | None:
    """Return the folder of an adapter, also of one on the hub; None for a whole model, and for anything else."""
    source = model_source(model)
    path = Path(source)
    if path.is_dir():
        return path if (path / ADAPTER).is_file() else None
    return None if _is_path(source) or path.exists() else _hub_adapter(source)


def adapter_base(folder: Path) -> str:
    """Return the source of the model to which an adapter belongs.

    A folder that was moved together with its adapter is found in it, or above it.

    Raises:
        ConfigError: if the adapter's configuration names none, or its folder is not there.
    """
    file = folder / ADAPTER
    base = _read_json(file).get("base_model_name_or_path")
    cure = f"set base_model_name_or_path in {file} to the folder or hub id of the model that it was trained on"
    if not isinstance(base, str) or not 0 < len(base) <= _LONGEST_NAME:
        raise ConfigError(f"the adapter in {folder} names no base model: {cure}")
    source = model_source(base)
    name = Path(base).name
    nearby = [Path(source), folder / base, folder / name, folder.parent / name]
    found = next((place for place in nearby if place.is_dir() and place.resolve() != folder.resolve()), None)
    if found is not None and (found / ADAPTER).is_file():
        raise ConfigError(
            f"the adapter in {folder} belongs to {found}, which is an adapter, too: merge that one first (agent-gym "
            f"export model {found} NEW --merge_adapter), and {cure}"
        )
    if found is not None:
        check_model(str(found))
        return str(found)
    if _is_path(source) or Path(source).exists():
        raise ConfigError(f"the adapter in {folder} belongs to the model {base!r}, which is not there: {cure}")
    return source


def config_source(model: str) -> str:
    """Return where the configuration of a model is: for an adapter that of its base."""
    folder = adapter_folder(model)
    return model_source(model) if folder is None else adapter_base(folder)


def check_model(model: str | None) -> None:
    """Raise `ConfigError` without a model, and for a path that holds no model that can be loaded.

    Whether the hub has a model is left to its client.
    """
    if not model:
        raise ConfigError("which model? give --model_name_or_path with a folder or hub id")
    source = model_source(model)
    path = Path(source)
    if path.is_dir():
        _check_folder(model, path)
    elif path.is_file():
        raise ConfigError(f"{model} is a file; {_OTHERS}")
    elif _is_path(source):
        raise ConfigError(f"no model folder at {model}")


def _check_folder(model: str, path: Path) -> None:
    if (path / ADAPTER).is_file():
        if not any((path / name).is_file() for name in _ADAPTER_WEIGHTS):
            raise ConfigError(
                f"{model} has {ADAPTER} and no weights of an adapter ({_ADAPTER_WEIGHTS[0]}){_last(path)}"
            )
        adapter_base(path)
        check_weights(path, "adapter_model.safetensors")
        return
    if not (path / "config.json").is_file():
        raise ConfigError(f"{model} is a folder without config.json, so it holds no model{_last(path)}")
    if not _read_json(path / "config.json"):
        raise ConfigError(f"{path / 'config.json'} is empty, so that {model} holds no model{_last(path)}")
    if (path / _SHARES).is_dir():
        raise ConfigError(
            f"the weights in {model} are in shares of several processes; agent-gym export model joins them"
        )
    if {found.name for pattern in _WEIGHTS for found in path.glob(pattern)} <= {"training_args.bin"}:
        raise ConfigError(f"{model} is a folder without weights (*.safetensors), so it holds no model{_last(path)}")
    check_weights(path, "*.safetensors")


def check_weights(path: Path, pattern: str) -> None:
    """Read the head of each file of weights, which says how long the file is."""
    for file in sorted(path.glob(pattern)):
        size = file.stat().st_size
        with file.open("rb") as opened:
            if opened.read(len(_POINTER)) == _POINTER:
                raise ConfigError(f"{file} is a pointer of Git LFS and no weights: git lfs pull fetches them")
            opened.seek(0)
            head = int.from_bytes(opened.read(8), "little")
            try:
                # 8 bytes with the length of a JSON object, the object, and the bytes of all tensors
                # (https://github.com/huggingface/safetensors#format).
                tensors: dict[str, Any] = json.loads(opened.read(head)) if 2 <= head <= size - 8 else {"": {}}
                ends = [entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"]
                whole = size == 8 + head + max(ends, default=0)
            except (ValueError, AttributeError, KeyError, TypeError, IndexError, RecursionError):
                whole = False
        if not whole:
            raise ConfigError(f"{file} is not a whole file of weights ({size:,} bytes): copy or download it again")


def _last(path: Path) -> str:
    """Name the last checkpoint of a run whose folder has no model itself."""
    steps = [one.name.removeprefix(_CHECKPOINT) for one in path.glob(f"{_CHECKPOINT}*") if one.is_dir()]
    numbers = [int(step) for step in steps if step.isdigit()]
    return f"; its last checkpoint does: {path / f'{_CHECKPOINT}{max(numbers)}'}" if numbers else ""


def _is_path(source: str) -> bool:
    return source.startswith((".", "/", "~")) or source.count("/") > 1


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path, dict))
    except ValueError as error:
        raise ConfigError(
            f"{path} cannot be read: {' '.join(str(error).split())}; it must hold a JSON object: copy it again"
        ) from error


@functools.lru_cache(maxsize=64)
def _hub_adapter(name: str) -> Path | None:
    """Return where the files of an adapter on the hub are, after they were fetched; None for other models."""
    try:
        hub = require("huggingface_hub", "train")
        if isinstance(hub.try_to_load_from_cache(name, "config.json"), str):
            return None
        hub.hf_hub_download(name, ADAPTER)
        return Path(hub.snapshot_download(name))
    except (OSError, ValueError):  # it has none, or cannot be asked; the loader of whole models says so
        return None


def named_tokenizer(model: str, *, images: bool = False) -> Any:
    """Load the tokenizer of a model, or its processor where there are `images`; `ConfigError` if that cannot be."""
    transformers = require("transformers", "train")
    kind = transformers.AutoProcessor if images else transformers.AutoTokenizer
    try:
        return kind.from_pretrained(encoder_source(model))
    except ConfigError:
        raise
    except Exception as error:  # broken files end in any error of transformers, and of `tokenizers` in a bare one
        if not isinstance(error, OSError | ValueError) and not Path(model_source(model)).is_dir():
            raise
        reason = " ".join(str(error).split()).partition(". ")[0][:200]
        cure = "give the folder or hub id of a model, smollm2 after `agent-gym prepare smollm2`, or a loaded tokenizer"
        raise ConfigError(f"the tokenizer of {model!r} cannot be loaded: {reason}; {cure}") from error


def encoder_source(model: str) -> str:
    """Return where the tokenizer or processor of a model is: an adapter has that of its base where it has none."""
    folder = adapter_folder(model)
    if folder is None:
        return model_source(model)
    return str(folder) if any(folder.glob("tokenizer*")) else adapter_base(folder)
