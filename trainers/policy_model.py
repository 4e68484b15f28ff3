"""The model that a trainer is given: TRL loads it from a name, or the adapter of a folder is loaded for more training.

An adapter is trained in its place. Its base stays frozen, checkpoints are adapters of the same base, and the reference
model of the KL is the adapter as it was loaded (TRL keeps a copy). A second adapter on the first is refused: the saved
adapter would belong to a base that no folder holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.integrations import is_deepspeed_zero3_enabled
from trl.trainer.utils import create_model_from_path

from agent_gym.errors import ConfigError, writing
from agent_gym.models import adapter_base, adapter_folder, check_model, model_source
from agent_gym.policies.loading import add_adapter, load_encoder, loading


def check_adapter(model: str, adds_adapter: bool) -> None:
    """Raise `ConfigError` if a new adapter is asked for on a model that is an adapter already."""
    if adds_adapter and adapter_folder(model) is not None:
        raise ConfigError(
            f"{model} is an adapter, and is trained further without another one: leave --use_peft (peft_config) out. "
            f"For a new adapter, merge this one first: agent-gym export model {model} NEW --merge_adapter"
        )


@contextmanager
def policy_model(model: Any, args: Any, given: dict[str, Any]) -> Iterator[Any]:
    """Yield the model argument for TRL's trainer while the trainer is made; the name of an adapter is loaded here.

    `args` are the trainer's settings, and `given` holds its other arguments. `given` gets the tokenizer if it has none.

    Raises:
        ConfigError: if the model does not exist, an adapter is to get an adapter, or the run's folder cannot be made.
    """
    with writing(args.output_dir, "name another folder with --output_dir"):
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)  # as transformers does
    if not isinstance(model, str):
        yield model
        return
    check_model(model)
    check_adapter(model, given.get("peft_config") is not None)
    init = dict(args.model_init_kwargs or {})
    init.setdefault("trust_remote_code", args.trust_remote_code)
    folder = adapter_folder(model)
    if folder is None:
        source = model_source(model)
        with loading(model):  # before TRL raises less clear errors
            AutoConfig.from_pretrained(source, **{n: init[n] for n in ("revision", "trust_remote_code") if n in init})
        yield source
        return
    init.pop("revision", None)  # the revision is that of the adapter
    if (quantization := given.pop("quantization_config", None)) is not None:
        init["quantization_config"] = quantization
    if args.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
        init["device_map"] = None  # as TRL does
    with loading(model):
        base = create_model_from_path(adapter_base(folder), **init)
        # Under ZeRO-3 all weights have one type, as in TRL.
        same = {"autocast_adapter_dtype": False} if is_deepspeed_zero3_enabled() else {}
        loaded = add_adapter(base, folder, is_trainable=True, **same)
        if given.get("processing_class") is None:
            given["processing_class"] = load_encoder(model)
    # The arguments were used here; TRL would warn that they are ignored.
    kept, args.model_init_kwargs = args.model_init_kwargs, None
    try:
        yield loaded
    finally:
        args.model_init_kwargs = kept
