"""A trained checkpoint as a plain Hugging Face folder: `AutoModelForCausalLM`, vLLM and everybody else can load it.

A whole model is copied, bit for bit. An adapter stays an adapter, or is merged: each weight and its delta are added in
float32 and then rounded once to the type of the weight, without touching the base model (`weights.merged_weights`, the
same sum that the engines sampled from while it was trained).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoProcessor, AutoTokenizer, GenerationConfig

from agent_gym.errors import ConfigError
from agent_gym.policies.processors import let_videos_be_missing, model_class
from agent_gym.trainers.critic import FILE as CRITIC
from agent_gym.trainers.engine import merged_weights
from agent_gym.trainers.export.checkpoint import Checkpoint


def export_model(checkpoint: Checkpoint, out: str | Path, *, merge_adapter: bool = False, critic: bool = False) -> Path:
    """Write the model of a checkpoint.

    Args:
        checkpoint: what to export.
        out: a new or empty folder.
        merge_adapter: merge a LoRA adapter into its base model.
        critic: also copy the critic, to `critic/`, where no loader of the policy looks.

    Returns:
        The folder.

    Raises:
        ConfigError: if the folder has content, there is nothing to merge, no critic, no tokenizer, or the adapter's
            base model cannot be loaded or is no sum of weights.
    """
    out = Path(out).expanduser()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already; name a new folder, or empty it")
    if merge_adapter and checkpoint.base is None:
        raise ConfigError(f"{checkpoint.folder} is a whole model and no LoRA adapter: leave --merge_adapter out")
    if critic and not checkpoint.critic:
        raise ConfigError(f"{checkpoint.folder} has no critic; only agent-gym ppo leaves one")
    if not any(path.name.startswith("tokenizer") for path in checkpoint.files):
        raise ConfigError(f"{checkpoint.folder} has no tokenizer; save that of the base model into it first")
    # Made aside, so that a failure leaves no folder that looks like a model.
    aside = out.with_name(out.name + ".unfinished")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        if merge_adapter:
            _merge(checkpoint, aside)
        else:
            for path in checkpoint.files:
                shutil.copy2(path, aside)
        if (aside / "config.json").is_file() and not (aside / "generation_config.json").is_file():
            GenerationConfig.from_model_config(AutoConfig.from_pretrained(aside)).save_pretrained(aside)
        if critic:
            (aside / CRITIC).parent.mkdir()
            shutil.copy2(checkpoint.folder / CRITIC, aside / CRITIC)
        if out.exists():
            out.rmdir()
        aside.rename(out)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return out


def _merge(checkpoint: Checkpoint, out: Path) -> None:
    from peft import PeftModel

    let_videos_be_missing()
    kind = model_class(str(checkpoint.base))
    try:
        base: Any = kind.from_pretrained(str(checkpoint.base), dtype="auto")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot load the base model {checkpoint.base!r} of the adapter; correct base_model_name_or_path in "
            f"{checkpoint.folder / 'adapter_config.json'} ({str(error).splitlines()[0]})"
        ) from error
    config, generation_config = base.config, base.generation_config
    adapted = PeftModel.from_pretrained(base, str(checkpoint.folder))
    merged = {name: weight.contiguous() for name, weight in merged_weights(adapted)}
    # A fresh model of the same kind: PEFT has put layers of its own into the one it was given.
    plain: Any = kind.from_config(config, dtype=base.dtype)
    missing, unexpected = plain.load_state_dict(merged, strict=False)
    tied = set(plain.all_tied_weights_keys)
    if unexpected or set(missing) - tied:
        raise ConfigError(f"the adapter does not fit its base model: {[*unexpected, *missing][:3]}")
    plain.tie_weights()
    plain.generation_config = generation_config
    plain.save_pretrained(out)
    encoder = AutoTokenizer if kind is AutoModelForCausalLM else AutoProcessor
    encoder.from_pretrained(checkpoint.folder).save_pretrained(out)
