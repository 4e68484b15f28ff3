"""From the trainer's settings to the engine that samples its rollouts: here, beside the trainer, or elsewhere."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.base import Policy, barrier_on_error
from agent_gym.policies.transformers import TransformersPolicy
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.critic import policy_only
from agent_gym.trainers.weights import check_servable


def wants_vllm(args: AgentGRPOConfig) -> bool:
    """Whether to try vLLM: as the user says, by default where it is installed."""
    return args.use_vllm if args.use_vllm is not None else find_spec("vllm") is not None


def check_sharded(args: AgentGRPOConfig, policy: Policy | None) -> None:
    """Raise `ConfigError` if a model in shares would be sampled from directly.

    Each process decodes as many steps as its episodes need, and a pass through a model in shares takes all processes:
    they would wait for each other, or exchange shares of different layers.
    """
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
    """Make the engine: vLLM, in this process or behind servers, or transformers on the live model.

    Where `use_vllm` is None and vLLM cannot serve the policy, a warning says why, and transformers samples.

    Args:
        model: the unwrapped policy.
        renderer: the renderer of its tokenizer; it knows which tokens end a turn.
        args: the trainer's settings.
        autocast: the precision in which the trainer computes the loss, for an engine that shares its model.
        sharded: whether this process holds only a part of the model, so that there is no other engine than vLLM.

    Raises:
        ConfigError: if vLLM was asked for, or is the only way, and cannot serve the policy.
    """
    if wants_vllm(args):
        made: Policy | None = None
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        try:
            with barrier_on_error(distributed):
                made = _vllm(model, renderer, args)
            return made
        except (ConfigError, RolloutError) as error:
            if args.use_vllm or sharded:
                raise
            if made is not None:  # another process has none
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
    from agent_gym.policies.vllm.engine import VLLMPolicy

    return VLLMPolicy(
        _folder(model, renderer.source),
        renderer.eos_token_ids,
        context=context,
        max_num_seqs=args.max_num_seqs,
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
        sleep=args.vllm_enable_sleep_mode,
        vision=renderer.vision,
        seed=args.seed,
    )


def _folder(model: Any, tokenizer: Any) -> str:
    """Name the place vLLM reads the architecture from; the weights are pushed before the first rollout.

    A model that was made in memory, or is wrapped by PEFT, is written out once.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    name = base.config._name_or_path
    if name and (Path(name).is_dir() or not name.startswith((".", "/"))):
        return name
    folder = tempfile.mkdtemp(prefix="agent-gym-")
    with policy_only(base):
        base.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
