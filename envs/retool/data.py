"""Where the problems come from: the generator, or any data set of problems and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agent_gym.data import EMBEDDED, Row, Splits
from agent_gym.envs.retool.embedded import RetoolProblems
from agent_gym.errors import at_difficulty, only_embedded
from agent_gym.row_choices import Survey
from agent_gym.row_forms import normalize_columns, opening_of
from agent_gym.row_golds import Fault, golds
from agent_gym.row_reader import ReadRows, Rules, load, say_once
from agent_gym.row_splits import FolderSplits

LADDER: tuple[Mapping[str, Any], ...] = (
    {},
    {"level": 1, "kinds": ("divisor-sum", "multiples", "digit-count", "power-sum", "linear-system", "unpayable")},
    {"level": 1},
    {"level": 2},
    {"level": 3},
    {"level": 3, "kinds": ("coprime-pairs", "digit-sum", "lattice-paths", "coins", "remainders", "best-bundle")},
)
"""Difficulty to the size of the numbers and the kinds: first the ones that one line counts, last the ones to search or
count along several dimensions."""


class Problem(NamedTuple):
    """One task; `program` prints the answer, for the expert, and is "" where the data has none."""

    text: str
    golds: tuple[str, ...]  # of which any is right
    program: str = ""


def problem_of(row: Mapping[str, Any]) -> Problem:
    """Take a row that was read; `ConfigError` if it names no answer."""
    # The worked answers of GSM8K end in the answer proper.
    right = [gold.rpartition("####")[2].strip() for gold in golds(row["answer"])]
    if not any(right):
        raise Fault("the answer is empty", row["answer"])
    return Problem(row["question"], tuple(filter(None, right)), str(row.get("program") or ""))


def read(row: Any) -> Problem:
    """Read a row in any of the forms of row_forms.py; `ConfigError` if it has no problem or no answer."""
    return problem_of(normalize_columns(row, Survey())[0])


# A copy of DAPO-Math-17k has 1.8 million rows, so that each source is walked through once, and again if it changed.
_read: dict[tuple[str, Rules], tuple[list[Sequence[Row]], Splits]] = {}


def problems(data: str, level: int | None, kinds: Sequence[str] | None, difficulty: int | None, rules: Rules) -> Splits:
    """Return the splits of a source: "embedded", a path, or a hub name.

    `ConfigError` if it cannot be read, has no problems, or lacks a level, kinds or a difficulty that is asked for.
    """
    if data == EMBEDDED:
        rung = at_difficulty(difficulty, LADDER, level=level, kinds=kinds)
        return RetoolProblems.splits(level=rung["level"], kinds=rung["kinds"] and tuple(rung["kinds"]))
    for name, value in (("level", level), ("kinds", kinds), ("difficulty", difficulty)):
        only_embedded(name, value, data)
    splits = load(data, rules)
    loaded, distinct = _read.get((str(data), rules), ([], {}))
    if [*map(id, loaded)] != [*map(id, splits.values())]:
        kept = {split: _distinct(rows) for split, rows in splits.items()}
        if left := sum(map(len, splits.values())) - sum(map(len, kept.values())):
            say_once(f"{data}: {left:,} rows are left out, since they repeat a problem of their split")
        distinct = FolderSplits(kept) if isinstance(splits, FolderSplits) else kept
        _read[str(data), rules] = [*splits.values()], distinct
    return distinct


def _distinct(rows: Any) -> Sequence[Row]:
    """Leave out the rows that repeat an earlier one."""
    first: dict[str, int] = {}
    for index, row in enumerate(rows):
        first.setdefault(f"{opening_of(row)}{row['question']}", index)
    kept = list(first.values())
    if len(kept) == len(rows):
        return rows
    return rows.select(kept) if hasattr(rows, "select") else ReadRows(rows[index] for index in kept)
