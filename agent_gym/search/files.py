"""Files that are whole or not there: written under a temporary name, flushed to the disk, then renamed.

A reader compares sizes and checksums with a manifest, which is written last: without it, nothing counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file, about a second per gigabyte."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe(path: Path) -> dict[str, Any]:
    """Return what a manifest holds about a file: its size in bytes and its checksum."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def check(path: Path, described: Mapping[str, Any], cure: str, *, verify: bool = True) -> None:
    """Compare a file with what `describe` returned when it was written; without `verify` only its size."""
    if not path.is_file():
        raise ConfigError(f"{path} is missing; {cure}")
    size = path.stat().st_size
    if size != described.get("bytes"):
        raise ConfigError(f"{path} has {size} bytes and was written with {described.get('bytes')}; {cure}")
    if verify and sha256_of(path) != described.get("sha256"):
        raise ConfigError(f"{path} is damaged: its checksum is not the one it was written with; {cure}")


def flush(path: Path) -> None:
    """Bring a file, or the names in a folder, from memory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(source: Path, target: Path) -> None:
    """Rename what is complete to its final name, so that a power failure leaves the old state or the new one."""
    flush(source)
    os.replace(source, target)
    flush(target.parent)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a manifest in one go."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    replace(partial, path)


def read_manifest(path: Path, expected: Mapping[str, Any], keys: tuple[str, ...], cure: str) -> dict[str, Any]:
    """Read a manifest that has the `expected` entries, for example its kind and version, and further `keys`."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; {cure}") from error
    if not isinstance(manifest, dict):
        raise ConfigError(f"{path} must hold a JSON object; {cure}")
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
