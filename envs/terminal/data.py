"""Where tasks come from: the generator, or folders in Harbor's format."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.data import EMBEDDED
from agent_gym.envs.terminal.embedded import GeneratedTasks, build
from agent_gym.envs.terminal.harbor import Task, find_tasks, read_task, write_task
from agent_gym.envs.terminal.needs import Reason, Unfit, module_of
from agent_gym.envs.terminal.session import opened
from agent_gym.errors import ConfigError, only_embedded, quoted
from agent_gym.row_splits import SPLIT_NAMES

_MAX_CHARS = 1800  # of a listing
_SHOWN = 12  # packages in a warning


def open_data(data: str, difficulty: int | None, skip: bool) -> Mapping[str, Sequence[Any]]:
    """Return the splits of a source: "embedded", or a folder of tasks, or one with a folder of tasks per split.

    `ConfigError` for no such folder, one without tasks, or, unless `skip`, with tasks that cannot be played here:
    all reasons are listed, with the number of tasks of each.
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
            f"data is {data!r}; allowed: 'embedded', or a folder with tasks in Harbor's format: NAME/task.toml, or in "
            "that of Terminal-Bench 1: NAME/task.yaml"
        )
    fit: dict[str, list[dict[str, str]]] = {}
    unfit: dict[str, tuple[Reason, ...]] = {}
    absent: Counter[str] = Counter()
    for split, paths in splits.items():
        for path in paths:
            try:
                task = read_task(path)
                if task.setup:
                    opened(task).close()
            except Unfit as reason:
                unfit[path.relative_to(folder).as_posix() if path != folder else path.name] = reason.reasons
            else:
                fit.setdefault(split, []).append({"folder": str(path)})
                absent.update({module_of(one) for one in task.absent})
    if unfit:
        listing = listed(f"{len(unfit)} of {found} tasks in {data} cannot be played here:", unfit)
        if not skip or not fit:
            raise ConfigError(f"{listing}\nskip=True leaves them out" if fit else listing)
        warnings.warn(f"{listing}\nthey are left out", stacklevel=2)
    if absent:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(absent.items(), key=_order)[:_SHOWN])
        more = f", and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
        warnings.warn(
            f"commands do not have the packages of Python that Dockerfiles of these tasks install: {names}{more}; no "
            "test, no solution and no instruction names them",
            stacklevel=2,
        )
    return fit


def _order(counted: tuple[str, int]) -> tuple[int, str]:
    return -counted[1], counted[0]


def listed(title: str, unfit: Mapping[str, Sequence[Reason]]) -> str:
    """Write down why tasks are unfit: each reason once, with the number of tasks, the most frequent first."""
    tasks: dict[str, list[str]] = {}
    whats: dict[str, Counter[str]] = {}
    for name, reasons in unfit.items():
        for reason in reasons:
            tasks.setdefault(reason.kind, []).append(name)
            whats.setdefault(reason.kind, Counter()).update([reason.what] if reason.what else [])
    lines, left = [title], 0
    for kind in sorted(tasks, key=lambda kind: -len(set(tasks[kind]))):
        names = list(dict.fromkeys(tasks[kind]))
        what = whats[kind].most_common(1)[0][0] if whats[kind] else ""
        example = f" {what}" if len(whats[kind]) == 1 else f" for example {what}" if what else ""
        shown = ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")
        line = f"  {len(names)}: {kind}{':' if what else ''}{example:.120} [{shown:.80}]"
        if sum(map(len, lines)) + len(lines) + len(line) > _MAX_CHARS:
            left += 1
        else:
            lines.append(line)
    return "\n".join(lines + [f"  and {left} reasons more, of fewer tasks each"] * bool(left))


def task_of(row: Any) -> Task:
    """Make the setup of an episode from a row: of the generator, or `{"folder": a task's folder}`."""
    if isinstance(row, Mapping) and "folder" in row:
        return read_task(Path(row["folder"]))
    if isinstance(row, Mapping) and {"instruction", "checks", "solution"} <= row.keys():
        return build(row)
    raise ConfigError(f"a task is {{'folder': ...}} or a row of the generator, got {quoted(row, 200)}")


def write_embedded(folder: str | Path, split: str = "test", size: int | None = None) -> list[Path]:
    """Write generated tasks in Harbor's format, a folder each, and return these."""
    folders = []
    for row in GeneratedTasks(split, size):
        folders.append(Path(folder) / row["name"])
        metadata = {"difficulty": row["level"], "category": row["kind"], "tags": ["agent_gym", split]}
        write_task(build(row), folders[-1], metadata)
    return folders
