"""Tasks made on the spot: five difficulties with three kinds each, of files, text, Python, SQLite and git.

Task i of a split depends on the split and on i alone (and on the difficulty, if it is chosen). A hash of what a task
must lead to decides in which split it may be: seven tenths are for training. Validation and test have sentences of
their own (wording.txt). The kinds are in kinds.py; tests of all tasks are one script, check.py, and what it expects.

Left out on purpose: the network, packages, servers, and programs that tests would have to run. A test that runs what a
policy wrote can be told anything.
"""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from agent_gym.data import DistinctRows
from agent_gym.envs.terminal.embedded.kinds import KINDS
from agent_gym.envs.terminal.embedded.repository import object_name, repository
from agent_gym.envs.terminal.harbor import Task
from agent_gym.errors import ConfigError, whole_number

SIZES = {"train": 2000, "validation": 100, "test": 200}
_CONTENTS = ("train",) * 7 + ("validation",) + ("test",) * 2
_IDENTITY = {"NAME": "Agent", "EMAIL": "agent@example.com"}
_VARIABLES = {f"GIT_{role}_{what}": text for role in ("AUTHOR", "COMMITTER") for what, text in _IDENTITY.items()}
_HERE = files(__package__)
_TEST = "#!/bin/bash\npython3 -I -S /tests/check.py\n"

WORDINGS: dict[str, dict[str, tuple[str, ...]]] = {}
for _block in _HERE.joinpath("wording.txt").read_text("utf-8").strip().split("\n\n")[1:]:
    _kind, *_lines = _block.splitlines()
    _marked = [line.split(maxsplit=1) for line in _lines]
    WORDINGS[_kind] = {split: tuple(text for at, text in _marked if at == split) for split in SIZES}


class GeneratedTasks(DistinctRows):
    """The generated tasks of one split: rows that `build` makes a task of. No two of them have the same text.

    Args:
        split: a key of `SIZES`.
        size: how many there are at most. Task i is the same at any size.
        difficulty: 1 to 5; None for all of them in turn.

    Raises:
        ConfigError: on an unknown split or difficulty, or a size below one.
    """

    def __init__(self, split: str, size: int, difficulty: int | None = None) -> None:
        if split not in SIZES:
            raise ConfigError(f"unknown split {split!r}: generated tasks have {', '.join(SIZES)}")
        super().__init__(size, key=None if split == "train" else "instruction")
        self.split = split
        self.difficulty = None if difficulty is None else whole_number("difficulty", difficulty, 1, len(KINDS))

    def draw(self, index: int, attempt: int) -> dict[str, Any]:
        rng = random.Random(f"{self.split}/{self.difficulty or 'all'}/{index}/{attempt}")
        level = self.difficulty or 1 + index % len(KINDS)
        kinds = list(KINDS[level - 1])
        kind = kinds[(index if self.difficulty else index // len(KINDS)) % len(kinds)]
        wording = rng.choice(WORDINGS[kind][self.split])
        while True:
            draft = KINDS[level - 1][kind](rng)
            digest = hashlib.blake2b(json.dumps([kind, draft.goals]).encode(), digest_size=8).digest()
            if _CONTENTS[int.from_bytes(digest) % len(_CONTENTS)] == self.split:
                break
        return {
            "name": f"{kind}-{self.split}-{index}",
            "kind": kind,
            "level": level,
            "instruction": wording.format(**draft.values),
            "checks": {"goals": draft.goals, "guards": draft.guards},
            "solution": [*draft.solution],
            "files": dict(draft.files),
            "tables": dict(draft.tables),
            "commits": [dict(one) for one in draft.commits],
            "branches": dict(draft.branches),
        }


def build(row: Mapping[str, Any]) -> Task:
    """Make a task of a row: its files, databases and repository, and its tests."""
    made: dict[str, str | bytes] = {}
    checks = row["checks"]
    if row["commits"]:
        store, hashes = repository(row["commits"], row["branches"])
        head, *_ = row["branches"].values()
        made |= {f"/app/{path}": text for path, text in row["commits"][head]["files"].items()}
        made |= {f"/app/.git/{path}": data for path, data in store.items()}
        checks = {**checks, "goals": [_hashed(one, hashes) for one in checks["goals"]]}
    made |= {f"/app/{path}": text for path, text in row["files"].items()}
    for path, statements in row["tables"].items():
        base = sqlite3.connect(":memory:")
        base.executescript(statements)
        made[f"/app/{path}"] = base.serialize()
        base.close()
    script = _HERE.joinpath("check.py").read_text("utf-8")
    expected = f"GOALS = {checks['goals']!r}\nGUARDS = {checks['guards']!r}\n"
    tests = {"test.sh": _TEST, "check.py": script, "expected.py": expected}
    variables = _VARIABLES if row["commits"] else {}
    return Task(row["instruction"], made, tests, tuple(row["solution"]), variables=variables)


def _hashed(check: list[Any], hashes: list[str]) -> list[Any]:
    """Put hashes into a check of a repository: of a commit for its number, of files for their contents."""
    *before, last = check
    if check[0] == "merged":
        return [*before, hashes[last]]
    if check[0] == "tree":
        return [*before, {path: object_name("blob", text.encode()) for path, text in last.items()}]
    return check
