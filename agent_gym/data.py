"""Where tasks come from: a generator in the package, a local file, or the Hugging Face hub.

Each source gives the same thing, a mapping from split name to a sequence of rows, and checks on the way that the
columns are there: a missing column is found when the environment is made and not in the middle of a run.

What `agent-gym prepare` has made, data sets and a model, is in one folder (`cache_folder`).
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from agent_gym.errors import ConfigError, require
from agent_gym.row_forms import completed

Row = dict[str, Any]
Splits = Mapping[str, Sequence[Row]]
EMBEDDED = "embedded"
"""The name of the data that an environment generates itself."""
SPLIT_NAMES = ("train", "validation", "valid", "dev", "test")
"""What a file of one split may be called."""
MODELS = {"smollm2": "SmolLM2-135M-Instruct"}
"""The models that `agent-gym prepare` makes, and where each is in its prepared folder."""
_SUFFIXES = (".jsonl", ".json", ".parquet")
_PER_LINE = "a file with a row per line ends in .jsonl"


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

    Row i depends on those before it alone, so that it is the same at any size. A subclass defines `draw` or `drafts`.

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
        """Yield what row `index` may be, one attempt after the other."""
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


# One for all, since a lock of its own could not be copied with its environment.
_DRAWING = threading.RLock()


class SplitRows(DistinctRows):
    """The rows of one split of a generator. In train a row may come back, in the other splits none does.

    Names and wordings belong to one split each, and a row depends on the split, its number and what a subclass is given
    beside these. A generator of random numbers that is seeded by them as a text goes through SHA-512: neighbouring rows
    share nothing, and PYTHONHASHSEED is no matter.

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

    The first block says what the file is. A sentence stands behind its split, and goes on in lines with 12 spaces.
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


def load_splits(data: str | Path, *, columns: tuple[str, ...], config: str | None = None) -> Splits:
    """Load every split of a data set, once per process.

    Args:
        data: a file (.jsonl, .json with a list, .parquet), which is one split (`split_of`); a folder that holds
            `<split>.jsonl` and so on; or the name of a data set on the hub.
        columns: columns that each row must have; `question` and `answer` in any of the forms of row_forms.py.
        config: the configuration of a hub data set, for example "main".

    Raises:
        ConfigError: if nothing is found, a file cannot be read, a column is missing, or the hub cannot be reached.
    """
    if not isinstance(data, str | Path):
        raise ConfigError(f"data is {data!r:.80}; allowed: a file, a folder, or the name of a data set on the hub")
    path = Path(data).expanduser()
    if path.exists():
        # The times of change are part of the key, so that an edited file is read again; a folder's own says nothing.
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return _load_local(path.resolve(), columns, tuple((str(file), file.stat().st_mtime_ns) for file in files))
    if isinstance(data, Path) or path.suffix in _SUFFIXES or data.startswith((".", "/", "~")) or data.count("/") > 1:
        raise ConfigError(f"no such file or folder: {str(data)!r}")
    return _load_hub(data, columns, config)


@functools.lru_cache(maxsize=8)
def _load_local(path: Path, columns: tuple[str, ...], _changed: tuple[tuple[str, int], ...]) -> Splits:
    if path.is_file():
        if path.suffix not in _SUFFIXES:
            raise ConfigError(f"{path} is no {', '.join(_SUFFIXES)} file")
        return {split_of(path): _read_file(path, columns)}
    splits: dict[str, list[Row]] = {}
    for file in sorted(path.iterdir()):
        if file.suffix in _SUFFIXES:
            # "train.jsonl", and the hub's own "train-00000-of-00001.parquet".
            splits.setdefault(file.stem.split("-")[0], []).extend(_read_file(file, columns))
    if not splits:
        raise ConfigError(f"{path} holds no {', '.join(_SUFFIXES)} file; expected for example train.jsonl")
    return splits


def split_of(file: Path) -> str:
    """Return the split that a file holds: the first of `SPLIT_NAMES` among the words of its name, else "train"."""
    words = re.split("[^a-z]+", file.stem.lower())
    return next((word for word in words if word in SPLIT_NAMES), "train")


def _read_file(path: Path, columns: tuple[str, ...]) -> list[Row]:
    try:
        if path.suffix == ".parquet":
            rows = require("pyarrow.parquet", "train").read_table(path).to_pylist()
        elif path.suffix == ".json":
            rows = _parsed(
                path.read_text(encoding="utf-8-sig"), f"{path}, which has to be a list of rows ({_PER_LINE})"
            )
        else:
            with path.open(encoding="utf-8-sig") as file:  # some editors write a mark before the first row
                rows = [_parsed(line, f"{path}, line {n}") for n, line in enumerate(file, 1) if line.strip()]
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or not parquet
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(rows, list):
        raise ConfigError(f"{path} holds no list of rows; {_PER_LINE}")
    if not rows:
        raise ConfigError(f"{path} holds no rows")
    return [completed(row, columns, f"{path}, row {n}") for n, row in enumerate(rows)]


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: not valid JSON: {error}") from error


@functools.lru_cache(maxsize=8)
def _load_hub(name: str, columns: tuple[str, ...], config: str | None) -> Splits:
    datasets = require("datasets", "train")
    try:
        loaded = datasets.load_dataset(name, config)
    except Exception as error:  # the hub client raises a different class for each way of being unreachable
        cure = "give a local folder or file with the same columns instead, or use the embedded data"
        failed = f"cannot load the data set {name!r} from the hub ({type(error).__name__})"
        raise ConfigError(f"{failed}. If this machine is offline, {cure}") from error
    splits: dict[str, Sequence[Row]] = {}
    for split, rows in loaded.items():
        splits[split] = rows
        if not set(columns) <= set(rows.column_names):
            completed(rows[0], columns, f"{name}, split {split}")
            splits[split] = CompletedRows(rows, columns, f"{name}, split {split}")
    return splits


class CompletedRows(GeneratedRows):
    """Rows of a data set on the hub in another form, each read when it is needed (row_forms.py)."""

    def __init__(self, rows: Any, columns: tuple[str, ...], where: str) -> None:
        self.rows, self._columns, self._where = rows, columns, where

    def select(self, indices: Sequence[int]) -> CompletedRows:
        return CompletedRows(self.rows.select(indices), self._columns, self._where)

    def __len__(self) -> int:
        return len(self.rows)

    def make(self, index: int) -> Row:
        return completed(self.rows[index], self._columns, f"{self._where}, row {index}")
