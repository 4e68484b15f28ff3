"""Models that are loaded by name: whole ones, and adapters on their base.

An adapter is read as it was trained, next to the weights of its base, where its own forward pass is run. Where it is to
be a whole model (vLLM, a teacher) it is merged: its deltas are added to the weights, and rounded once to their type.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_gym.data import cache_folder
from agent_gym.errors import ConfigError, require, writing
from agent_gym.models import adapter_base, adapter_folder, check_model, model_source
from agent_gym.policies.processors import load_encoder, model_class
from agent_gym.policies.savable import repair

_STAMP = "merged_from.json"


@contextmanager
def loading(model: str) -> Iterator[None]:
    """Turn an error of loading a model into one line.

    Raises:
        ConfigError: if its files are missing or broken, or the hub has no such model.
    """
    try:
        yield
    except (ConfigError, MemoryError, ImportError):
        raise
    except Exception as error:  # broken files end in any error of transformers
        reason = " ".join(str(error).split()).partition(". ")[0][:200]
        if Path(model).expanduser().is_dir():
            raise ConfigError(f"cannot load the model in {model}: {reason}") from error
        if not isinstance(error, OSError | ValueError):
            raise  # not of the hub's client
        what = f"the model {model!r}: there is no such folder, and the hub client reports: {reason}"
        raise ConfigError(f"cannot load {what}; without the hub there is: agent-gym prepare smollm2") from error


def load_model(model: str, **options: Any) -> Any:
    """Load a model, or an adapter and its base; `options` are passed to `from_pretrained`.

    Raises:
        ConfigError: if it cannot be loaded, or the base of the adapter is missing.
    """
    check_model(model)
    with loading(model):
        folder = adapter_folder(model)
        kind = model_class(model)
        if folder is None:
            return kind.from_pretrained(model_source(model), **options)
        return add_adapter(kind.from_pretrained(adapter_base(folder), **options), folder)


def add_adapter(base: Any, folder: Path, **options: Any) -> Any:
    """Put the adapter of a folder on its loaded base; `options` are passed to `PeftModel.from_pretrained`."""
    return require("peft", "train").PeftModel.from_pretrained(base, str(folder), **options)


def load_whole(model: str, **options: Any) -> Any:
    """Load a model without adapters: the adapters in its name are merged into its weights.

    Raises:
        ConfigError: if it cannot be loaded, or its adapter is of a kind that is not a sum of weights.
    """
    loaded = load_model(model, **options)
    if not hasattr(loaded, "peft_config"):
        return loaded
    if not hasattr(loaded, "merge_and_unload"):
        kinds = ", ".join(str(one.peft_type.value) for one in loaded.peft_config.values())
        raise ConfigError(
            f"the adapter in {model} ({kinds}) is not a sum of weights and cannot be merged into its base"
        )
    try:
        return loaded.merge_and_unload()
    except (AttributeError, NotImplementedError, ValueError) as error:
        raise ConfigError(f"the adapter in {model} cannot be merged into its base: {error}") from error


def whole_source(model: str) -> str:
    """Return where a whole model is loaded from, for engines that read a folder or a hub id themselves.

    An adapter is merged into a folder of the cache, which is kept until the adapter changes.
    """
    folder = adapter_folder(model)
    if folder is None:
        return model_source(model)
    check_model(model)
    files = sorted(path for path in folder.glob("adapter_*") if path.is_file())
    stamp = {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in files}
    about = json.dumps({"adapter": str(folder.resolve()), "base": adapter_base(folder), "files": stamp})
    place = cache_folder() / "merged" / hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    if (place / _STAMP).is_file() and (place / _STAMP).read_text(encoding="utf-8") == about:
        return str(place)
    with writing(place, "set AGENT_GYM_CACHE to a folder with room for the merged model"):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, ignore_cleanup_errors=True) as scratch:
            aside = Path(scratch, "model")
            merged = load_whole(model, dtype="auto")
            repair(merged)
            merged.save_pretrained(aside)
            load_encoder(model).save_pretrained(aside)
            (aside / _STAMP).write_text(about, encoding="utf-8")
            shutil.rmtree(place, ignore_errors=True)
            aside.rename(place)
    print(f"agent-gym: the adapter in {model} is merged into its base, in {place}", file=sys.stderr)
    return str(place)
