"""What a trainer is given as its model: loaded by TRL from a name, or the adapter of a folder, which goes on training.

An adapter is trained on where it was: its base stays frozen, checkpoints are adapters of the same base, and the
reference of the KL is the adapter as it was loaded (TRL keeps a copy of it). A second adapter on the first is refused:
what is saved would belong to a base that no folder holds.
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
            f"{model} is an adapter, which goes on training as it is: leave --use_peft (peft_config) out. For a new "
            f"adapter, merge this one first: agent-gym export model {model} NEW --merge_adapter"
        )


@contextmanager
def policy_model(model: Any, args: Any, given: dict[str, Any]) -> Iterator[Any]:
    """Make what TRL's trainer takes as its model while it is made: what is a name of an adapter is loaded.

    `args` are the trainer's settings, and `given` its other arguments; it gets the tokenizer if there is none.

    Raises:
        ConfigError: if there is no such model, an adapter is to get an adapter, or the run's folder cannot be made.
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
        with loading(model):  # before TRL's own errors
            AutoConfig.from_pretrained(source, **{n: init[n] for n in ("revision", "trust_remote_code") if n in init})
        yield source
        return
    init.pop("revision", None)  # of the adapter
    if (quantization := given.pop("quantization_config", None)) is not None:
        init["quantization_config"] = quantization
    if args.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
        init["device_map"] = None  # as TRL does
    with loading(model):
        base = create_model_from_path(adapter_base(folder), **init)
        # Under ZeRO-3 all weights are of one type, as in TRL.
        same = {"autocast_adapter_dtype": False} if is_deepspeed_zero3_enabled() else {}
        loaded = add_adapter(base, folder, is_trainable=True, **same)
        if given.get("processing_class") is None:
            given["processing_class"] = load_encoder(model)
    # They were used; TRL would say that they are ignored.
    kept, args.model_init_kwargs = args.model_init_kwargs, None
    try:
        yield loaded
    finally:
        args.model_init_kwargs = kept
