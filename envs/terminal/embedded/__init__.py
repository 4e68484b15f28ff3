"""Tasks made on the spot: five difficulties with three kinds each, of files, text, Python, SQLite and git.

A hash of a task's goal state decides in which split it may be: seven tenths are for training. Validation and test have
separate sentences (wording.txt). The kinds are in kinds.py; tests of all tasks are one script, check.py, and its
expected values.

Left out on purpose: the network, packages, servers, and programs that tests would have to run. A test that runs a
program of a policy wrote can be made to pass.
"""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from agent_gym.data import SplitRows, read_wordings
from agent_gym.envs.terminal.embedded.kinds import KINDS
from agent_gym.envs.terminal.embedded.repository import object_name, repository
from agent_gym.envs.terminal.harbor import Task
from agent_gym.errors import whole_number

_CONTENTS = ("train",) * 7 + ("validation",) + ("test",) * 2
_IDENTITY = {"NAME": "Agent", "EMAIL": "agent@example.com"}
_VARIABLES = {f"GIT_{role}_{what}": text for role in ("AUTHOR", "COMMITTER") for what, text in _IDENTITY.items()}
_HERE = files(__package__)
_TEST = "#!/bin/bash\npython3 -I -S /tests/check.py\n"
WORDINGS = read_wordings(__package__)


class GeneratedTasks(SplitRows):
    """The generated tasks of one split: rows that `build` makes a task of.

    They have a difficulty from 1 to 5, or, for None, all of them in turn; `ConfigError` for another.
    """

    SIZES = {"train": 2000, "validation": 100, "test": 200}
    KEY = "instruction"

    def __init__(self, split: str, size: int | None = None, difficulty: int | None = None) -> None:
        super().__init__(split, size)
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
