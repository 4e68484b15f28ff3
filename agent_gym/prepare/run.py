"""Prepare a data set: work out the pieces, make those that are missing, and write the manifest."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent_gym.data import cache_folder
from agent_gym.errors import ConfigError, writing
from agent_gym.prepare import record
from agent_gym.prepare.archive import from_archives, published
from agent_gym.prepare.built import from_built
from agent_gym.prepare.download import fetch, is_url, size_of
from agent_gym.prepare.indexes import BM25, DENSE_KINDS, BM25Piece, DensePiece
from agent_gym.prepare.inputs import NOTHING, Inputs, from_hub
from agent_gym.prepare.local import from_files
from agent_gym.prepare.pieces import CORPUS, CorpusPiece, TablePiece
from agent_gym.prepare.recipe import Forecast, Piece, Recipe
from agent_gym.prepare.recipes import RECIPES
from agent_gym.search import files

INDEXES = (BM25, *DENSE_KINDS, "none")
ENCODER = "BAAI/bge-large-en-v1.5"  # Agent-R1's


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        index: of the corpus, one of `INDEXES`; None for BM25 where there is a corpus.
        encoder: of a dense index, a name on the hub or a folder.
        device: where it encodes.
    """

    index: str | None = None
    encoder: str = ENCODER
    device: str = "cpu"


DEFAULTS = Options()


@dataclass(frozen=True)
class Prepared:
    """A prepared folder.

    Attributes:
        recipe: by which it was prepared.
        folder: where it is.
        pieces: path to what the manifest says about it.
        made: the paths of those that were not there before.
        source: what it was made from.
    """

    recipe: Recipe
    folder: Path
    pieces: Mapping[str, Mapping[str, Any]]
    made: tuple[str, ...]
    source: Sequence[Mapping[str, Any]]


def prepare(
    name: str,
    *,
    source: Sequence[str] = (),
    output: str | Path | None = None,
    options: Options = DEFAULTS,
    progress: bool = False,
) -> Prepared:
    """Prepare a data set, or go on preparing it; where it is there already, compare its checksums.

    After a kill at any moment the same call goes on: pieces that are finished are not made again, and the folder ends
    with the same bytes.

    Args:
        name: of the recipe.
        source: files, folders or addresses of files to make it from, instead of the hub.
        output: the folder; by default that of the recipe's name in `cache_folder()`.
        options: what can be chosen.
        progress: whether to show progress bars.

    Raises:
        ConfigError: for an unknown recipe, a source that cannot be reached or is of another kind, a folder made from
            another source, a damaged file, and a folder that cannot be written.
        AgentGymError: if the disk is full.
    """
    recipe, folder = find_recipe(name), _folder(name, output)
    with writing(folder, "give another folder by --output"):
        return _prepare(recipe, folder, source, options, progress)


def _prepare(recipe: Recipe, folder: Path, source: Sequence[str], options: Options, progress: bool) -> Prepared:
    name, indexes = recipe.name, _index_pieces(recipe, options, NOTHING)
    folder.mkdir(parents=True, exist_ok=True)
    with files.locked(folder):
        there = record.read(folder, name)
        pieces = dict(there["pieces"]) if there else {}
        if there and _is_whole(folder, there) and _is_same(there["source"], source):
            # Not read again: files may be gone since, and only an index can be missing.
            origin, wanted = there["source"], indexes
        else:
            inputs = _inputs(recipe, source, folder, progress)
            origin, wanted = inputs.origin, _pieces(recipe, inputs, options)
            record.check_source(folder, name, origin)
            record.write_unfinished(folder, name, origin)
        made = []
        for piece in wanted:
            if not piece.done(folder):
                piece.make(folder, progress=progress)
                made.append(piece.path)
            if piece.path in made or piece.path not in pieces:
                pieces[piece.path] = record.describe(folder, piece)
        for path in sorted(pieces.keys() - set(made)):
            record.check(folder, path, pieces[path])
        record.write(folder, name, origin, pieces)
        shutil.rmtree(folder / record.DOWNLOADS, ignore_errors=True)
    chosen = {piece.path for piece in indexes}
    used = {path: piece for path, piece in pieces.items() if piece["argument"][0] != "retriever" or path in chosen}
    return Prepared(recipe, folder, used, tuple(made), origin)


def forecast(
    name: str, *, source: Sequence[str] = (), output: str | Path | None = None, options: Options = DEFAULTS
) -> tuple[Path, list[Forecast]]:
    """Say what `prepare` would fetch and write, without doing it.

    Returns:
        The folder, and a line for each data set or file. Local files are read, to count what is in them.

    Raises:
        ConfigError: as `prepare`.
    """
    recipe, folder = find_recipe(name), _folder(name, output)
    there = record.read(folder, name)
    if there and _is_whole(folder, there) and _is_same(there["source"], source):
        documents = there["pieces"].get(CORPUS, {}).get("rows")
        indexes = _index_pieces(recipe, options, replace(NOTHING, known_documents=documents))
        return folder, [line for piece in indexes if not piece.done(folder) for line in piece.forecast()]
    remote = [url for url in source if is_url(url)]
    if remote:
        unknown = Forecast("write", str(folder), None, "known when the files are there; they are deleted afterwards")
        return folder, [*(Forecast("fetch", url, size_of(url), "as its server says") for url in remote), unknown]
    if recipe.archive and not source:
        return folder, published(recipe.archive)
    paths = [Path(name).expanduser() for name in source]
    if recipe.archive:
        inputs = from_archives(recipe.archive, paths)
    elif recipe.built:
        inputs = from_built(recipe, recipe.built, paths)
    else:
        inputs = from_files(recipe, paths) if paths else from_hub(recipe)
    missing = [piece for piece in _pieces(recipe, inputs, options) if not piece.done(folder)]
    lines = [line for piece in missing for line in piece.forecast()]
    return folder, [*inputs.fetches, *lines] if missing else []


def find_recipe(name: str) -> Recipe:
    """Return the recipe of this name.

    Raises:
        ConfigError: if there is none.
    """
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}; known: {', '.join(RECIPES)}")
    return RECIPES[name]


def _folder(name: str, output: str | Path | None) -> Path:
    return (Path(output).expanduser() if output else cache_folder() / name).absolute()


def _index_pieces(recipe: Recipe, options: Options, inputs: Inputs) -> list[Piece]:
    """Make the pieces that are indexes: one, or none."""
    if options.index not in (None, *INDEXES):
        raise ConfigError(f"index is {options.index!r}; it must be one of {', '.join(INDEXES)}")
    if recipe.corpus is None:
        if options.index not in (None, "none"):
            raise ConfigError(f"{recipe.name} has nothing to search, so it has no index; leave out --index")
        return []
    if options.index == "none":
        return []
    if options.index in (None, BM25):
        return [BM25Piece(CorpusPiece(inputs))]
    return [DensePiece(CorpusPiece(inputs), str(options.index), options.encoder, options.device)]


def _inputs(recipe: Recipe, source: Sequence[str], folder: Path, progress: bool) -> Inputs:
    archive = recipe.archive
    if not source and archive is None and recipe.built is None:
        return from_hub(recipe)
    paths: list[Path] = []
    urls: dict[Path, str] = {}
    for name in source or ([archive.url] if archive else []):
        path = Path(name).expanduser()
        if is_url(name):
            # By its address: others may end in the same name. What the environment itself reads lies side by side.
            key = hashlib.sha256(("" if recipe.built else name).encode()).hexdigest()[:16]
            path = folder / record.DOWNLOADS / key / (Path(urlsplit(name).path).name or "download")
            if path in urls:
                raise ConfigError(f"{name} and {urls[path]} are one file, or have one name; give one of them by --from")
            try:
                fetch(name, path, progress=progress)
            except ConfigError as error:
                raise ConfigError("; ".join(filter(None, (str(error), recipe.without_download())))) from error
            urls[path] = name
        paths.append(path)
    if recipe.built:
        return from_built(recipe, recipe.built, paths, urls)
    return from_archives(archive, paths, urls) if archive else from_files(recipe, paths, urls)


def _is_whole(folder: Path, there: Mapping[str, Any]) -> bool:
    """Whether nothing was deleted, as one is told to do with what is damaged."""
    return all((folder / path).exists() for path in there["pieces"])


def _is_same(origin: Sequence[Mapping[str, Any]], source: Sequence[str]) -> bool:
    """Whether the source is the one that a folder was made from, as far as can be told without reading files."""
    return not source or sorted(source) == sorted(part.get("url", "") for part in origin)


def _pieces(recipe: Recipe, inputs: Inputs, options: Options) -> list[Piece]:
    tables: list[Piece] = [TablePiece(rows) for rows in inputs.rows]
    corpus: list[Piece] = [CorpusPiece(inputs)] if recipe.corpus is not None else []
    return [*tables, *corpus, *_index_pieces(recipe, options, inputs), *inputs.unpacked, *recipe.extra]
