"""Rows of files, one after the other, each with the file and line it stands in: JSON lines, JSON lists, parquet.

`agent_gym.data` loads the tasks of an environment and holds them; a corpus can be larger than the memory.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from agent_gym.errors import ConfigError, require

Row = Mapping[str, Any]

# A JSON list is read in pieces of a megabyte. An example that has not ended after 64 million characters never will; the
# largest of HotpotQA have 80,000.
_CHUNK = 1 << 20
_MAX_EXAMPLE = 1 << 26


def existing(path: str | Path) -> Path:
    """Check that this is a file that can be read.

    Raises:
        ConfigError: if it is not there, or its name does not tell what it holds.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigError(f"no such file: {str(path)!r}")
    if not path.name.endswith(SUFFIXES):
        raise ConfigError(f"{path}: cannot tell what it holds; the name must end in {', '.join(SUFFIXES)}")
    return path


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Read the rows of a file, each with its place, for example "corpus.jsonl, line 3".

    Raises:
        ConfigError: with the place, where the file cannot be read or a row is no object.
    """
    reader = next(reader for suffix, reader in _READERS.items() if path.name.endswith(suffix))
    last = str(path)
    try:
        for place, row in reader(path):
            if not isinstance(row, Mapping):
                raise ConfigError(f"{place}: a row must be an object, and is {str(row)[:50]!r}")
            last = f"{path}, after {place.removeprefix(f'{path}, ')}"
            yield place, row
    except ConfigError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:  # ValueError: not UTF-8, or not parquet
        raise ConfigError(f"{last}: cannot be read: {error}") from error


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                place = f"{path}, line {number}"
                try:
                    yield place, json.loads(line)
                except ValueError as error:
                    raise ConfigError(f"{place}: not valid JSON: {error}") from error


def _list(path: Path) -> Iterator[tuple[str, Any]]:
    """Read the examples of a JSON list one by one: HotpotQA's have half a gigabyte, in one line."""
    decoder = json.JSONDecoder()
    with _open(path) as binary, io.TextIOWrapper(binary, encoding="utf-8-sig") as file:
        buffer = file.read(_CHUNK).lstrip()
        if not buffer.startswith("["):
            raise ConfigError(f"{path}: must hold a JSON list of examples")
        at, number = 1, 0
        while True:
            while buffer[at : at + 1] in " \t\r\n," and at < len(buffer):
                at += 1
            if buffer.startswith("]", at):
                return
            place = f"{path}, example {number}"
            try:
                row, at = decoder.raw_decode(buffer, at)
            except json.JSONDecodeError as error:
                # Not whole yet, or broken. Twice as much each time, or a long example would be read over and over.
                rest = buffer[at:]
                more = file.read(max(_CHUNK, len(rest)))
                if not more or len(rest) > _MAX_EXAMPLE:
                    raise ConfigError(f"{place}: not valid JSON: {error.msg}") from error
                buffer, at = rest + more, 0
                continue
            yield place, row
            number += 1


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    require("pyarrow", "train")
    import pyarrow.parquet

    number = 0
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                yield f"{path}, row {number}", row
                number += 1


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
    ".jsonl": _lines,
    ".jsonl.gz": _lines,
    ".json": _list,
    ".json.gz": _list,
    ".parquet": _parquet,
}
SUFFIXES = tuple(_READERS)
