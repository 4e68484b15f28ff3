"""What a run has left in its folder: whole models, LoRA adapters, a critic beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from transformers.trainer_utils import get_last_checkpoint

from agent_gym.errors import ConfigError
from agent_gym.trainers.critic import FILE as CRITIC

# Beside the weights; what else a checkpoint holds is the trainer's (optimizer, schedule, random generators, logs).
_KEPT = (
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*processor_config.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    "model*.safetensors",
    "model.safetensors.index.json",
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with a model.

    Attributes:
        folder: where it is.
        base: what an adapter belongs to, a hub id or a folder; None for a whole model.
        critic: whether a critic stands beside the policy.
    """

    folder: Path
    base: str | None
    critic: bool

    @property
    def files(self) -> list[Path]:
        """The files that a plain Hugging Face folder has: config, weights and tokenizer."""
        return sorted({path for pattern in _KEPT for path in self.folder.glob(pattern) if path.is_file()})


def find_checkpoint(path: str | Path) -> Checkpoint:
    """Find the model in a folder: its own, or else that of its last checkpoint.

    Raises:
        ConfigError: if there is none, or only pieces that one process of several has written.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"no folder at {path}; give the folder of a run, or one of its checkpoints")
    last = None if _has_model(folder) else get_last_checkpoint(str(folder))
    if last is not None:
        folder = Path(last)
    if not _has_model(folder):
        raise ConfigError(
            f"{folder} holds no model: neither adapter_config.json nor config.json with safetensors. Weights that are "
            "still sharded become whole with `accelerate merge-weights` (FSDP) or zero_to_fp32.py (DeepSpeed)"
        )
    adapter = folder / "adapter_config.json"
    base = None
    if adapter.is_file():
        base = str(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"])
    return Checkpoint(folder, base, (folder / CRITIC).is_file())


def _has_model(folder: Path) -> bool:
    if (folder / "adapter_config.json").is_file():
        return (folder / "adapter_model.safetensors").is_file()
    return (folder / "config.json").is_file() and any(folder.glob("model*.safetensors"))
