"""Which task an episode is about: the one that `reset` is asked for, or one drawn from a split."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agent_gym.errors import ConfigError

_OPTIONS = frozenset({"split", "index", "task"})


def pick_task(
    tasks: Mapping[str, Sequence[Any]], split: str, options: Mapping[str, Any] | None, rng: np.random.Generator
) -> tuple[Any, str]:
    """Choose a task.

    Args:
        tasks: split name to its tasks.
        split: what to draw from unless the options say otherwise.
        options: those of `reset`: `split`, `index` (of a task in it), or `task` (the task itself).
        rng: draws the index where none is given.

    Returns:
        The task and its id, as "train/42"; "given" for one that was handed in.

    Raises:
        ConfigError: for unknown options, an unknown split or an index out of range.
    """
    index = None
    if options:
        if not options.keys() <= _OPTIONS:
            raise ConfigError(f"unknown reset options {sorted(options.keys() - _OPTIONS)}; known: split, index, task")
        if options.get("task") is not None:
            return options["task"], "given"
        split, index = options.get("split") or split, options.get("index")
    rows = tasks[known_split(split, tasks)]
    size = len(rows)
    if index is None:
        # As `integers` would draw it, but for a bias of one part in 2**53 / size, in a third of the time.
        index = int(rng.random() * size)
        return rows[index], f"{split}/{index}"
    try:
        if isinstance(index, bool):
            raise TypeError
        index = operator.index(index)
    except TypeError:
        raise ConfigError(f"index is {index!r}; it must be an integer from 0 to {size - 1}") from None
    if not 0 <= index < size:
        raise ConfigError(f"index {index} is out of range: split {split!r} has {size} tasks, 0 first")
    return rows[index], f"{split}/{index}"


def known_split(split: str | None, tasks: Mapping[str, Any]) -> str:
    """Return the split; by default "train" where there is one, else the first.

    Raises:
        ConfigError: if there is none of that name.
    """
    if split is None:
        return "train" if "train" in tasks else next(iter(tasks))
    if split not in tasks:
        raise ConfigError(f"unknown split {split!r}; this environment has: {', '.join(tasks)}; choose one by split")
    return split
