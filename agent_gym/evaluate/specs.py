"""Which episodes an evaluation plays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.rollout import EpisodeSpec, derive_seed, make_env
from agent_gym.rollout.envs import close_env


def make_specs(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    episodes: int | None = None,
    group_size: int = 1,
    seed: int = 0,
) -> list[EpisodeSpec]:
    """Spread episodes over the tasks of a split, from its first task on.

    Args:
        env_id: a Gymnasium id.
        env_kwargs: arguments of the environment.
        split: the split to take tasks from; by default "test", or the only one there is.
        episodes: number of tasks, None for all; each is played `group_size` times.
        group_size: attempts per task.
        seed: base of the environment and sampling seeds.

    Raises:
        ConfigError: if there is no such split, or it has fewer tasks.
    """
    kwargs = dict(env_kwargs or {})
    env = make_env(env_id, kwargs)
    tasks = env.get_wrapper_attr("tasks")
    if split is None:
        split = next(iter(tasks)) if len(tasks) == 1 else "test"
    available = len(tasks[split]) if split in tasks else None
    close_env(env)
    if available is None:
        raise ConfigError(f"unknown split {split!r}; {env_id} has: {', '.join(tasks)}; choose one by split")
    if episodes is None:
        episodes = available
    if episodes > available:
        raise ConfigError(f"{episodes} episodes asked for, but split {split!r} of {env_id} has {available} tasks")
    return [
        EpisodeSpec(
            env_id,
            kwargs,
            seed=derive_seed(seed, index),
            split=split,
            index=index,
            group=index,
            member=member,
            sampling_seed=derive_seed(seed, index, member),
        )
        for index in range(episodes)
        for member in range(group_size)
    ]
