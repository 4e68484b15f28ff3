"""The pieces that a recipe with tables becomes: parquet files and a corpus; the indexes are in indexes.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from agent_gym.prepare.formats import with_context
from agent_gym.prepare.inputs import NO_SPLIT, Inputs, Rows
from agent_gym.prepare.recipe import Forecast, Piece
from agent_gym.prepare.tables import converted_rows, count_rows, distinct, write_table
from agent_gym.search import corpus as corpora
from agent_gym.search.base import Document
from agent_gym.search.corpus import Corpus
from agent_gym.search.sources import Source, hotpotqa_paragraphs, read_rows

CORPUS = "corpus"
_CORPUS_BYTES = 660  # a document, measured on 600 paragraphs of HotpotQA


@dataclass(frozen=True)
class TablePiece(Piece):
    """One split as a parquet file."""

    source: Rows

    @property
    def path(self) -> str:
        """`data/train.parquet` and so on."""
        return f"{self.source.table.folder}/{self.source.split}.parquet"

    @property
    def argument(self) -> tuple[str, str]:
        """The folder, which holds one file per split; or the file, if its name says no split."""
        return "data", self.path if self.source.split == NO_SPLIT else self.source.table.folder

    def make(self, folder: Path, *, progress: bool) -> None:
        """Convert the rows."""
        write_table(folder / self.path, self.source.table, self.source.read(), progress=progress)

    def rows(self, folder: Path) -> int:
        """Count the rows."""
        return count_rows(folder / self.path)

    def forecast(self) -> list[Forecast]:
        """The rows of local files are counted; parquet is about as large as the hub's own."""
        table, size = self.source.table, round(self.source.size * self.source.table.shrink)
        if self.source.known is None:
            count = sum(1 for _ in distinct(converted_rows(table, self.source.read()), table.distinct))
            return [Forecast("write", self.path, self.source.size, f"{count:,} rows; seldom more than their source")]
        once = f", of which each {table.distinct} is kept once" if table.distinct else ""
        return [Forecast("write", self.path, size, f"about; {self.source.known:,} rows{once}")]


@dataclass(frozen=True)
class CorpusPiece(Piece):
    """What is searched: documents of their own, or the paragraphs of the tables, read from the parquet files."""

    inputs: Inputs

    path = CORPUS
    argument = ("corpus", CORPUS)

    def done(self, folder: Path) -> bool:
        """Whether it was finished."""
        return (folder / self.path / corpora.MANIFEST).is_file()

    def make(self, folder: Path, *, progress: bool) -> None:
        """Build it, or go on building it."""
        written = [folder / TablePiece(rows).path for rows in self.inputs.rows]
        Corpus.build(folder / self.path, self.inputs.documents or _paragraphs(written), progress=progress)

    def rows(self, folder: Path) -> int:
        """Count the documents."""
        return len(Corpus(folder / self.path, verify=False))

    def forecast(self) -> list[Forecast]:
        """Say how many documents, see `count`."""
        count, exactly = self.count()
        note = f"{count:,} documents" if exactly else f"at most; {count:,} documents, of which some are the same"
        return [Forecast("write", self.path, count * _CORPUS_BYTES, f"{note}, of about {_CORPUS_BYTES} bytes")]

    def count(self) -> tuple[int, bool]:
        """Count the documents of local files; of the hub's rows only the most that there can be is known."""
        if self.inputs.known_documents is not None:
            return self.inputs.known_documents, True
        if self.inputs.documents is not None:
            return sum(1 for _ in self.inputs.documents), True
        if any(rows.known is not None for rows in self.inputs.rows):
            return sum((rows.known or 0) * rows.table.paragraphs for rows in self.inputs.rows), False
        converted = chain.from_iterable(converted_rows(rows.table, rows.read()) for rows in self.inputs.rows)
        return sum(1 for _ in hotpotqa_paragraphs(map(with_context, converted))), True


def _paragraphs(tables: Sequence[Path]) -> Source:
    """Read the paragraphs of prepared tables, each once."""

    def read() -> Iterator[tuple[str, Document]]:
        rows = chain.from_iterable(map(read_rows, tables))
        return hotpotqa_paragraphs(with_context(row) for _, row in rows).read()

    return Source(read)
