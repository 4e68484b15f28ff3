"""Rows into a parquet file: checked one by one, written in groups, so that memory does not grow with the data set.

The shape of a column is "text", "number", "flag", any of them with "?" where it may be missing, a list `[shape]`, or
fields `{name: shape}`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from agent_gym.errors import ConfigError, require
from agent_gym.prepare.recipe import Row, Table
from agent_gym.search import files

ROWS_AT_ONCE = 1_000  # of HotpotQA six megabytes

_TYPES = {"text": str, "number": int, "flag": bool}


def write_table(path: Path, table: Table, rows: Iterable[tuple[str, Row]], *, progress: bool = False) -> None:
    """Write rows to a file, which appears under its name when it is complete.

    Args:
        path: the file.
        table: how to read the rows, and what the file holds.
        rows: source rows with their places, such as "train.jsonl, line 3".
        progress: whether to show a progress bar.

    Raises:
        ConfigError: with the place, for a row of another kind; and if there are no rows.
    """
    require("pyarrow", "train")
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([(name, _arrow(shape)) for name, shape in table.columns.items()])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    rows = iter(rows)
    first = list(islice(rows, 1))  # where the source cannot be reached, no bar stands before the message
    bar = tqdm(chain(first, rows), desc=path.stem, unit=" rows", disable=not progress)
    converted = distinct(converted_rows(table, bar), table.distinct)
    count = 0
    with pyarrow.parquet.ParquetWriter(partial, schema) as writer:
        while group := list(islice(converted, ROWS_AT_ONCE)):
            writer.write_table(pyarrow.Table.from_pylist(group, schema))
            count += len(group)
    if not count:
        partial.unlink()
        raise ConfigError(f"there are no rows for {path.name}; check the source")
    files.replace(partial, path)


def count_rows(path: Path) -> int:
    """Count the rows of a parquet file."""
    require("pyarrow", "train")
    import pyarrow.parquet

    return pyarrow.parquet.read_metadata(path).num_rows


def converted_rows(table: Table, rows: Iterable[tuple[str, Row]]) -> Iterator[dict[str, Any]]:
    """Bring rows into the columns of a table.

    Raises:
        ConfigError: with the place, for a row of another kind.
    """
    for place, row in rows:
        try:
            yield _fitted(table.convert(row), table.columns, "row")
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            problem = f"no column {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigError(f"{place}: {problem}; expected {table.local}") from error


def distinct(rows: Iterator[dict[str, Any]], column: str | None) -> Iterator[dict[str, Any]]:
    """Leave out rows whose value in a column occurred before, at 16 bytes per value."""
    seen: set[bytes] = set()
    for row in rows:
        if column is not None:
            key = hashlib.blake2b(row[column].encode(), digest_size=16).digest()
            if key in seen:
                continue
            seen.add(key)
        yield row


def _arrow(shape: Any) -> Any:
    import pyarrow

    if isinstance(shape, list):
        return pyarrow.list_(_arrow(shape[0]))
    if isinstance(shape, Mapping):
        return pyarrow.struct([(name, _arrow(inner)) for name, inner in shape.items()])
    types: dict[str, Callable[[], Any]] = {"text": pyarrow.string, "number": pyarrow.int64, "flag": pyarrow.bool_}
    return types[shape.removesuffix("?")]()


def _fitted(value: Any, shape: Any, where: str) -> Any:
    """Return a value that has the shape, with half surrogates, which have no UTF-8, as question marks."""
    if isinstance(shape, Mapping):
        if not isinstance(value, Mapping):
            raise TypeError(f"{where} is {str(value)[:50]!r}; it must be an object")
        return {name: _fitted(value[name], inner, name) for name, inner in shape.items()}
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise TypeError(f"{where} is {str(value)[:50]!r}; it must be a list")
        return [_fitted(item, shape[0], where) for item in value]
    if value is None and shape.endswith("?"):
        return None
    kind = shape.removesuffix("?")
    if type(value) is not _TYPES[kind]:  # not isinstance: True is an int
        raise TypeError(f"{where} is {str(value)[:50]!r}; it must be a {kind}")
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) and not value.isascii() else value
