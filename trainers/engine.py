"""The engine that samples the rollouts, in this process or in another one, and the weights that it gets.

An engine takes full tensors under the names of the checkpoint, whether or not the trainer has adapters or shards.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import nn
from transformers.core_model_loading import revert_weight_conversion

from agent_gym.chat import ChatRenderer
from agent_gym.distributed import barrier_on_error
from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.base import Policy
from agent_gym.policies.savable import repair
from agent_gym.policies.transformers import TransformersPolicy
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.critic import PREFIX, policy_only
from agent_gym.trainers.forward import base_model_of


def wants_vllm(args: AgentGRPOConfig) -> bool:
    """Whether to try vLLM: the value of `use_vllm`, by default True where vLLM is installed."""
    return find_spec("vllm") is not None if args.use_vllm is None else args.use_vllm


def check_sharded(args: AgentGRPOConfig, policy: Policy | None) -> None:
    """Raise `ConfigError` if the transformers engine would sample from a sharded model."""
    # Ranks decode different numbers of steps, and each pass through a sharded model needs all ranks.
    if isinstance(policy, TransformersPolicy) or (policy is None and not wants_vllm(args)):
        raise ConfigError(
            "the model is in shares (FSDP2 or ZeRO-3), and the transformers engine samples from whole ones only: "
            "install vLLM and set --use_vllm true, or take --accelerate_config ddp or zero2"
        )


def build_policy(
    model: Any,
    renderer: ChatRenderer,
    args: AgentGRPOConfig,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    *,
    sharded: bool = False,
) -> Policy:
    """Make the engine of an unwrapped policy: vLLM in this process or on servers, or transformers on the model itself.

    If `use_vllm` is None and vLLM cannot serve the policy, a warning gives the reason, and transformers samples in the
    precision of `autocast`. If vLLM was set, or the model is sharded (`sharded`), the function raises `ConfigError`.
    """
    if wants_vllm(args):
        made: Policy | None = None
        try:
            with barrier_on_error():
                made = _vllm(model, renderer, args)
            return made
        except (ConfigError, RolloutError) as error:
            if args.use_vllm or sharded:
                raise
            if made is not None:  # another rank has no engine
                made.close()
            warnings.warn(f"{error}. Sampling with transformers, which is slower (use_vllm false)", stacklevel=2)
    return TransformersPolicy(
        model,
        renderer.eos_token_ids,
        renderer.tokenizer.pad_token_id,
        renderer.decode_action,
        vision=renderer.vision,
        seed=args.seed,
        autocast=autocast,
    )


def _vllm(model: Any, renderer: ChatRenderer, args: AgentGRPOConfig) -> Policy:
    check_servable(model)
    context = args.vllm_max_model_length or args.max_episode_tokens
    if args.layout == "server":
        from agent_gym.policies.vllm.server import VLLMServerPolicy

        return VLLMServerPolicy(
            args.server_urls,
            renderer.eos_token_ids,
            context=context,
            seed=args.seed,
            transfer=args.weights_transfer,
            folder=args.weights_folder,
            start_timeout_s=args.vllm_server_timeout,
        )
    # vLLM reads the architecture from a folder or the hub; the weights are sent before the first rollout. A model that
    # was made in memory, or that PEFT wraps, is saved once.
    base = base_model_of(model)
    place = base.config._name_or_path
    if not place or (place.startswith((".", "/")) and not Path(place).is_dir()):
        place = tempfile.mkdtemp(prefix="agent-gym-")
        repair(base)
        with policy_only(base):
            base.save_pretrained(place)
        renderer.source.save_pretrained(place)
    settings: dict[str, Any] = {
        "context": context,
        "max_num_seqs": args.max_num_seqs,
        "dtype": _engine_dtype(args, base),
        "gpu_memory_utilization": args.vllm_gpu_memory_utilization,
        "sleep": args.vllm_enable_sleep_mode,
        "seed": args.seed,
    }
    if _in_own_process(args, renderer):
        from agent_gym.policies.vllm.child import VLLMChildPolicy

        timeout = args.vllm_server_timeout
        return VLLMChildPolicy(place, renderer.eos_token_ids, **settings, start_timeout_s=timeout)
    from agent_gym.policies.vllm.engine import VLLMPolicy

    return VLLMPolicy(place, renderer.eos_token_ids, **settings, vision=renderer.vision)


def _in_own_process(args: AgentGRPOConfig, renderer: ChatRenderer) -> bool:
    """Whether a colocated engine gets a separate process: the value of `engine_process`, if it is set."""
    if args.engine_process is None:
        # On a CPU the cores are scarce, and a second vLLM takes 2 GB and twice the time to start.
        return torch.cuda.is_available() and renderer.vision is None
    if args.engine_process and renderer.vision is not None:
        raise ConfigError("engine_process is true, and vLLM reads images in the training process only: leave it out")
    return args.engine_process


def _engine_dtype(args: AgentGRPOConfig, base: Any) -> str | None:
    """Return the type in which the loss is computed, for the engine; None means float32 on a CPU.

    On two CPU cores with instructions for bfloat16, rollouts of SmolLM2 in bfloat16 take 0.6 of their time in float32.
    On cores without such instructions they take many times as long (`benchmarks/cores.py`). On a GPU vLLM by default
    serves a float32 checkpoint in 16 bits.
    """
    if args.bf16:
        return "bfloat16"
    return str(base.dtype).removeprefix("torch.") if args.device.type == "cuda" else None


def named_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, weight) of a policy without its DDP or FSDP wrapper, LoRA merged, shards gathered, no critic.

    LoRA deltas are added to a copy. TRL merges them into the weights and subtracts them afterwards, which rounds in
    bf16 at every sync: after 300 syncs the base weights had drifted by 23% of their mean size (512 x 512 layer). Names
    and shapes are the ones that `save_pretrained` writes: the fused experts of transformers 5 become one weight per
    expert again. With sharded parameters every rank reads all weights.

    Raises `ConfigError` for weights that an engine cannot take, see `check_servable`.
    """
    base = base_model_of(model)
    stored = _stored_names(base, _parameters(base))
    for name, weight in merged_weights(model):
        if stored[name] == [name]:
            yield name, weight
        else:
            yield from revert_weight_conversion(base, {name: weight}).items()


def merged_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, weight) as `named_weights` does, under the parameter names of a model without adapters."""
    deltas = _lora_deltas(model)
    for name, parameter in _parameters(base_model_of(model)).items():
        weight = _full(parameter)
        if name in deltas:
            weight = (weight.float() + deltas[name]().float()).to(weight.dtype)
        yield name, weight


def check_servable(model: Any) -> None:
    """Raise `ConfigError` for a policy whose weights no engine can take; nothing is gathered."""
    base = base_model_of(model)
    if getattr(base, "is_quantized", False):
        raise ConfigError("the policy is quantized, and vLLM is given whole weights: load it without quantization")
    _lora_deltas(model)
    _stored_names(base, _parameters(base))


def _parameters(base: Any) -> dict[str, torch.Tensor]:
    """Return the parameters of the policy by their names in a model without adapters; the critic is left out."""
    return {
        name.replace(".base_layer", "").replace(".modules_to_save.default", ""): parameter
        for name, parameter in base.named_parameters()
        if not (name.startswith(PREFIX) or "lora_" in name or ".original_module." in name)
    }


def _stored_names(base: Any, parameters: Mapping[str, torch.Tensor]) -> dict[str, list[str]]:
    """Map each parameter to the names under which `save_pretrained` stores it.

    Parameters are converted one by one, so that only one is gathered at a time. This works only if each stored weight
    comes from one parameter; the function checks it on shapes alone.
    """
    # ZeRO-3 replaces a parameter by an empty tensor.
    shapes = {
        name: torch.empty(getattr(parameter, "ds_shape", parameter.shape), dtype=parameter.dtype, device="meta")
        for name, parameter in parameters.items()
    }
    whole = set(revert_weight_conversion(base, dict(shapes)))
    if whole == set(shapes):
        return {name: [name] for name in shapes}
    stored = {name: list(revert_weight_conversion(base, {name: shape})) for name, shape in shapes.items()}
    if lost := whole.symmetric_difference(name for names in stored.values() for name in names):
        raise ConfigError(
            f"{type(base).__name__} joins several parameters in one weight of its checkpoint ({min(lost)}), which vLLM "
            "cannot be given here: sample with the transformers engine (use_vllm false)"
        )
    return stored


def _lora_deltas(model: Any) -> dict[str, Any]:
    """Map the name of each adapted weight to a function that computes its delta."""
    if not is_peft_model(model):
        return {}
    from peft.tuners.lora import LoraLayer
    from peft.utils import ModulesToSaveWrapper

    for name in model.active_adapters:
        config = model.peft_config[name]
        if config.peft_type != "LORA":
            raise ConfigError(
                f"the adapter {name!r} is of the type {config.peft_type}; allowed: LORA, which can be merged"
            )
        if config.trainable_token_indices:
            raise ConfigError(
                f"the adapter {name!r} has trainable_token_indices, which are not merged: leave them out, or train the "
                "whole embedding (modules_to_save)"
            )
    deltas = {}
    base = model.get_base_model()
    ends = [base.get_input_embeddings(), base.get_output_embeddings()]
    copied = any(isinstance(end, ModulesToSaveWrapper) for end in ends)
    if base.config.tie_word_embeddings and copied and ends[0].weight is not ends[1].weight:
        raise ConfigError(
            "modules_to_save copies one of the embedding and the output layer, which are one weight in this model and "
            "in an engine: set ensure_weight_tying=True too, or leave them out of modules_to_save"
        )
    for name, module in base.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        known = {*module.lora_A, *module.lora_embedding_A}
        active = [adapter for adapter in module.active_adapters if adapter in known]
        if any(module.use_dora.get(adapter) or module.lora_bias.get(adapter) for adapter in active):
            raise ConfigError(
                f"{name} has an adapter with DoRA or a bias, which is not a sum of weights: use plain LoRA"
            )
        if base.config.tie_word_embeddings and module is base.get_input_embeddings():
            raise ConfigError(
                f"LoRA adapts {name}, which is also the output layer of this model: PEFT adapts only its use as input, "
                "and an engine has one weight for both. Leave it out of target_modules"
            )
        if active:
            # PEFT also adapts parameters that are not the `weight` of a layer, such as fused experts.
            weight = f"{name.replace('.base_layer', '')}.{getattr(module, 'parameter_name', 'weight')}"
            deltas[weight] = lambda m=module, a=active: sum(_delta(m, adapter) for adapter in a)
    if lost := deltas.keys() - _parameters(base).keys():
        raise ConfigError(f"LoRA adapts {min(lost)}, which is not a parameter of the policy: change target_modules")
    return deltas


class _Delta(nn.Module):
    """A LoRA layer that returns its delta when it is called."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, adapter: str) -> torch.Tensor:
        return self.layer.get_delta_weight(adapter)


@torch.no_grad()
def _delta(layer: Any, adapter: str) -> torch.Tensor:
    """Compute the delta of one layer from its full factors: with shards the product would be wrong or fail."""
    mine = [(n, p) for n, p in layer.named_parameters() if n.startswith("lora_") and adapter in n.split(".")]
    return torch.func.functional_call(_Delta(layer), {f"layer.{n}": _full(p) for n, p in mine}, (adapter,))


def _full(parameter: torch.Tensor) -> torch.Tensor:
    """Gather a parameter that FSDP2 (DTensor) or ZeRO-3 has sharded. All ranks call this function."""
    data = parameter.detach()
    if hasattr(data, "full_tensor"):
        return data.full_tensor()
    if hasattr(parameter, "ds_id"):
        # Imported by name, because it is an optional extra that type checkers need not have.
        zero = importlib.import_module("deepspeed").zero
        with zero.GatheredParameters([parameter]):
            return parameter.detach().clone()
    return data


def warn_of_rounding(trainer: Any) -> None:
    """Warn of trained weights in half precision, which round small updates away; frozen weights may have any type."""
    trained = {name: weight.dtype for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    half = [(name, dtype) for name, dtype in trained.items() if dtype in (torch.bfloat16, torch.float16)]
    # DeepSpeed, and FSDP with mixed precision, keep float32 copies of the trained weights.
    copied = trainer.is_fsdp_enabled and trainer.accelerator.mixed_precision != "no"
    if half and not copied and not trainer.is_deepspeed_enabled:
        name, dtype = half[0]
        warnings.warn(
            f"{len(half)} of {len(trained)} trained weights are {str(dtype).removeprefix('torch.')} ({name}, ...), "
            "which rounds small updates away: after 100 steps of AdamW at 1e-6 with a steady gradient 2% of bfloat16 "
            "weights of size 0.02 have moved, by 1/47 of the way in float32 (benchmarks/weight_rounding.py). Load the "
            "model in float32 (--dtype float32, model_init_kwargs={'dtype': 'float32'}), and set bf16 to compute in it",
            stacklevel=3,
        )
