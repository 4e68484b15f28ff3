"""From the trainer's settings to the engine that samples its rollouts: here, beside the trainer, or elsewhere."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_gym.chat import ChatRenderer
from agent_gym.policies.base import Policy
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.critic import policy_only


def build_policy(
    model: Any,
    renderer: ChatRenderer,
    args: AgentGRPOConfig,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Policy:
    """Make the engine: vLLM with `use_vllm`, in this process or behind servers, else transformers on the live model.

    Args:
        model: the unwrapped policy.
        renderer: the renderer of its tokenizer; it knows which tokens end a turn.
        args: the trainer's settings.
        autocast: the precision in which the trainer computes the loss, for an engine that shares its model.
    """
    tokenizer = renderer.tokenizer
    if not args.use_vllm:
        from agent_gym.policies.transformers import TransformersPolicy

        return TransformersPolicy(
            model,
            renderer.eos_token_ids,
            tokenizer.pad_token_id,
            renderer.decode_action,
            vision=renderer.vision,
            seed=args.seed,
            autocast=autocast,
        )
    context = args.vllm_max_model_length or args.max_episode_tokens
    if args.layout == "server":
        from agent_gym.policies.vllm_server import VLLMServerPolicy

        return VLLMServerPolicy(
            args.server_urls,
            renderer.eos_token_ids,
            context=context,
            seed=args.seed,
            transfer=args.weights_transfer,
            folder=args.weights_folder,
            start_timeout_s=args.vllm_server_timeout,
        )
    from agent_gym.policies.vllm import VLLMPolicy

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
