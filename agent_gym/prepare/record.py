"""The manifest of a prepared folder: what is in it, from where, and the checksum of every file.

It is written last. Until then `unfinished.json` says what the folder is going to be, so that a preparation that was
killed is not gone on with from another source. Neither holds a time or a path: the same source gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.prepare.recipe import Piece
from agent_gym.search import files

MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"
DOWNLOADS = "downloads"  # until what was made of them is finished
_FORMAT = 1

# The vectors of a dense index may be deleted, and are checked by whoever builds from them.
_UNCHECKED = "vectors"


def read(folder: Path, recipe: str, name: str = MANIFEST) -> dict[str, Any] | None:
    """Read the manifest of a folder, None if there is none.

    Raises:
        ConfigError: if it is damaged, or of another recipe or format.
    """
    if not (folder / name).is_file():
        return None
    cure = f"delete {folder}, or give another folder by --output"
    expected = {"kind": "prepared", "format": _FORMAT, "recipe": recipe}
    keys = ("source", "pieces") if name == MANIFEST else ("source",)
    return files.read_manifest(folder / name, expected, keys, cure)


def check_source(folder: Path, recipe: str, source: Sequence[Mapping[str, Any]]) -> None:
    """Compare the source with the one that the folder was prepared from, or began to be.

    Raises:
        ConfigError: if it is another one, or the folder holds something else.
    """
    there = read(folder, recipe) or read(folder, recipe, UNFINISHED)
    if not _holds_something(folder):
        return  # what was only begun binds nobody: the hub may just have been out of reach
    if there is None:
        raise ConfigError(f"{folder} holds files, and none of them says what it is; give another folder by --output")
    if there["source"] != list(source):
        raise ConfigError(
            f"{folder} is made from {source_names(there['source'])}, and this would be from {source_names(source)}, or "
            "from another state of it; give the same source (--from), another folder (--output), or delete it"
        )


def _holds_something(folder: Path) -> bool:
    inside = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    return any(file.suffix != ".partial" and file.parts[0] not in (UNFINISHED, DOWNLOADS) for file in inside)


def write_unfinished(folder: Path, recipe: str, source: Sequence[Mapping[str, Any]]) -> None:
    """Say what the folder is going to be."""
    content = {"kind": "prepared", "format": _FORMAT, "recipe": recipe, "source": list(source)}
    files.write_json(folder / UNFINISHED, content)


def write(folder: Path, recipe: str, source: Sequence[Mapping[str, Any]], pieces: Mapping[str, Any]) -> None:
    """Write the manifest; after this, and not before, the folder is prepared."""
    content = {"kind": "prepared", "format": _FORMAT, "recipe": recipe, "source": list(source), "pieces": dict(pieces)}
    files.write_json(folder / MANIFEST, content)
    (folder / UNFINISHED).unlink(missing_ok=True)


def describe(folder: Path, piece: Piece) -> dict[str, Any]:
    """Return what the manifest holds about a piece."""
    path = folder / piece.path
    inside = sorted(path.rglob("*")) if path.is_dir() else [path]
    kept = [file for file in inside if file.is_file() and _UNCHECKED not in file.relative_to(folder).parts]
    return {
        "rows": piece.rows(folder),
        "argument": list(piece.argument),
        "config": dict(piece.config),
        "files": {file.relative_to(folder).as_posix(): files.describe(file) for file in kept},
    }


def check(folder: Path, path: str, described: Mapping[str, Any]) -> None:
    """Compare the files of a piece with what was written.

    Raises:
        ConfigError: that names the file and the cure.
    """
    cure = f"delete {folder / path} and run the command that made it (with its --from) again; only this is made anew"
    for name, file in described["files"].items():
        files.check(folder / name, file, cure)


def source_names(source: Sequence[Mapping[str, Any]]) -> str:
    """Name what something was made from."""
    return ", ".join(str(part.get("hub") or part.get("url") or part.get("file")) for part in source)
