"""The parts of a prepared folder: tables, a corpus, an index, an archive, an environment's data, a model.

A piece is there completely or not at all, under one path of the folder.
"""

from __future__ import annotations

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
from agent_gym.prepare import release_builder
from agent_gym.prepare.model import convert
from agent_gym.prepare.recipes import Archive, Model, Recipe, Releases
from agent_gym.prepare.releases import in_folders, normal
from agent_gym.prepare.rows import with_context, write_table
from agent_gym.prepare.sources import DOWNLOADS, NO_SPLIT, Inputs, Rows, files_in, source_names
from agent_gym.row_files import read_rows
from agent_gym.row_reader import Rules, rules_of
from agent_gym.search import bm25, build, corpus, files
from agent_gym.search.base import Document
from agent_gym.search.encoder import make_encoder
from agent_gym.search.index import KINDS
from agent_gym.search.sources import Source, hotpotqa_paragraphs

INDEXES = ("bm25", "auto", *KINDS, "none")
ENCODER = "BAAI/bge-large-en-v1.5"  # Agent-R1's

_CORPUS = "corpus"
_BY_HAND = "unpack it yourself, and give the folder"
_GROWTH = 4  # times the bytes of the published archive may another one unpack to


@dataclass(frozen=True)
class Options:
    """The choices of the user."""

    index: str | None = None  # of the corpus, one of `INDEXES`; None for BM25 where there is a corpus
    encoder: str = ENCODER  # of a dense index, a name on the hub or a folder
    device: str = "cpu"  # where it encodes
    columns: Mapping[str, str] | None = None  # names of columns by their roles, of files of rows
    skip_bad: bool = False  # whether rows that the environment cannot play are left out
    packages: tuple[str, ...] = ()  # whose releases become tasks; none for the listed ones
    pairs: int = 3  # of the newest releases, of a package that is not listed

    @property
    def rules(self) -> Rules:
        """How rows are read; `ConfigError` for wrong settings."""
        return rules_of(self.columns, skip_bad=self.skip_bad)

    @property
    def reading(self) -> dict[str, Any]:
        """The choices that the rows depend on, for the manifest."""
        return {name: value for name in ("columns", "skip_bad") if (value := getattr(self, name))}


@dataclass(frozen=True)
class Piece:
    """Something to make, relative to the prepared folder."""

    path: str
    make: Callable[[Path, bool], None]  # makes it in a folder, or continues it; with or without progress bars
    argument: tuple[str, str]  # the argument of the environment that it is for, and the path to give as its value
    marker: str = ""  # the file in it that is written last
    rows: Callable[[Path], int | None] = lambda folder: None  # or documents, or files
    config: Mapping[str, Any] = field(default_factory=dict)  # its choices, for the manifest

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
        shop = recipe.built.folder

        def make(folder: Path, progress: bool) -> None:
            env: Any = load_env_creator(str(gymnasium.spec(recipe.env_id).entry_point))
            env.build_data(inputs.paths[0], folder / shop, progress=progress)

        return [Piece(shop, make, ("data", shop))]
    if recipe.model:
        return [_model(recipe.model, inputs)]
    if recipe.releases:
        return release_pieces(recipe.releases, options, inputs.paths)
    texts = [_corpus(inputs)] if recipe.corpus else []
    rules = _rules_of(recipe, options)
    return [*(_table(rows, rules) for rows in inputs.rows), *texts, *index_pieces(recipe, options)]


def index_pieces(recipe: Recipe, options: Options) -> list[Piece]:
    """Return the pieces that are indexes: one, or none.

    A dense index is in a folder of its encoder's name: another kind is built from the same vectors.
    """
    if options.index not in (None, *INDEXES):
        raise ConfigError(f"index is {options.index!r}; it must be one of {', '.join(INDEXES)}")
    if recipe.corpus is None and options.index not in (None, "none"):
        raise ConfigError(f"{recipe.name} has nothing to search, so it has no index; leave out --index")
    if recipe.releases:  # a package that is added to a finished folder leaves it finished, too
        return release_pieces(recipe.releases, options)
    if recipe.corpus is None or options.index == "none":
        return []
    if options.index in (None, "bm25"):

        def save(folder: Path, progress: bool) -> None:
            bm25.BM25Retriever(corpus.Corpus(folder / _CORPUS)).save(folder / "bm25")

        return [Piece("bm25", save, ("retriever", "bm25"), bm25.MANIFEST, config={"index": "bm25"})]
    kind, local = str(options.index), Path(options.encoder).expanduser()
    path = f"dense-{local.resolve().name}"

    def make(folder: Path, progress: bool) -> None:
        # The index names its encoder, and is opened from other working directories.
        encoder = make_encoder(str(local.resolve()) if local.is_dir() else options.encoder, device=options.device)
        texts = corpus.Corpus(folder / _CORPUS)
        build.build_index(texts, encoder, folder / path, kind=kind, device=options.device, progress=progress)

    config = {"index": kind, "encoder": options.encoder}
    return [Piece(path, make, ("retriever", path), build.MANIFEST, config=config)]


def release_pieces(releases: Releases, options: Options, paths: Sequence[Path] = ()) -> list[Piece]:
    """Return a piece for each package: a folder of its tasks, with a report of the releases that make none."""
    local = in_folders(list(paths)) if paths else {}
    listed = release_builder.listed_packages(releases.packages)
    names = [normal(name) for name in options.packages] or list(local or listed)
    if unknown := sorted(set(names) - local.keys()) if local else []:
        raise ConfigError(f"no source archive is given of {', '.join(unknown)}; there are {', '.join(local)}")

    def piece(name: str) -> Piece:
        path = f"{releases.folder}/{release_builder.split_of(name)}/{name}"

        def make(folder: Path, progress: bool) -> None:
            there = [local[name]] if name in local else None
            found = there or release_builder.releases_of(name, listed.get(name), options.pairs)
            aside = folder / DOWNLOADS / name
            release_builder.build_package(found, aside, progress, releases.functions)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            files.replace(aside, folder / path)

        def count(folder: Path) -> int:
            return len(list((folder / path).glob("*/task.toml")))

        return Piece(path, make, ("data", releases.folder), release_builder.REPORT, count)

    return [piece(name) for name in dict.fromkeys(names)]


def _rules_of(recipe: Recipe, options: Options) -> Rules:
    """Return the rules by which the environment reads the written rows, with the names of the source's columns."""
    made: Any = load_env_creator(str(gymnasium.spec(recipe.env_id).entry_point))
    own: Rules = made.row_rules
    return own._replace(columns=options.rules.columns, skip_bad=options.skip_bad)


def _path_of(rows: Rows) -> str:
    return f"{rows.table.folder}/{rows.split}.parquet"


def _table(rows: Rows, rules: Rules) -> Piece:
    table, path = rows.table, _path_of(rows)
    return Piece(
        path,
        make=lambda folder, progress: write_table(folder / path, table, rows.read(), rules, progress=progress),
        # The folder, which holds one file per split; or the file, if its name holds no split.
        argument=("data", path if rows.split == NO_SPLIT else table.folder),
        rows=lambda folder: require("pyarrow.parquet", "train").read_metadata(folder / path).num_rows,
    )


def _corpus(inputs: Inputs) -> Piece:
    """Make the searched corpus: separate documents, or the paragraphs of the tables, read from the parquet files."""

    def make(folder: Path, progress: bool) -> None:
        def paragraphs() -> Iterator[tuple[str, Document]]:
            tables = chain.from_iterable(read_rows(folder / _path_of(rows)) for rows in inputs.rows)
            return hotpotqa_paragraphs(with_context(row) for _, row in tables).read()

        corpus.Corpus.build(folder / _CORPUS, inputs.documents or Source(paragraphs), progress=progress)

    def count(folder: Path) -> int:
        return len(corpus.Corpus(folder / _CORPUS, verify=False))

    return Piece(_CORPUS, make, ("corpus", _CORPUS), corpus.MANIFEST, count)


def _unpacked(archive: Archive, sources: Sequence[Path]) -> Piece:
    """Make one folder of all wanted files of some archives and folders; other files stay in them."""

    def make(folder: Path, progress: bool) -> None:
        unfinished = folder / f"{archive.folder}.partial"
        shutil.rmtree(unfinished, ignore_errors=True)
        if not sum(unpack(archive, source, unfinished, progress) for source in sources):
            where = ", ".join(map(str, sources))
            raise ConfigError(f"{where} holds no file that is wanted; expected {archive.local}")
        files.replace(unfinished, folder / archive.folder)

    path = archive.folder
    return Piece(path, make, ("data", path), rows=lambda folder: len(files_in(folder / path)))


def _model(model: Model, inputs: Inputs) -> Piece:
    def make(folder: Path, progress: bool) -> None:
        aside = folder / DOWNLOADS / model.folder
        convert(model, inputs.paths[0], aside, source_names(inputs.origin))
        files.replace(aside, folder / model.folder)

    return Piece(model.folder, make, ("model", model.folder))


def unpack(archive: Archive, source: Path, target: Path, progress: bool) -> int:
    """Write the wanted files of an archive or a folder, and count it."""
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
    """Give the files of an archive or a folder: a name with slashes, the bytes, and a function that opens it."""
    if source.is_dir():
        for file in files_in(source):
            name = f"{source.resolve().name}/{file.relative_to(source).as_posix()}"
            yield name, file.stat().st_size, partial(file.open, "rb")
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
