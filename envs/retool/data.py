"""Where the problems come from: the generator, or any data set of problems and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agent_gym.data import EMBEDDED, CompletedRows, Row, Splits, load_splits
from agent_gym.envs.retool.embedded import GeneratedProblems
from agent_gym.errors import ConfigError, at_difficulty, only_embedded
from agent_gym.row_forms import FORMS, answers_of, question_of

LADDER: tuple[Mapping[str, Any], ...] = (
    {},
    {"level": 1, "kinds": ("divisor-sum", "multiples", "digit-count", "power-sum", "linear-system", "unpayable")},
    {"level": 1},
    {"level": 2},
    {"level": 3},
    {"level": 3, "kinds": ("coprime-pairs", "digit-sum", "lattice-paths", "coins", "remainders", "best-bundle")},
)
"""Difficulty to the size of the numbers and the kinds: first those that one line counts, last those to search or count
along several dimensions."""


class Problem(NamedTuple):
    """One task; `program` prints the answer, for the expert, and is "" where the data has none."""

    text: str
    golds: tuple[str, ...]  # of which any is right
    program: str = ""


def read(row: Any) -> Problem:
    """Read a row in any of the forms of row_forms.py; `ConfigError` if it has no problem or no answer."""
    if isinstance(row, Mapping):
        # The worked answers of GSM8K end in the answer proper.
        text, golds = question_of(row), [gold.rpartition("####")[2].strip() for gold in answers_of(row)]
        if text is not None and any(golds):
            return Problem(text, tuple(filter(None, golds)), str(row.get("program") or ""))
    raise ConfigError(f"a problem is a row with {FORMS}, got {row!r:.200}")


# A copy of DAPO-Math-17k has 1.8 million rows, so that each source is walked through once, and again if it changed.
_read: dict[str, tuple[Splits, Splits]] = {}


def problems(
    data: str, level: int | None = None, kinds: Sequence[str] | None = None, difficulty: int | None = None
) -> Splits:
    """Return the splits of a source: "embedded", a path, or a hub name.

    `ConfigError` if it cannot be read, has no problems, or lacks a level, kinds or a difficulty that is asked for.
    """
    if data == EMBEDDED:
        rung = at_difficulty(difficulty, LADDER, level=level, kinds=kinds)
        return GeneratedProblems.splits(level=rung["level"], kinds=rung["kinds"] and tuple(rung["kinds"]))
    for name, value in (("level", level), ("kinds", kinds), ("difficulty", difficulty)):
        only_embedded(name, value, data)
    splits = load_splits(data, columns=("question", "answer"))
    loaded, distinct = _read.get(data, (None, {}))
    if loaded is not splits:
        for split, rows in splits.items():
            try:
                read(rows[0])
            except ConfigError as error:
                raise ConfigError(f"{data}, split {split}: {error}") from None
        distinct = {split: _distinct(rows) for split, rows in splits.items()}
        _read[data] = splits, distinct
    return distinct


def _distinct(rows: Any) -> Sequence[Row]:
    """Leave out the rows whose problem an earlier one has; of a hub's data set other columns are not read for it."""
    stored = rows.rows if isinstance(rows, CompletedRows) else rows
    columns = getattr(stored, "column_names", None)
    texts = stored
    if columns is not None:
        asked = [name for name in ("question", "problem", "Problem", "prompt") if name in columns]
        texts = stored.select_columns(asked[:1])
    first: dict[str, int] = {}
    for index, row in enumerate(texts):
        first.setdefault(str(question_of(row)), index)
    kept = list(first.values())
    return [rows[index] for index in kept] if columns is None else rows.select(kept)
