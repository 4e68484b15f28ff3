"""Prepare a data set: make the pieces that are missing, and keep a manifest with the checksum of every file.

The manifest is written before the first piece, with the source, and after each; while pieces are missing it is marked
as unfinished. So a preparation that was killed is resumed, and not from another source. It holds neither a time nor a
path: the same source gives the same bytes.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_gym.data import cache_folder
from agent_gym.errors import ConfigError, writing
from agent_gym.prepare.pieces import Options, Piece, index_pieces, pieces_of
from agent_gym.prepare.recipes import RECIPES, Recipe
from agent_gym.prepare.sources import DOWNLOADS, NO_SPLIT, Forecast, download, files_in, find, is_url, source_names
from agent_gym.search import files

MANIFEST = "manifest.json"
_FORMAT = 1
_VECTORS = "vectors"  # of a dense index: they may be deleted, and are checked by the code that builds from them
_EVALUATED = ("test", "validation", "valid_unseen", "valid_seen", "train")  # the first one that there is
_MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
_DEFAULTS = Options()


@dataclass(frozen=True)
class Prepared:
    """A prepared folder."""

    recipe: Recipe
    folder: Path
    pieces: Mapping[str, Mapping[str, Any]]  # path to its entry in the manifest
    made: tuple[str, ...]  # the paths of new files
    source: Sequence[Mapping[str, Any]]  # its source


def prepare(
    name: str,
    *,
    source: Sequence[str] = (),
    output: str | Path | None = None,
    options: Options = _DEFAULTS,
    progress: bool = False,
) -> Prepared:
    """Prepare a data set, or resume preparing it; where it exists already, compare its checksums.

    After a kill at any moment the same call resumes: pieces that are finished are not made again, and the folder ends
    with the same bytes. The source is files, folders or addresses of files, instead of the hub; the output is a folder,
    by default that of the recipe's name in `cache_folder()`.

    Raises:
        ConfigError: for an unknown recipe, a source that cannot be reached or is of another kind, a folder made from
            another source, a damaged file, and a folder that cannot be written.
        AgentGymError: if the disk is full.
    """
    recipe, folder = _find(name, output)
    indexes = index_pieces(recipe, options)
    with writing(folder, "give another folder by --output"):
        folder.mkdir(parents=True, exist_ok=True)
        with files.locked(folder):
            there = _read(folder, name)
            if there and _is_finished(folder, there, source):
                # Not read again: files may be gone since, and only an index can be missing.
                origin, wanted = there["source"], indexes
            else:
                _tell(progress, f"{name}: fetching or reading the source")
                names = source or ([recipe.archive.url] if recipe.archive and recipe.archive.url else [])
                inputs = find(recipe, *download(recipe, names, folder, progress), options.rules)
                wanted = pieces_of(recipe, inputs, options)
                origin = [{**part, **options.reading} for part in inputs.origin]
                there = _check_source(folder, there, origin)
            manifest = {"kind": "prepared", "format": _FORMAT, "recipe": name, "source": list(origin)}
            described, made = _make(folder, manifest, wanted, there, progress)
            shutil.rmtree(folder / DOWNLOADS, ignore_errors=True)
    chosen = {piece.path for piece in indexes}
    used = {path: one for path, one in described.items() if one["argument"][0] != "retriever" or path in chosen}
    return Prepared(recipe, folder, used, tuple(made), origin)


def forecast(
    name: str, *, source: Sequence[str] = (), output: str | Path | None = None, options: Options = _DEFAULTS
) -> tuple[Path, list[Forecast]]:
    """Return the folder, and the plan of `prepare`: its fetches, reads and writes; nothing is done.

    `ConfigError` as by `prepare`, but for errors that show only when an address is fetched or a file read to its end.
    """
    recipe, folder = _find(name, output)
    there = _read(folder, name)
    reads: list[Forecast] = []
    if there and _is_finished(folder, there, source):
        pieces = index_pieces(recipe, options)
    elif any(map(is_url, source)):
        fetches = [Forecast("fetch" if is_url(one) else "read", one) for one in source]
        return folder, [*fetches, Forecast("write", str(folder), remark="what the files are made into")]
    else:
        inputs = find(recipe, [Path(one).expanduser() for one in source], {}, options.rules)
        reads, pieces = inputs.reads, pieces_of(recipe, inputs, options)
    writes = [Forecast("write", piece.path) for piece in pieces if not piece.done(folder)]
    return folder, [*reads, *writes] if writes else []


def _find(name: str, output: str | Path | None) -> tuple[Recipe, Path]:
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}; known: {', '.join(RECIPES)}")
    return RECIPES[name], (Path(output).expanduser() if output else cache_folder() / name).absolute()


def _tell(progress: bool, text: str) -> None:
    """Announce a stage that may take long, before it begins, to whoever watches: in a log the line is not wanted."""
    if progress and sys.stderr.isatty():
        print(f"agent-gym: {text}", file=sys.stderr, flush=True)


def _make(
    folder: Path, manifest: dict[str, Any], wanted: Sequence[Piece], there: Mapping[str, Any] | None, progress: bool
) -> tuple[dict[str, Any], list[str]]:
    """Make missing pieces, check existing ones, and return the manifest's entries about the pieces."""
    manifest["pieces"] = described = dict(there["pieces"]) if there else {}
    # An index that is added to a finished folder leaves it finished.
    unfinished = {"unfinished": True} if there is None or "unfinished" in there else {}
    files.write_json(folder / MANIFEST, manifest | unfinished)
    made = []
    for piece in wanted:
        if not piece.done(folder):
            _tell(progress, f"making {piece.path}" + (", about a minute" if piece.argument[0] == "model" else ""))
            piece.make(folder, progress)
            made.append(piece.path)
        if piece.path in made or piece.path not in described:
            path = folder / piece.path
            inside = files_in(path) if path.is_dir() else [path]
            kept = {file.relative_to(folder): file for file in inside}
            described[piece.path] = {
                "rows": piece.rows(folder),
                "argument": list(piece.argument),
                "config": dict(piece.config),
                "files": {
                    name.as_posix(): files.describe(file) for name, file in kept.items() if _VECTORS not in name.parts
                },
            }
            files.write_json(folder / MANIFEST, manifest | unfinished)
    for name in sorted(described.keys() - set(made)):
        again = "run the command that made it (with its --from) again; only this is made anew"
        for file, description in described[name]["files"].items():
            files.check(folder / file, description, f"delete {folder / name} and {again}")
    files.write_json(folder / MANIFEST, manifest)
    return described, made


def _read(folder: Path, recipe: str) -> dict[str, Any] | None:
    if not (folder / MANIFEST).is_file():
        return None
    cure = f"delete {folder}, or give another folder by --output"
    expected = {"kind": "prepared", "format": _FORMAT, "recipe": recipe}
    return files.read_manifest(folder / MANIFEST, expected, ("source", "pieces"), cure)


def _is_finished(folder: Path, there: Mapping[str, Any], source: Sequence[str]) -> bool:
    """Whether all was made, from this source as far as names show, and nothing was deleted since."""
    same = not source or sorted(source) == sorted(part.get("url", "") for part in there["source"])
    return same and "unfinished" not in there and all((folder / path).exists() for path in there["pieces"])


def _check_source(
    folder: Path, there: dict[str, Any] | None, origin: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the manifest if the folder is continued from the same source, and None if it holds nothing yet."""
    inside = [file.relative_to(folder) for file in files_in(folder)]
    if all(file.suffix == ".partial" or file.parts[0] in (MANIFEST, DOWNLOADS) for file in inside):
        return None  # a piece that was only begun binds nothing: the hub may just have been out of reach
    if there is None:
        raise ConfigError(f"{folder} holds files, and no manifest describes them; give another folder by --output")
    if there["source"] != list(origin):
        raise ConfigError(
            f"{folder} is made from {source_names(there['source'])}, and this would be from {source_names(origin)}, or "
            "from another state of it; give the same source (--from), another folder (--output), or delete it"
        )
    return there


# The lines that a user needs next.


def env_kwargs(prepared: Prepared) -> dict[str, Any]:
    """Return the arguments of the environment: paths, or lists of them where there are several of a kind."""
    paths: dict[str, list[str]] = {}
    for argument, path in dict.fromkeys(tuple(piece["argument"]) for piece in prepared.pieces.values()):
        paths.setdefault(argument, []).append(str(prepared.folder / path))
    kwargs: dict[str, Any] = {argument: some[0] if len(some) == 1 else some for argument, some in paths.items()}
    if prepared.recipe.releases and (level := prepared.recipe.releases.level) != "names":
        kwargs["level"] = level
    splits = _splits(prepared)
    if splits and "train" not in splits:  # else an environment begins with train
        kwargs["split"] = splits[0]
    return kwargs


def python_lines(prepared: Prepared) -> str:
    """Return the lines of Python that make the environment, or a trainer of the model."""
    if prepared.recipe.model:
        trainer = f'trainer = AgentGRPOTrainer("{_model(prepared)}", env="{prepared.recipe.env_id}")'
        return f"from agent_gym.trainers import AgentGRPOTrainer\n\n{trainer}"
    arguments = [f", {name}={json.dumps(value)}" for name, value in env_kwargs(prepared).items()]
    return f'import agent_gym, gymnasium as gym\n\nenv = gym.make("{prepared.recipe.env_id}"{"".join(arguments)})'


def shell_lines(prepared: Prepared) -> str:
    """Return the commands that play the first task in the terminal, or talk to the model, and that measure a model."""
    if prepared.recipe.model:
        words = f"{prepared.recipe.env_id} --model {shlex.quote(_model(prepared))}"
        return f"agent-gym chat {words}\nagent-gym eval {words} --episodes 20"
    kwargs = shlex.quote(json.dumps(env_kwargs(prepared), ensure_ascii=False))
    where = f"--split {(_splits(prepared) or _EVALUATED)[0]} --env_kwargs {kwargs}"
    env_id = prepared.recipe.env_id
    return f"agent-gym play {env_id} --index 0 {where}\nagent-gym eval {env_id} --model {_MODEL} {where}"


def _model(prepared: Prepared) -> str:
    """Return the name under which all commands find the model, or its folder where that is not the usual one."""
    name, (inside,) = prepared.recipe.name, prepared.pieces
    return name if prepared.folder == (cache_folder() / name).absolute() else str(prepared.folder / inside)


def _splits(prepared: Prepared) -> list[str]:
    """Return the splits that there are, by the names of files or folders; the one to evaluate on first."""
    if prepared.recipe.releases:
        made = {Path(path).parts[1] for path, piece in prepared.pieces.items() if piece["rows"]}
        return [split for split in _EVALUATED if split in made]
    files_made = [Path(name) for piece in prepared.pieces.values() for name in piece["files"]]
    names = {Path(part).stem for file in files_made for part in file.parts}
    return [split for split in _EVALUATED if split in names or split == "train" and NO_SPLIT in names]
