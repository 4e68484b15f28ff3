"""Where tasks come from: a generator in the package, a local file, or the Hugging Face hub.

Each source gives the same thing, a mapping from split name to a sequence of rows. All rows are checked on the way
(row_reader.py): one that cannot be played is found when the environment is made and not in the middle of a run.

Data sets and a model made by `agent-gym prepare` are in one folder (`cache_folder`).
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from agent_gym.errors import ConfigError
from agent_gym.row_reader import QUESTIONS, Row, Splits, load, rules_of

EMBEDDED = "embedded"
"""The name of the data that an environment generates itself."""
MODELS = {"smollm2": "SmolLM2-135M-Instruct"}
"""The models that `agent-gym prepare` makes, and where each is in its prepared folder."""


class GeneratedRows(Sequence[Row]):
    """Rows of a generator, `size` of them at most, each made when it is needed. A subclass defines `make`."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ConfigError(f"size is {size}, but a split needs at least one row")
        self.size = size

    def make(self, index: int) -> Row:
        """Make row `index`, 0 to `size` - 1: the same at any size, and new each time, so that it may be changed."""
        raise TypeError(f"{type(self).__name__} has to define make(index)")

    def has(self, index: int) -> bool:
        """Whether there is a row of this number, 0 or above."""
        return index < len(self)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        at = index + len(self) if index < 0 else index
        if at < 0 or not self.has(at):
            raise IndexError(f"row {index} of a split of {len(self)}")
        return self.make(at)


class DistinctRows(GeneratedRows):
    """Rows of a generator of which no two are the same to a policy: each is drawn until it is new, and kept.

    Row i depends on the rows before it alone, so that it is the same at any size. A subclass defines `draw` or
    `drafts`.

    Args:
        size: how many there are at most. Where `TRIES` draws in a row find nothing new, the split ends before.
        key: the column in which no two rows agree, "" for the row as a whole; None if rows may repeat, as in a stream
            that is long and trained on.
    """

    TRIES: ClassVar[int] = 200

    def __init__(self, size: int, key: str | None) -> None:
        super().__init__(size)
        self._key, self._rows, self._seen = key, list[Any](), set[Any]()

    def draw(self, index: int, attempt: int) -> Row:
        """Draw row `index`, another one for each attempt from 0 on."""
        raise TypeError(f"{type(self).__name__} has to define draw(index, attempt)")

    def drafts(self, index: int) -> Iterator[Any]:
        """Yield candidates for row `index`, one after the other."""
        return (self.draw(index, attempt) for attempt in itertools.count())

    def _mark(self, row: Any) -> Any:
        return row[self._key] if self._key else row

    def make(self, index: int) -> Row:
        return next(self.drafts(index)) if self._key is None else copy.deepcopy(self._rows[index])

    def has(self, index: int) -> bool:
        with _DRAWING:
            while self._key is not None and len(self._rows) <= index < self.size:
                tries = itertools.islice(self.drafts(len(self._rows)), self.TRIES)
                row = next((row for row in tries if self._mark(row) not in self._seen), None)
                if row is None:
                    self.size = len(self._rows)
                else:
                    self._rows.append(row)
                    self._seen.add(self._mark(row))
        return index < self.size

    def __len__(self) -> int:
        self.has(self.size - 1)  # draws them all, and may find that there are fewer
        return self.size

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": [], "_seen": set()}


# One for all, since its own lock could not be copied with its environment.
_DRAWING = threading.RLock()


class SplitRows(DistinctRows):
    """The rows of one split of a generator. In train a row may come back, in the other splits none does.

    Names and wordings belong to one split each, and a row depends on the split, its number and the arguments of a
    subclass. A generator of random numbers that is seeded by them as a text goes through SHA-512: neighbouring rows
    share nothing, and PYTHONHASHSEED has no influence.

    Args:
        split: one of `SIZES`.
        size: how many there are at most, by default as many as `SIZES` has.

    Raises:
        ConfigError: for an unknown split, or a size below one.
    """

    SIZES: ClassVar[Mapping[str, int]]
    """Splits, and how many rows each has at most."""
    KEY: ClassVar[str | None]
    """The column in which no two rows agree, outside of train; see `DistinctRows`."""

    def __init__(self, split: str, size: int | None = None) -> None:
        if split not in self.SIZES:
            raise ConfigError(f"unknown split {split!r}; {type(self).__name__} has: {', '.join(self.SIZES)}")
        super().__init__(self.SIZES[split] if size is None else size, None if split == "train" else self.KEY)
        self.split = split

    @classmethod
    @functools.lru_cache(maxsize=32)
    def splits(cls, **given: Any) -> Splits:
        """Return all splits, each with these arguments, once for all environments that ask for the same."""
        return {split: cls(split, **given) for split in cls.SIZES}


def read_wordings(package: str) -> dict[str, dict[str, tuple[str, ...]]]:
    """Read wording.txt of a generator, kind of task to split to sentences: blocks of a kind, then a sentence a line.

    The first block describes the file. A sentence follows its split, and continues in lines with 12 spaces.
    """
    wordings: dict[str, dict[str, tuple[str, ...]]] = {}
    for block in files(package).joinpath("wording.txt").read_text("utf-8").strip().split("\n\n")[1:]:
        kind, *lines = block.replace("\n" + " " * 12, " ").splitlines()
        marked = [line.split(maxsplit=1) for line in lines]
        wordings[kind] = {split: tuple(text for at, text in marked if at == split) for split, _ in marked}
    return wordings


def cache_folder() -> Path:
    """Return the folder in which data sets are prepared by default."""
    chosen = os.environ.get("AGENT_GYM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "agent-gym"


def load_splits(
    data: str | Path,
    *,
    columns: Sequence[str] | Mapping[str, str] = QUESTIONS,
    config: str | None = None,
    skip_bad: bool = False,
) -> Splits:
    """Load every split of a data set, once per process, and check all its rows.

    Args:
        data: a file (`row_files.SUFFIXES`), which is one split, that of its name, else "train"; a folder with files or
            folders per split (`row_splits.find_files`); or the name of a data set on the hub.
        columns: columns that each row must have, `question` and `answer` in any of the forms of row_forms.py; or a dict
            that names them, as in `{"question": "Body+Question", "answer": "Answer"}`.
        config: the configuration of a hub data set, for example "main".
        skip_bad: leaves out rows that cannot be used, and counts them in a line on stderr.

    Raises:
        ConfigError: if nothing is found, a file cannot be read, rows cannot be used, or the hub cannot be reached. It
            groups and counts the reasons, each with the file and line of the first row.
    """
    named = columns if isinstance(columns, Mapping) else None
    wanted = QUESTIONS if isinstance(columns, Mapping) else columns
    return load(data, rules_of(named, skip_bad=skip_bad, wanted=wanted), config)
