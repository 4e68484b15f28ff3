"""What a prepared folder is made of: tables, a corpus, an index, an unpacked archive, what an environment builds.

A piece is there completely or not at all, under one path of the folder.
"""

from __future__ import annotations

import json
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from tqdm import tqdm

from agent_gym.errors import ConfigError, require
from agent_gym.prepare.recipes import Archive, Recipe
from agent_gym.prepare.rows import converted_rows, with_context, write_table
from agent_gym.prepare.sources import NO_SPLIT, Forecast, Inputs, Rows, files_in, read_files, size_of
from agent_gym.search import bm25, build, corpus, files
from agent_gym.search.base import Document
from agent_gym.search.build import build_index
from agent_gym.search.corpus import Corpus
from agent_gym.search.encoder import make_encoder
from agent_gym.search.index import KINDS, plan
from agent_gym.search.sources import Source, hotpotqa_paragraphs

INDEXES = ("bm25", "auto", *KINDS, "none")
ENCODER = "BAAI/bge-large-en-v1.5"  # Agent-R1's
CORPUS = "corpus"

# Bytes a document, measured on 600 paragraphs of HotpotQA; the last is of memory, see BM25Retriever.
_CORPUS_BYTES, _BM25_BYTES, _BM25_BUILDING = 660, 400, 2_000
# Numbers per vector, from the models' cards; a local model's own file has it.
_DIMENSIONS = {
    "BAAI/bge-large-en-v1.5": 1024,
    "BAAI/bge-base-en-v1.5": 768,
    "BAAI/bge-small-en-v1.5": 384,
    "intfloat/e5-large-v2": 1024,
    "intfloat/e5-base-v2": 768,
    "intfloat/e5-small-v2": 384,
}
_BY_HAND = "unpack it yourself, and give the folder"
_GROWTH = 4  # times the bytes of the published archive may another one unpack to


@dataclass(frozen=True)
class Options:
    """What can be chosen."""

    index: str | None = None  # of the corpus, one of `INDEXES`; None for BM25 where there is a corpus
    encoder: str = ENCODER  # of a dense index, a name on the hub or a folder
    device: str = "cpu"  # where it encodes


@dataclass(frozen=True)
class Piece:
    """Something to make, relative to the prepared folder."""

    path: str
    make: Callable[[Path, bool], None]  # makes it in a folder, or goes on with it; with or without progress bars
    forecast: Callable[[], list[Forecast]]  # what making it will write
    argument: tuple[str, str]  # the argument of the environment that it is for, and the path to give as its value
    marker: str = ""  # the file in it that is written last
    rows: Callable[[Path], int | None] = lambda folder: None  # or documents, or files
    config: Mapping[str, Any] = field(default_factory=dict)  # what was chosen for it, for the manifest

    def done(self, folder: Path) -> bool:
        """Whether it is there completely, and as it was chosen."""
        if not (folder / self.path / self.marker).exists():
            return False
        kind = self.config.get("index", "auto")
        return kind in ("auto", "bm25") or kind == build.Manifest.read(folder / self.path).index


def pieces_of(recipe: Recipe, inputs: Inputs, options: Options) -> list[Piece]:
    """Return all pieces of a recipe, in the order in which they are made."""
    if recipe.archive:
        return [_unpacked(recipe.archive, inputs.paths)]
    if recipe.built:
        return [_built(recipe, inputs)]
    texts = [_corpus(inputs)] if recipe.corpus else []
    return [*map(_table, inputs.rows), *texts, *index_pieces(recipe, inputs, options)]


def index_pieces(recipe: Recipe, inputs: Inputs, options: Options) -> list[Piece]:
    """Return the pieces that are indexes: one, or none.

    Raises:
        ConfigError: for an index that there is not, or that the recipe cannot have.
    """
    if options.index not in (None, *INDEXES):
        raise ConfigError(f"index is {options.index!r}; it must be one of {', '.join(INDEXES)}")
    if recipe.corpus is None and options.index not in (None, "none"):
        raise ConfigError(f"{recipe.name} has nothing to search, so it has no index; leave out --index")
    if recipe.corpus is None or options.index == "none":
        return []
    return [_words(inputs) if options.index in (None, "bm25") else _vectors(inputs, options)]


def _table(rows: Rows) -> Piece:
    table = rows.table
    path = f"{table.folder}/{rows.split}.parquet"

    def forecast() -> list[Forecast]:
        if rows.known is None:
            count = sum(1 for _ in converted_rows(table, rows.read()))
            return [Forecast("write", path, rows.size, f"{count:,} rows; seldom more than their source")]
        once = f", of which each {table.distinct} is kept once" if table.distinct else ""
        return [Forecast("write", path, round(rows.size * table.shrink), f"about; {rows.known:,} rows{once}")]

    return Piece(
        path,
        make=lambda folder, progress: write_table(folder / path, table, rows.read(), progress=progress),
        forecast=forecast,
        # The folder, which holds one file per split; or the file, if its name holds no split.
        argument=("data", path if rows.split == NO_SPLIT else table.folder),
        rows=lambda folder: require("pyarrow.parquet", "train").read_metadata(folder / path).num_rows,
    )


def _corpus(inputs: Inputs) -> Piece:
    """Make what is searched: documents of their own, or the paragraphs of the tables, read from the parquet files."""

    def make(folder: Path, progress: bool) -> None:
        def paragraphs() -> Iterator[tuple[str, Document]]:
            tables = read_files([folder / _table(rows).path for rows in inputs.rows])
            return hotpotqa_paragraphs(with_context(row) for _, row in tables).read()

        Corpus.build(folder / CORPUS, inputs.documents or Source(paragraphs), progress=progress)

    def forecast() -> list[Forecast]:
        count, exactly = _documents(inputs)
        remark = f"{count:,} documents" if exactly else f"at most; {count:,} documents, of which some are the same"
        return [Forecast("write", CORPUS, count * _CORPUS_BYTES, f"{remark}, of about {_CORPUS_BYTES} bytes")]

    return Piece(
        CORPUS,
        make,
        forecast,
        argument=("corpus", CORPUS),
        marker=corpus.MANIFEST,
        rows=lambda folder: len(Corpus(folder / CORPUS, verify=False)),
    )


def _documents(inputs: Inputs) -> tuple[int, bool]:
    """Count the documents of local files; of the hub's rows only the most that there can be is known."""
    if inputs.known_documents is not None:
        return inputs.known_documents, True
    if inputs.documents is not None:
        return sum(1 for _ in inputs.documents), True
    if any(rows.known is not None for rows in inputs.rows):
        return sum((rows.known or 0) * rows.table.paragraphs for rows in inputs.rows), False
    converted = chain.from_iterable(converted_rows(rows.table, rows.read()) for rows in inputs.rows)
    return sum(1 for _ in hotpotqa_paragraphs(map(with_context, converted))), True


def _words(inputs: Inputs) -> Piece:
    def forecast() -> list[Forecast]:
        count, _ = _documents(inputs)
        remark = f"about; building takes {count * _BM25_BUILDING:,} bytes of memory"
        return [Forecast("write", "bm25", count * _BM25_BYTES, remark)]

    return Piece(
        "bm25",
        make=lambda folder, progress: bm25.BM25Retriever(Corpus(folder / CORPUS)).save(folder / "bm25"),
        forecast=forecast,
        argument=("retriever", "bm25"),
        marker=bm25.MANIFEST,
        config={"index": "bm25"},
    )


def _vectors(inputs: Inputs, options: Options) -> Piece:
    """Make an index of vectors in a folder of its encoder's name: another kind is built from the same vectors."""
    kind, local = str(options.index), Path(options.encoder).expanduser()
    path = f"dense-{local.resolve().name}"

    def make(folder: Path, progress: bool) -> None:
        # The index names its encoder, and is opened from other working directories.
        encoder = make_encoder(str(local.resolve()) if local.is_dir() else options.encoder, device=options.device)
        texts = Corpus(folder / CORPUS)
        build_index(texts, encoder, folder / path, kind=kind, device=options.device, progress=progress)

    def forecast() -> list[Forecast]:
        count, _ = _documents(inputs)
        own = local / "config.json"
        dimension = _DIMENSIONS.get(options.encoder)
        if own.is_file():
            dimension = json.loads(own.read_text(encoding="utf-8")).get("hidden_size")
        if dimension is None:
            remark = f"{count:,} vectors; of how many numbers each is known when {options.encoder} is loaded"
            return [Forecast("write", path, None, remark)]
        planned = plan(count, dimension, kind)
        memory = f"building takes {planned.building:,} bytes of memory"
        remark = f"{planned.kind}, {count:,} vectors of {dimension}; {memory}"
        return [
            Forecast("write", f"{path}/{planned.kind}.faiss", planned.index, remark),
            Forecast("write", f"{path}/vectors", planned.vectors, "may be deleted afterwards"),
        ]

    config = {"index": kind, "encoder": options.encoder}
    return Piece(path, make, forecast, ("retriever", path), build.MANIFEST, config=config)


def _built(recipe: Recipe, inputs: Inputs) -> Piece:
    built = recipe.built
    assert built
    path = built.folder

    def make(folder: Path, progress: bool) -> None:
        spec = gymnasium.spec(recipe.env_id)
        creator: Any = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        creator.build_data(inputs.paths[0], folder / path, progress=progress)

    def forecast() -> list[Forecast]:
        size = sum(line.size or 0 for line in inputs.fetches)
        return [Forecast("write", path, round(size * built.growth), built.growth_from)]

    return Piece(path, make, forecast, ("data", path))


def _unpacked(archive: Archive, sources: Sequence[Path]) -> Piece:
    """Make one folder of all wanted files of some archives and folders; what else they hold stays in them."""

    def make(folder: Path, progress: bool) -> None:
        unfinished = folder / f"{archive.folder}.partial"
        shutil.rmtree(unfinished, ignore_errors=True)
        if not sum(unpack(archive, source, unfinished, progress) for source in sources):
            where = ", ".join(map(str, sources))
            raise ConfigError(f"{where} holds no file that is wanted; expected {archive.local}")
        files.replace(unfinished, folder / archive.folder)

    return Piece(
        archive.folder,
        make,
        forecast=lambda: [Forecast("write", archive.folder, archive.unpacked, archive.size_from)],
        argument=("data", archive.folder),
        rows=lambda folder: len(files_in(folder / archive.folder)),
    )


def unpack(archive: Archive, source: Path, target: Path, progress: bool) -> int:
    """Write what is wanted of an archive or a folder, and count it.

    Raises:
        ConfigError: if it cannot be unpacked, holds far too much, or a file that is there already.
    """
    count, room = 0, _GROWTH * archive.unpacked
    try:
        for name, size, open_file in tqdm(_members(source), desc=source.name, unit=" files", disable=not progress):
            found = archive.wanted.search(name)
            if not found:
                continue
            if (target / found[0]).exists():
                raise ConfigError(f"{source} holds {found[0]} once more; give each file in one source")
            room -= size
            if room < 0:
                raise ConfigError(f"the archive unpacks to more than {_GROWTH} times the bytes expected; {_BY_HAND}")
            (target / found[0]).parent.mkdir(parents=True, exist_ok=True)
            with open_file() as stream, (target / found[0]).open("wb") as file:
                shutil.copyfileobj(stream, file)
            count += 1
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, tarfile.TarError, EOFError) as error:
        raise ConfigError(f"{source} cannot be unpacked: {error}; fetch it again") from error
    except RuntimeError as error:  # a password, or a method of packing that Python does not know
        raise ConfigError(f"{source} cannot be unpacked: {error}; {_BY_HAND}") from error
    return count


def _members(source: Path) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    """Give the files of an archive or a folder: a name with slashes, the bytes, and what opens it."""
    if source.is_dir():
        for file in files_in(source):
            name = f"{source.resolve().name}/{file.relative_to(source).as_posix()}"
            yield name, size_of(file), partial(file.open, "rb")
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as zipped:
            for info in sorted(zipped.infolist(), key=lambda info: info.filename):
                if not info.is_dir():
                    yield info.filename, info.file_size, partial(zipped.open, info)
    else:
        with tarfile.open(source) as tarred:
            for member in tarred:
                if member.isfile():
                    yield member.name, member.size, partial(tarred.extractfile, member)
