"""The pages of MiniWoB++, from the prepared wheel `miniwob`, and the tasks: a page and the seed that it draws from."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.data import cache_folder
from agent_gym.errors import ConfigError, one_of, quoted

# The first seed and the number of seeds of each page, by split.
SEEDS: Mapping[str, tuple[int, int]] = {"train": (0, 1000), "validation": (1_000_000, 10), "test": (2_000_000, 10)}
# `easy`: twenty pages that take a turn or a few; `unsolved`: pages without a rule of the expert, and the reason.
# APART: the seeds of each split of the pages that show few texts, none of them in two (benchmarks/miniwob_splits.py).
GROUPS, APART = (json.loads(Path(__file__).with_name(f"{name}.json").read_bytes()) for name in ("pages", "splits"))


def folder_of(data: str | Path | None) -> Path:
    """Return the folder of the pages, by default that of `agent-gym prepare miniwob`.

    Raises:
        ConfigError: if it is not there.
    """
    folder = cache_folder() / "miniwob" / "html" if data is None else Path(data).expanduser()
    if not ((folder / "core" / "core.js").is_file() and (folder / "miniwob").is_dir()):
        raise ConfigError(f"the pages of MiniWoB are not in {str(folder)!r}; run: agent-gym prepare miniwob")
    return folder


def pages_of(page: str | Sequence[str], folder: Path, solved: Sequence[str]) -> tuple[str, ...]:
    """Return the pages that a name, a group or a list of names means, in alphabetic order.

    Raises:
        ConfigError: for a page that is not in the folder, or none.
    """
    there = sorted(file.stem for file in (folder / "miniwob").glob("*.html"))
    groups = {"all": there, "easy": GROUPS["easy"], "solved": [name for name in solved if name in there]}
    names = [page] if isinstance(page, str) else page
    if not isinstance(names, list | tuple) or not names or not {*map(str, names)} <= {*there, *groups}:
        raise ConfigError(f"page is {quoted(page)}; it must be one of these, or some: {', '.join([*groups, *there])}")
    return tuple(sorted({one for name in names for one in groups.get(name, [name])}))


@functools.cache
def _rows(pages: Sequence[str], split: str) -> list[tuple[str, int]]:
    """Return the first seed of each page, then the second of each; `train` repeats those of a page that has few."""
    first, number = SEEDS[split]
    seeds = {page: APART.get(page, {}).get(split, range(first, first + number)) for page in pages}
    rows = [(page, some[n % len(some)]) for n in range(number) for page, some in seeds.items() if some]
    return rows if split == "train" else [*dict.fromkeys(rows)]


class Tasks(Sequence[Mapping[str, Any]]):
    """The tasks of a split: a page and a seed each."""

    def __init__(self, pages: Sequence[str], split: str) -> None:
        self.rows = _rows(tuple(pages), split)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        page, seed = self.rows[index]
        return {"page": page, "seed": seed}


def splits_of(pages: Sequence[str], split_by: str) -> dict[str, Tasks]:
    """Return the tasks by split: of all pages with other seeds, or of other pages as well.

    By page, three of ten pages are in `test` and one in `validation`, by the SHA-256 of their names.

    Raises:
        ConfigError: for another `split_by`.
    """
    if one_of("split_by", split_by, ("seed", "page")) == "seed":
        return {split: tasks for split in SEEDS if (tasks := Tasks(pages, split))}
    sides: dict[str, list[str]] = {split: [] for split in SEEDS}
    for page in pages:
        tenth = int.from_bytes(hashlib.sha256(page.encode()).digest()) * 10 >> 256
        sides["test" if tenth < 3 else "validation" if tenth < 4 else "train"].append(page)
    return {split: tasks for split, some in sides.items() if (tasks := Tasks(some, split))}
