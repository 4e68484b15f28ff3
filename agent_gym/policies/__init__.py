"""Policies write the agent's turns: scripts, transformers, vLLM and OpenAI's endpoints share one interface.

    policy = TransformersPolicy(model, eos_token_ids=[tokenizer.eos_token_id], pad_token_id=tokenizer.pad_token_id)
    policy.submit(Request(id=0, prompt_ids=ids, params=SamplingParams(max_tokens=64, seed=1)))
    while policy.pending:
        for generation in policy.poll():
            print(generation.token_ids, generation.logprobs, generation.finish_reason)

The engines are imported when they are first asked for: the package itself needs neither torch nor vLLM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent_gym.policies.base import (
    Engine,
    FinishReason,
    Generation,
    Interruptible,
    Policy,
    Request,
    SamplingParams,
    ScriptedPolicy,
)

if TYPE_CHECKING:
    from agent_gym.policies.openai import OpenAIPolicy
    from agent_gym.policies.transformers import TransformersPolicy
    from agent_gym.policies.vllm.engine import VLLMPolicy
    from agent_gym.policies.vllm.server import VLLMServerPolicy

__all__ = [
    "Engine",
    "FinishReason",
    "Generation",
    "Interruptible",
    "OpenAIPolicy",
    "Policy",
    "Request",
    "SamplingParams",
    "ScriptedPolicy",
    "TransformersPolicy",
    "VLLMPolicy",
    "VLLMServerPolicy",
]

_HEAVY = {
    "OpenAIPolicy": "openai",
    "TransformersPolicy": "transformers",
    "VLLMPolicy": "vllm.engine",
    "VLLMServerPolicy": "vllm.server",
}


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(import_module(f"{__name__}.{_HEAVY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
