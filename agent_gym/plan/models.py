"""Where a model's shape comes from: a folder, the table below, or the hub."""

from __future__ import annotations

import json
from pathlib import Path

from agent_gym.errors import ConfigError, require
from agent_gym.plan.shapes import ModelShape


def _qwen25(hidden: int, mlp: int, layers: int, heads: int, kv_heads: int) -> ModelShape:
    tied = hidden < 3000  # up to 3B
    vocab = 151936 if tied else 152064
    return ModelShape(hidden, mlp, layers, heads, kv_heads, hidden // heads, vocab, tied, qkv_bias=True)


def _qwen3(hidden: int, mlp: int, layers: int, heads: int) -> ModelShape:
    return ModelShape(hidden, mlp, layers, heads, 8, 128, 151936, tied=hidden < 3000, qk_norm=True)


def _llama3(hidden: int, mlp: int, layers: int, heads: int) -> ModelShape:
    return ModelShape(hidden, mlp, layers, heads, 8, hidden // heads, 128256, tied=hidden < 4000)


# From the models' public config.json files. Tuned variants have the shapes of their base models.
KNOWN = {
    "Qwen/Qwen2.5-0.5B": _qwen25(896, 4864, 24, 14, 2),
    "Qwen/Qwen2.5-1.5B": _qwen25(1536, 8960, 28, 12, 2),
    "Qwen/Qwen2.5-3B": _qwen25(2048, 11008, 36, 16, 2),
    "Qwen/Qwen2.5-7B": _qwen25(3584, 18944, 28, 28, 4),
    "Qwen/Qwen2.5-14B": _qwen25(5120, 13824, 48, 40, 8),
    "Qwen/Qwen2.5-32B": _qwen25(5120, 27648, 64, 40, 8),
    "Qwen/Qwen2.5-72B": _qwen25(8192, 29568, 80, 64, 8),
    "Qwen/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16),
    "Qwen/Qwen3-4B": _qwen3(2560, 9728, 36, 32),
    "Qwen/Qwen3-8B": _qwen3(4096, 12288, 36, 32),
    "Qwen/Qwen3-14B": _qwen3(5120, 17408, 40, 40),
    "Qwen/Qwen3-32B": _qwen3(5120, 25600, 64, 64),
    "meta-llama/Llama-3.2-1B": _llama3(2048, 8192, 16, 32),
    "meta-llama/Llama-3.2-3B": _llama3(3072, 8192, 28, 24),
    "meta-llama/Llama-3.1-8B": _llama3(4096, 14336, 32, 32),
    "meta-llama/Llama-3.1-70B": _llama3(8192, 28672, 80, 64),
    "meta-llama/Llama-3.3-70B": _llama3(8192, 28672, 80, 64),
}


def find_shape(model: str) -> ModelShape:
    """Return the shape of a model by folder, name or hub id, without loading it.

    Raises:
        ConfigError: if there is no such folder, the hub cannot be asked, or the model is of another family.
    """
    if (Path(model) / "config.json").is_file():
        return _read(Path(model) / "config.json")
    if model.startswith((".", "/")):
        raise ConfigError(f"there is no {model}/config.json: give a model's folder, a hub id, or one of {_names()}")
    base = model.removesuffix("-Instruct").removesuffix("-Base")
    if base in KNOWN:
        return KNOWN[base]
    hub = require("huggingface_hub", "train")
    try:
        return _read(Path(hub.hf_hub_download(model, "config.json")))
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"cannot get config.json of {model!r} from the hub ({type(error).__name__}); give a local folder, or one "
            f"of those known offline: {_names()}"
        ) from error


def _read(path: Path) -> ModelShape:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    return ModelShape.from_config(config)


def _names() -> str:
    return ", ".join(KNOWN)
