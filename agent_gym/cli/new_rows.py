"""The rows of `agent-gym new env --from`: read, without duplicates, and dealt to splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agent_gym.errors import ConfigError
from agent_gym.row_forms import opening_of, without_rivals
from agent_gym.row_golds import golds
from agent_gym.row_reader import load, rules_of

Row = Mapping[str, Any]
_FEWEST = 3  # rows that can be dealt to three splits


def read_splits(data: str, columns: Mapping[str, str] | None, skip_bad: bool) -> tuple[dict[str, list[Row]], list[str]]:
    """Return the rows of a data set by split, and lines about the other rows.

    A task of training is not in a test: a row is in one split. Rows are the same if the whole opening of their episodes
    is. A data set with one split is dealt to three.

    Raises:
        ConfigError: for rows that cannot be used, and for several splits without one to train on.
    """
    loaded = load(data, rules_of(columns, skip_bad=skip_bad))
    if len(loaded) > 1 and "train" not in loaded:
        cure = "give one file, which is dealt to train, validation and test, or add train.jsonl"
        raise ConfigError(f"new: {data} has the splits {', '.join(loaded)}, and none to train on; {cure}")
    splits, lines = _distinct(loaded)
    if columns:
        splits = {split: [*map(without_rivals, rows)] for split, rows in splits.items()}
    (only, *more) = splits.values()
    if not more:
        splits = dealt(only)
        lines.append("dealt " + ", ".join(f"{len(rows):,} rows to {split}" for split, rows in splits.items()))
        if len(only) < _FEWEST:
            lines.append(f"nothing is left to test on: from {_FEWEST} rows on they are dealt to three splits")
    return {split: rows for split, rows in splits.items() if rows}, lines


def _distinct(loaded: Mapping[str, Sequence[Row]]) -> tuple[dict[str, list[Row]], list[str]]:
    seen: dict[str, set[str]] = {}
    splits: dict[str, list[Row]] = {}
    repeated, other = 0, 0
    for split, rows in loaded.items():
        kept = splits.setdefault(split, [])
        for row in rows:
            key, right = f"{opening_of(row)}{row['question']}", {*golds(row["answer"])}
            if key not in seen:
                seen[key] = right
                kept.append(row)
            elif right & seen[key]:
                repeated += 1
            else:
                other += 1
    lines = [f"left out {repeated:,} rows that repeat another"] * bool(repeated)
    lines += [f"left out {other:,} rows that ask what another asks, and have another answer"] * bool(other)
    return splits, lines


def dealt(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Deal rows to train, validation and test, 8 to 1 to 1; all to train where there are fewer than three."""
    if len(rows) < _FEWEST:
        return {"train": [*rows]}
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    held = max(1, len(rows) // 10)
    parts = {"train": order[2 * held :], "validation": order[held : 2 * held], "test": order[:held]}
    return {split: [rows[place] for place in sorted(places)] for split, places in parts.items()}
