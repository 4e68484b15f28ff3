"""Where the problems come from: the generator, or any data set of problems and answers."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agent_gym.data import Row, Splits, load_splits
from agent_gym.envs.retool.embedded import LEVELS, SIZES, GeneratedProblems, check_kinds
from agent_gym.errors import ConfigError

EMBEDDED = "embedded"
# DAPO-Math-17k tells its policies how to write the answer, and not as it is to be written here.
_DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
_DAPO_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'


class Problem(NamedTuple):
    """One task.

    Attributes:
        text: the problem.
        gold: its answer.
        program: one that prints the answer, for the expert; "" where the data has none.
    """

    text: str
    gold: str
    program: str = ""


class Rows(Sequence[Row]):
    """The rows of a data set without those whose problem an earlier one has."""

    def __init__(self, rows: Sequence[Row]) -> None:
        seen: set[str] = set()
        self._rows, self._kept = rows, []
        for index, text in enumerate(_texts(rows)):
            if text not in seen:
                seen.add(text)
                self._kept.append(index)

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._rows[i] for i in self._kept[index]]
        return self._rows[self._kept[index]]


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


def problems(data: str, level: int | None = None, kinds: Sequence[str] | None = None) -> Splits:
    """Return the splits of a source: "embedded", a path, or a hub name.

    Raises:
        ConfigError: for a source that cannot be read or has no problems, or a level or kinds that it does not have.
    """
    if level is not None and level not in LEVELS:
        raise ConfigError(f"level is {level!r}; allowed: {', '.join(map(str, LEVELS))}, or None for all")
    chosen = check_kinds(kinds)
    if data == EMBEDDED:
        return _embedded(level, chosen)
    for name, value in (("level", level), ("kinds", kinds)):
        if value is not None:
            raise ConfigError(f"{name} is {value!r}, but only the embedded problems have {name}, and data is {data!r}")
    return _distinct(data, load_splits(data, columns=()))


@functools.lru_cache(maxsize=8)
def _embedded(level: int | None, kinds: tuple[str, ...]) -> Splits:
    return {split: GeneratedProblems(split, size, level, kinds) for split, size in SIZES.items()}


# A copy of DAPO-Math-17k has 1.8 million rows, so that each source is walked through once, and again if it changed.
_read: dict[str, tuple[Splits, Splits]] = {}


def _distinct(data: str, splits: Splits) -> Splits:
    loaded, distinct = _read.get(data, (None, {}))
    if loaded is not splits:
        for split, rows in splits.items():
            try:
                read(rows[0])
            except ConfigError as error:
                raise ConfigError(f"{data}, split {split}: {error}") from None
        distinct = {split: Rows(rows) for split, rows in splits.items()}
        _read[data] = splits, distinct
    return distinct


def _text(row: Mapping[str, Any]) -> Any:
    if "prompt" not in row:
        return row.get("problem", row.get("question"))
    prompt = row["prompt"]
    if not isinstance(prompt, str):
        said = [message["content"] for message in prompt if message["role"] == "user"]
        prompt = said[-1] if said else None
    return prompt if prompt is None else prompt.removeprefix(_DAPO_BEFORE).removesuffix(_DAPO_AFTER)


def _texts(rows: Sequence[Row]) -> Iterator[str]:
    """The problem of each row; of a hub's data set without touching its other columns."""
    columns = getattr(rows, "column_names", None)
    if columns is not None:
        name = next(name for name in ("prompt", "problem", "question") if name in columns)
        rows = rows.select_columns([name])  # type: ignore[attr-defined]
    return map(str, map(_text, rows))
