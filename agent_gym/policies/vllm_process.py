"""Start and stop a vLLM engine inside a process that belongs to somebody else.

vLLM is written to own its process: it seeds the global generators, forbids `torch.set_num_threads`, hides
everything alive from the garbage collector, and takes the default process group down with it when it shuts
down. Inside a trainer all of these are the trainer's, so what was changed is put back.
Facts: vllm 0.31.0, `v1/worker/cpu_worker.py`, `v1/engine/core.py` (`EngineCore.__init__`, `shutdown`).
"""

from __future__ import annotations

import gc
import os
import random
import warnings
from typing import Any

import numpy as np
import torch

# How many engines are open, and whether vLLM made the default process group they live in.
_open_engines = 0
_owns_process_group = False


def executor_arguments() -> dict[str, Any]:
    """Engine arguments that give each rank of a distributed run an engine of its own."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if torch.distributed.is_initialized():
        world_size = torch.distributed.get_world_size()
    if world_size == 1:
        return {}
    if torch.distributed.is_initialized():
        # Launchers export these; whoever set up the process group by hand need not have.
        os.environ.setdefault("RANK", str(torch.distributed.get_rank()))
        os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    # With vLLM's default executor every rank would take device 0.
    return {"distributed_executor_backend": "external_launcher"}


def start_engine(arguments: dict[str, Any]) -> Any:
    """Construct an engine, and restore the global generators and thread controls that it takes for itself.

    Args:
        arguments: For `vllm.EngineArgs`.

    Returns:
        A `vllm.v1.engine.llm_engine.LLMEngine` with its core in this process.
    """
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
    """Free an engine, and with the last one the process groups that vLLM made.

    vLLM's own `shutdown` would destroy the default process group as well, that is the trainer's.

    Args:
        engine: What `start_engine` returned.
    """
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
    """Undo what the engines did to `torch.distributed`, once none is left."""
    from vllm.distributed import cleanup_dist_env_and_memory, parallel_state

    if _open_engines > 0:
        return
    alive = torch.distributed.is_initialized()
    if alive and _owns_process_group:
        cleanup_dist_env_and_memory()
        return
    # vLLM's own groups stand beside the trainer's default group and are all that may go. They go even where
    # the trainer has ended the default group before: a later engine must not find them and take them for
    # alive.
    for name, group in list(vars(parallel_state).items()):
        if isinstance(group, parallel_state.GroupCoordinator):
            if alive:
                group.destroy()
            setattr(parallel_state, name, None)
    parallel_state._NODE_COUNT = None
