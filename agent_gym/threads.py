"""How many threads a CPU computes with.

A tiny model is fastest with one thread: trainer, engine and environments share the cores, and threads that fight for
them cost more than they bring. A model of 135M parameters is 1.8 times as fast with two. So a process of the command
line begins with one, and whatever holds a model asks for all cores once it knows how large the model is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from agent_gym.errors import require

LARGE = 20_000_000
"""Weights from which all cores are used. The tiny models of the presets have 0.3 million, SmolLM2 has 135."""

_one_thread = False  # because of `begin_with_one_thread`, and not of the user


def begin_with_one_thread() -> None:
    """Export OMP_NUM_THREADS=1 where the user has exported nothing, to be called before torch is imported.

    With two threads one training step of a tiny model took 26 s instead of 2 s on a busy machine with two cores.
    """
    global _one_thread
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"], _one_thread = "1", True


def use_cores(model: Any) -> None:
    """Let torch compute with all cores if a model is large.

    Nothing changes where the user has exported OMP_NUM_THREADS. Processes that this one starts have one thread each.
    """
    if _one_thread and sum(weight.numel() for weight in model.parameters()) >= LARGE:
        require("torch", "train").set_num_threads(cores())


def cores() -> int:
    """Return how many cores this process may use, by its affinity and the quota of its control group."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # not Linux, an older kind of control group, or no quota ("max")
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split())
        count = min(count, max(1, quota // period))
    return count
