"""How busy Python is in a rollout: the thread that drives the engine, and the threads of environments."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_gym.rollout import Episode
from agent_gym.trainers.hook import Hook

BUSY, SECONDS = 0.8, 10.0
"""The warning needs so many cores in use, and a rollout of so many seconds: a short one says little."""


def env_seconds() -> dict[int, float]:
    """Return the CPU seconds of each living thread of an environment so far; nothing where the system has no /proc."""
    found = {}
    for thread in threading.enumerate():
        if thread.name.startswith("agent-gym-env-"):
            with suppress(OSError):  # a thread that has just ended
                ran = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]
                found[thread.native_id or 0] = int(ran) / 1e9
    return found


class DriverMeter(Hook):
    """Logs turns per second, and the shares of a core that driver and environments use; warns once if they fill it.

    `perf/driver_busy` is the share of a rollout's time in which the driver was at work or waited for Python's lock.
    `perf/env_cpu` is CPU seconds of environments, tokenizing their answers included, per second of a rollout.
    """

    def __init__(self) -> None:
        self._before, self._warned = env_seconds(), False

    def after_episodes(self, episodes: Sequence[Episode]) -> None:
        stats, now = self.trainer.runner.stats, env_seconds()
        wall = max(stats.wall_seconds, 1e-9)
        spent = sum(max(0.0, seconds - self._before.get(thread, 0.0)) for thread, seconds in now.items())
        self._before, driver, envs = now, stats.overhead_seconds / wall, spent / wall
        turns = sum(len(episode.steps) for episode in episodes) / wall
        self.trainer.record({"perf/driver_busy": driver, "perf/env_cpu": envs, "perf/turns_per_s": turns})
        if not self._warned and wall > SECONDS and driver + envs > BUSY:
            self._warned = True
            warnings.warn(self._told(wall, driver, envs, turns), RuntimeWarning, stacklevel=2)

    def _told(self, wall: float, driver: float, envs: float, turns: float) -> str:
        cure = "env_processes moves environments that compute out of this process"
        if driver > envs:
            cure = "more trainer processes drive their own shares, and longer max_turn_tokens makes fewer turns"
        return (
            f"the driver is the bottleneck of a rollout of {wall:.0f} s: of one core it used {driver:.0%} and "
            f"environments {envs:.0%}, at {turns:.0f} turns a second: {cure}"
        )


def attach(trainer: Any) -> None:
    """Attach always."""
    trainer.add_callback(DriverMeter())
