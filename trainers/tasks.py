"""From an environment id to a data set of tasks, and from a row of it to episodes.

TRL's loop wants a data set, so that the sampler, resumption and evaluation work as everywhere. A row only names a task
(environment, split, index, seed); the task itself stays in the environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset

from agent_gym.errors import ConfigError
from agent_gym.evaluate import make_specs
from agent_gym.rollout import EpisodeSpec, derive_seed

COLUMNS = ("env_id", "env_kwargs", "split", "index", "seed")


def task_dataset(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    split: str = "train",
    tasks: int | None = None,
    seed: int = 0,
) -> Dataset:
    """List the first tasks of a split as a data set.

    Args:
        env_id: a Gymnasium id.
        env_kwargs: arguments of the environment.
        split: the split.
        tasks: how many tasks; None for all.
        seed: base of the environments' seeds.

    Returns:
        A data set with the columns env_id, env_kwargs (JSON), split, index and seed.

    Raises:
        ConfigError: for an unknown environment or split, or more tasks than there are.
    """
    specs = make_specs(env_id, env_kwargs, split=split, episodes=tasks, seed=seed)
    arguments = json.dumps(dict(env_kwargs or {}))
    return Dataset.from_dict(
        {
            "env_id": [env_id] * len(specs),
            "env_kwargs": [arguments] * len(specs),
            "split": [split] * len(specs),
            "index": [spec.index for spec in specs],
            "seed": [spec.seed for spec in specs],
        }
    )


def check_task_columns(dataset: Dataset | Mapping[str, Dataset], name: str) -> None:
    """Raise `ConfigError` unless the data set, or each of several, has the columns of `task_dataset`."""
    if isinstance(dataset, Mapping):
        for key, part in dataset.items():
            check_task_columns(part, f"{name}[{key!r}]")
        return
    missing = [column for column in COLUMNS if column not in dataset.column_names]
    if missing:
        raise ConfigError(
            f"{name} has no column {missing[0]!r}; it has: {', '.join(dataset.column_names)}. Make it with "
            "task_dataset()"
        )


def group_specs(
    rows: Sequence[Mapping[str, Any]], *, first: int, group_size: int, sampling_seed: int
) -> list[EpisodeSpec]:
    """Turn rows that a sampler repeated `group_size` times into episodes.

    Args:
        rows: one row per episode; the members of a group stand next to each other.
        first: global position of the first row among all processes.
        group_size: episodes per task, G.
        sampling_seed: base of the sampling seeds of this rollout.

    Returns:
        One spec per row. Members of a group share task and environment seed and differ in sampling only. The seeds
        depend on the global position alone, so that one process and four sample the same episodes.
    """
    return [
        EpisodeSpec(
            row["env_id"],
            json.loads(row["env_kwargs"]),
            seed=row["seed"],
            split=row["split"],
            index=row["index"],
            group=(first + i) // group_size,
            member=(first + i) % group_size,
            sampling_seed=derive_seed(sampling_seed, first + i),
            source=row.get("source", 0),
        )
        for i, row in enumerate(rows)
    ]
