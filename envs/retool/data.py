"""Where the problems come from: the generator, or any data set of problems and answers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agent_gym.data import Row, Splits, load_splits
from agent_gym.envs.retool.embedded import SIZES, GeneratedProblems, check_kinds
from agent_gym.errors import ConfigError

EMBEDDED = "embedded"
# DAPO-Math-17k asks its policies for another form of the answer than this environment reads.
_DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
_DAPO_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'


class Problem(NamedTuple):
    """One task; `program` prints the answer, for the expert, and is "" where the data has none."""

    text: str
    gold: str
    program: str = ""


def read(row: Any) -> Problem:
    """Read a row: `problem` (or `question`) and `answer`, or `prompt` and `reward_model` as verl's data sets have them.

    Raises:
        ConfigError: if it has neither.
    """
    if isinstance(row, Mapping):
        text, gold = _text(row), row.get("answer")
        if "reward_model" in row:
            gold = (row["reward_model"] or {}).get("ground_truth")
        if isinstance(gold, int | float) and not isinstance(gold, bool):
            gold = str(gold)
        if isinstance(text, str) and isinstance(gold, str) and gold.strip():
            # The worked answers of GSM8K end in the answer proper.
            return Problem(text, gold.rpartition("####")[2].strip(), str(row.get("program") or ""))
    raise ConfigError(
        "a problem is a row with problem (or question) and answer, or with prompt (chat messages) and reward_model "
        f"(with ground_truth), got {row!r:.200}"
    )


def _text(row: Mapping[str, Any]) -> Any:
    if "prompt" not in row:
        return row.get("problem", row.get("question"))
    prompt = row["prompt"]
    if not isinstance(prompt, str):
        questions = [message["content"] for message in prompt if message["role"] == "user"]
        prompt = questions[-1] if questions else None
    return prompt if prompt is None else prompt.removeprefix(_DAPO_BEFORE).removesuffix(_DAPO_AFTER)


# A copy of DAPO-Math-17k has 1.8 million rows, so that each source is walked through once, and again if it changed.
_read: dict[str, tuple[Splits, Splits]] = {}


def problems(data: str, level: int | None = None, kinds: Sequence[str] | None = None) -> Splits:
    """Return the splits of a source: "embedded", a path, or a hub name.

    Raises:
        ConfigError: for a source that cannot be read or has no problems, or a level or kinds that it does not have.
    """
    if data == EMBEDDED:
        return _embedded(level, check_kinds(kinds))
    for name, value in (("level", level), ("kinds", kinds)):
        if value is not None:
            raise ConfigError(f"{name} is {value!r}, but only the embedded problems have {name}, and data is {data!r}")
    splits = load_splits(data, columns=())
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


@functools.lru_cache(maxsize=8)
def _embedded(level: int | None, kinds: tuple[str, ...]) -> Splits:
    return {split: GeneratedProblems(split, size, level, kinds) for split, size in SIZES.items()}


def _distinct(rows: Any) -> Sequence[Row]:
    """Leave out the rows whose problem an earlier one has; of a hub's data set other columns are not read for it."""
    columns = getattr(rows, "column_names", None)
    texts = rows
    if columns is not None:
        texts = rows.select_columns([name for name in ("prompt", "problem", "question") if name in columns][:1])
    first: dict[str, int] = {}
    for index, row in enumerate(texts):
        first.setdefault(str(_text(row)), index)
    kept = list(first.values())
    return [rows[index] for index in kept] if columns is None else rows.select(kept)
