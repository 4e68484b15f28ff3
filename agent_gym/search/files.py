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
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from agent_gym.errors import ConfigError

_FORMAT = 1
_Read = TypeVar("_Read")


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


def read_json(path: Path, cure: str) -> dict[str, Any]:
    """Read a manifest of any kind."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; {cure}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object; {cure}")
    return value


def read_manifest(path: Path, expected: Mapping[str, Any], keys: tuple[str, ...], cure: str) -> dict[str, Any]:
    """Read a manifest that has the `expected` entries, for example its kind and version, and further `keys`."""
    manifest = read_json(path, cure)
    for key in (*expected, *keys):
        if key not in manifest:
            raise ConfigError(f"{path} has no {key!r}; {cure}")
    for key, value in expected.items():
        if manifest[key] != value:
            raise ConfigError(f"{path} was written for {key} {manifest[key]!r}, and this is {value!r}; {cure}")
    return manifest


def write_record(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Write a manifest that says what it is and in which format."""
    write_json(path, {"kind": kind, "format": _FORMAT, **content})


def read_record(path: Path, kind: str, shape: type[_Read]) -> _Read:
    """Read what `write_record` wrote."""
    cure = f"delete {path} and build the index again"
    content = read_json(path, cure)
    written, version = content.pop("kind", None), content.pop("format", None)
    if isinstance(version, int) and version > _FORMAT:
        raise ConfigError(
            f"{path} has format {version}, and this version of agent-gym reads up to {_FORMAT}; update agent-gym, or "
            "build the index again"
        )
    if (written, version) != (kind, _FORMAT):
        raise ConfigError(f"{path} is {written!r} of format {version!r}; expected {kind!r} of format {_FORMAT}; {cure}")
    try:
        # Strictly, so that no "3" passes for 3; as JSON again, since only there a dataclass may come as an object.
        return TypeAdapter(shape).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path} is damaged at {place!r}: {first['msg']}; {cure}") from error


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
