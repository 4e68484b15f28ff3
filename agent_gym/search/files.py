"""Files that are whole or not there: written under a temporary name, flushed to the disk, then renamed.

A reader compares sizes and checksums with a manifest, which is written last: without it, nothing counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agent_gym.errors import ConfigError
from agent_gym.untrusted import Values, count, read_json


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file, about a second per gigabyte."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe(path: Path) -> dict[str, Any]:
    """Return the manifest's entry of a file: its size in bytes and its checksum."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def check(path: Path, described: Mapping[str, Any], cure: str, *, verify: bool = True) -> None:
    """Compare a file with the result of `describe` when it was written; without `verify` only its size."""
    if not path.is_file():
        raise ConfigError(f"{path} is missing; {cure}")
    size = path.stat().st_size
    if size != described.get("bytes"):
        raise ConfigError(f"{path} has {size} bytes and was written with {described.get('bytes')}; {cure}")
    if verify and sha256_of(path) != described.get("sha256"):
        raise ConfigError(f"{path} is damaged: its checksum is not the one it was written with; {cure}")


def array_of(path: Path, cure: str) -> np.ndarray:
    """Map an array of one dimension of whole numbers, without reading pickles."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"it holds an array of {array.dtype} of shape {array.shape}")
        return array
    except Exception as error:  # numpy parses a damaged head as Python and raises what its tokenizer raises
        raise ConfigError(f"{path} is damaged: {error}; {cure}") from error


def flush(path: Path) -> None:
    """Bring a file, or the names in a folder, from memory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(source: Path, target: Path) -> None:
    """Rename a complete file to its final name, so that a power failure leaves the old state or the new one."""
    flush(source)
    os.replace(source, target)
    flush(target.parent)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a manifest in one go."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    replace(partial, path)


@contextlib.contextmanager
def new_folder(folder: str | Path, manifest: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Make a folder that appears under its name when the block ends, with a manifest of its files.

    Gives the folder to write to, and a dict for other entries of the manifest. The rest of an interrupted build is
    replaced; `ConfigError` if the folder holds something already.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} holds something already; delete it, or give another folder")
    partial, about = folder.with_name(folder.name + ".partial"), dict[str, Any]()
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial, about
    written = sorted(partial.iterdir())
    for file in written:
        flush(file)
    write_json(partial / manifest, {**about, "files": {file.name: describe(file) for file in written}})
    replace(partial, folder)


def open_folder(folder: Path, manifest: str, expected: Mapping[str, Any], *, verify: bool = True) -> None:
    """Check the folder that `new_folder` made, see `read_manifest` and `check`."""
    cure = f"delete {folder} and build it again"
    for name, described in read_manifest(folder / manifest, expected, ("files",), cure)["files"].items():
        check(folder / name, described, cure, verify=verify)


def read_manifest(path: Path, expected: Mapping[str, Any], keys: tuple[str, ...], cure: str) -> dict[str, Any]:
    """Read a manifest that has the `expected` entries, for example its kind and version, and further `keys`."""
    try:
        manifest = dict(read_json(path, {"files?": Values({"bytes": count, "sha256": str})}))
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read: {error}; {cure}") from error
    for key in (*expected, *keys):
        if key not in manifest:
            raise ConfigError(f"{path} has no {key!r}; {cure}")
        if key in expected and manifest[key] != expected[key]:
            raise ConfigError(f"{path} was written for {key} {manifest[key]!r}, and this is {expected[key]!r}; {cure}")
    return manifest


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; the lock ends with the process, however that ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another process is writing to {folder}; wait for it, or give another folder") from error
        yield
    finally:
        os.close(handle)
