"""Exact search on a GPU: all vectors in its memory as float16, all of them scanned for every query.

Approximate indexes are not moved to the GPU on purpose: a batch of queries over 5 million vectors of 1024 numbers takes
a few milliseconds there, so that there is nothing to save.
"""

from __future__ import annotations

import re
from typing import Any

from agent_gym.errors import ConfigError, require

_BLOCK = 65_536
_SCRATCH = 512 * 2**20  # FAISS would take 1.5 GB, which the trainer next to it misses


def to_gpu(index: Any, kind: str, device: str) -> Any:
    """Copy an index to a GPU, block by block, so that one that is mapped into memory is never in memory as a whole.

    Args:
        index: of kind flat or sqfp16.
        kind: its kind.
        device: "cuda" or "cuda:1".

    Returns:
        A GPU index.

    Raises:
        ConfigError: for another kind, a FAISS without GPU support, a GPU that is not there or too full.
    """
    if kind not in ("flat", "sqfp16"):
        raise ConfigError(
            f"an index of kind {kind!r} is searched on the CPU; for device={device!r} build 'flat' or 'sqfp16'"
        )
    faiss = require("faiss", "retrieval")
    named = re.fullmatch(r"cuda(?::(\d+))?", device)
    if not named:
        raise ConfigError(f"device is {device!r}; it must be 'cpu', 'cuda', or one GPU such as 'cuda:1'")
    number = int(named[1] or 0)
    n_gpus = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    if n_gpus <= number:
        raise ConfigError(
            f"device is {device!r}, and FAISS {faiss.__version__} finds {n_gpus} GPUs. If there is one, pip uninstall "
            "faiss-cpu and pip install faiss-gpu (they install the same files, so never both); else use device='cpu'"
        )
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(_SCRATCH)
    config = faiss.GpuIndexFlatConfig()
    config.device, config.useFloat16 = number, True
    try:
        copy = faiss.GpuIndexFlatIP(resources, index.d, config)
        for start in range(0, index.ntotal, _BLOCK):
            copy.add(index.reconstruct_n(start, min(_BLOCK, index.ntotal - start)))
    except RuntimeError as error:
        need = index.ntotal * index.d * 2 / 2**30
        raise ConfigError(
            f"{index.ntotal:,} vectors need {need:.1f} GiB on {device!r}, which has no room "
            f"({str(error).splitlines()[-1]}); free memory there, use another GPU, or device='cpu'"
        ) from error
    return copy
