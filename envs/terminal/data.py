"""Where tasks come from: the generator, or folders in Harbor's format."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.data import EMBEDDED
from agent_gym.envs.terminal.embedded import GeneratedTasks, build
from agent_gym.envs.terminal.harbor import Task, Unfit, find_tasks, read_task, write_task
from agent_gym.errors import ConfigError, only_embedded
from agent_gym.row_splits import SPLIT_NAMES


def open_data(data: str, difficulty: int | None, skip: bool) -> Mapping[str, Sequence[Any]]:
    """Return the splits of a source: "embedded", or a folder of tasks, or one with a folder of tasks per split.

    `ConfigError` for no such folder, one without tasks, or, unless `skip`, with tasks that cannot run here: all of them
    are listed, each with its reason.
    """
    if data == EMBEDDED:
        return GeneratedTasks.splits(difficulty=difficulty)
    only_embedded("difficulty", difficulty, data)
    folder = Path(data).expanduser()
    splits = {split: find_tasks(folder / split) for split in SPLIT_NAMES if (folder / split).is_dir()}
    splits = {split: found for split, found in splits.items() if found} or {"train": find_tasks(folder)}
    found = sum(map(len, splits.values()))
    if not found:
        raise ConfigError(
            f"data is {data!r}; allowed: 'embedded', or a folder with tasks in Harbor's format: NAME/task.toml"
        )
    fit: dict[str, list[dict[str, str]]] = {}
    unfit: list[str] = []
    for split, paths in splits.items():
        for path in paths:
            try:
                read_task(path)
            except Unfit as reason:
                unfit.append(f"{path.name}: {reason}")
            else:
                fit.setdefault(split, []).append({"folder": str(path)})
    if unfit:
        listing = "\n  ".join([f"{len(unfit)} of {found} tasks in {data} cannot run without an image:", *unfit])
        if not skip or not fit:
            raise ConfigError(f"{listing}\nskip=True leaves them out" if fit else listing)
        warnings.warn(f"{listing}\nthey are left out", stacklevel=2)
    return fit


def task_of(row: Any) -> Task:
    """Make what an episode needs of a row: of the generator, or `{"folder": a task's folder}`."""
    if isinstance(row, Mapping) and "folder" in row:
        return read_task(Path(row["folder"]))
    if isinstance(row, Mapping) and {"instruction", "checks", "solution"} <= row.keys():
        return build(row)
    raise ConfigError(f"a task is {{'folder': ...}} or a row of the generator, got {row!r:.200}")


def write_embedded(folder: str | Path, split: str = "test", size: int | None = None) -> list[Path]:
    """Write generated tasks in Harbor's format, a folder each, and return these."""
    folders = []
    for row in GeneratedTasks(split, size):
        folders.append(Path(folder) / row["name"])
        metadata = {"difficulty": row["level"], "category": row["kind"], "tags": ["agent_gym", split]}
        write_task(build(row), folders[-1], metadata)
    return folders
