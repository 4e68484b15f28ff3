"""What a recipe is made of. The recipes themselves are in recipes.py.

Most are tables: rows of a data set, brought into columns that an environment reads. What is no table (an archive to
unpack, a script to run) is a `Piece` of its own, which a recipe names in `extra`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Hub:
    """A data set on the Hugging Face hub.

    Attributes:
        name: its name there.
        config: its configuration, if it has several.
        revision: the commit to take, so that everybody gets the same rows.
        rows: split to the number of its rows; only these splits are taken.
        size: bytes to download.
        size_from: where `size` is from, and whether it is exact.
    """

    name: str
    config: str | None
    revision: str
    rows: Mapping[str, int]
    size: int
    size_from: str

    @property
    def count(self) -> int:
        """All of its rows."""
        return sum(self.rows.values())

    def __hash__(self) -> int:
        return hash((self.name, self.config, self.revision))

    def __str__(self) -> str:
        return f"{self.name} ({self.config})" if self.config else self.name


@dataclass(frozen=True)
class Table:
    """Questions or problems, a parquet file per split.

    Attributes:
        folder: where to, below the prepared folder.
        hub: where from, unless local files are given.
        forms: sets of columns; a local file whose rows have all of one set holds this table.
        convert: brings a row into the columns. Raises KeyError, TypeError or ValueError for another kind of row.
        columns: their names and shapes (tables.py).
        local: what a local copy looks like, for messages.
        distinct: a column of which each value is kept once, if any.
        shrink: bytes of parquet per byte of the download, for the forecast.
        paragraphs: how many a row brings to the corpus at most.
        pass_over: words in the names of files that a folder may hold and that are not meant.
    """

    folder: str
    hub: Hub
    forms: tuple[tuple[str, ...], ...]
    convert: Callable[[Row], dict[str, Any]]
    columns: Mapping[str, Any]
    local: str
    distinct: str | None = None
    shrink: float = 1.0
    paragraphs: int = 0
    pass_over: tuple[str, ...] = ("test",)


@dataclass(frozen=True)
class Archive:
    """Files that are published in an archive, and read as they are.

    Attributes:
        url: where it is published.
        size: bytes to download.
        unpacked: bytes of the wanted files.
        size_from: where both are from, and whether they are exact.
        folder: where the files go, below the prepared folder.
        wanted: what it finds in the name of a file, if anything, is the name to keep, below `folder`.
        local: what a local copy looks like, for messages.
    """

    url: str
    size: int
    unpacked: int
    size_from: str
    folder: str
    wanted: re.Pattern[str]
    local: str


@dataclass(frozen=True)
class Built:
    """Files that a program cannot fetch, of which the environment builds what it reads.

    Attributes:
        names: patterns of their names, the most important one first.
        folder: what is built, below the prepared folder.
        local: what a local copy looks like, for messages.
        why: why they cannot be fetched, for messages.
        growth: bytes that are built per byte of the files, for the forecast.
        growth_from: where that is from.
    """

    names: tuple[str, ...]
    folder: str
    local: str
    why: str
    growth: float
    growth_from: str


class Piece(ABC):
    """Something that is there completely or not at all, under one path of the prepared folder."""

    @property
    @abstractmethod
    def path(self) -> str:
        """The file or folder that it is, relative to the prepared folder."""

    @property
    def argument(self) -> tuple[str, str]:
        """The argument of the environment that it is for, and the path to give as its value."""
        return "data", self.path

    @property
    def config(self) -> Mapping[str, Any]:
        """What was chosen for it, for the manifest."""
        return {}

    def done(self, folder: Path) -> bool:
        """Whether it is there."""
        return (folder / self.path).exists()

    @abstractmethod
    def make(self, folder: Path, *, progress: bool) -> None:
        """Make it; after a kill, go on with it."""

    def rows(self, folder: Path) -> int | None:
        """Count its rows or documents, if it has any of its own."""
        return None

    @abstractmethod
    def forecast(self) -> list[Forecast]:
        """Say what making it will fetch and write."""


@dataclass(frozen=True)
class Forecast:
    """One line of a dry run.

    Attributes:
        action: "fetch" or "write".
        what: which data set, file or folder.
        size: bytes, None where nobody knows.
        note: how much it holds, and where the size is from.
    """

    action: str
    what: str
    size: int | None
    note: str


@dataclass(frozen=True)
class Recipe:
    """One name of `agent-gym prepare`.

    Attributes:
        name: on the command line, and of the folder in the cache.
        summary: one line for the help.
        env_id: the environment that it is for.
        tables: questions or problems.
        corpus: what is searched: "paragraphs" of the tables' rows, or documents of the hub with the columns _id, title
            and text. None where nothing is searched.
        embedded: whether the environment has data of its own that needs no download.
        archive: files that are read as they are; then there are neither tables nor a corpus.
        built: files that only the environment can make something of; then there is nothing else.
        extra: pieces that are no tables.
    """

    name: str
    summary: str
    env_id: str
    tables: tuple[Table, ...] = ()
    corpus: str | Hub | None = None
    embedded: bool = True
    archive: Archive | None = None
    built: Built | None = None
    extra: tuple[Piece, ...] = ()

    def accepted(self) -> list[str]:
        """Say what local files it takes."""
        documents = ["BEIR's corpus.jsonl with the columns _id, title and text"] * isinstance(self.corpus, Hub)
        archives = [] if self.archive is None else [self.archive.local]
        built = [] if self.built is None else [self.built.local]
        return [table.local for table in self.tables] + documents + archives + built

    def without_download(self) -> str:
        """Say what works without any data set."""
        return f'without a download {self.env_id} has its own problems (data="embedded")' if self.embedded else ""
