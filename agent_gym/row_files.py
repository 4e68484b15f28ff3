"""Files of rows, each row with its place: JSON lines, JSON, CSV, TSV, Parquet and Arrow, also compressed by gzip.

Rows are read as a stream, since a file can be larger than the memory; a JSON file is one where it holds a list. A file
may come from anybody: each of its faults is a `ConfigError` that names the file and, where there is one, the line.
row_forms.py decides the meaning of a column, row_splits.py the split of a file.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import ijson

from agent_gym.errors import ConfigError, quoted, require
from agent_gym.untrusted import lines_of, open_regular

Row = Mapping[str, Any]
Placed = Iterator[tuple[str, Any]]
LISTS = ("data", "rows", "examples", "instances", "questions", "problems", "items", "records", "samples")
"""The keys under which a JSON object may hold its list of rows, in small letters."""
_STREAMED = 1 << 26  # bytes: ijson is some times slower than json, and needs no memory for the whole
_LARGEST = 1 << 30  # bytes of a file that is read whole: a small compressed one may unpack to more than the memory
_DEEPEST = 64  # levels of lists and objects in a row
_TOO_DEEP = f"it is nested more than {_DEEPEST} levels deep"
_LONGEST_CELL = 1 << 27  # characters of a cell of a CSV file
_ASKED = ("question", "problem", "prompt", "query", "instruction", "input")
_SEPARATORS = ("\t", ",", ";", "|")
_PER_LINE = "a file with a row per line ends in .jsonl"


def suffix_of(name: str) -> str:
    """Return the suffix of `SUFFIXES` that a file's name ends in, in small letters; "" for another name."""
    name = name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


class Broken(NamedTuple):
    """A row that cannot be read, in its place."""

    reason: str


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Read the rows of a file with their places, such as "train.jsonl, line 3".

    Raises:
        ConfigError: for a row that is broken or no object, and for a file that cannot be read.
    """
    for place, row in read_with_broken(path):
        if isinstance(row, Broken):
            raise ConfigError(f"{place}: {row.reason}")
        yield place, row


def read_with_broken(path: Path) -> Iterator[tuple[str, Row | Broken]]:
    """Read as `read_rows`, with a `Broken` where a row is, so that the caller can count them.

    Raises:
        ConfigError: for a file that cannot be read.
    """
    reader = _READERS[suffix_of(path.name).removesuffix(".gz")]
    place, name = "", str(path)
    try:
        open_regular(path).close()  # a pipe would wait for its other end
        for place, row in reader(path):
            if type(row) is not dict and not isinstance(row, Mapping | Broken):
                row = Broken(f"a row must be an object, and is {quoted(row)}")
            elif reader is _json and too_deep(row):
                row = Broken(_TOO_DEEP)
            yield f"{name}, {place}", row
    except ConfigError:
        raise
    except Exception as error:  # not UTF-8, not JSON, not gzip, or one of pyarrow's many classes
        after = f", after {place}" * bool(place)
        raise ConfigError(f"{path}{after}: cannot be read: {_reason(error)}") from error


def read_parts(path: Path) -> Mapping[str, Sequence[Any]] | None:
    """Return the lists of a JSON file that holds one per split, `{"train": [...], "test": [...]}`; None for others.

    `ConfigError` as by `read_rows`.
    """
    from agent_gym.row_splits import split_word  # which asks this module which files there are

    if suffix_of(path.name).removesuffix(".gz") != ".json" or not path.is_file():
        return None
    try:
        with _open(path) as file:
            if not _beginning(file).startswith(b"{") or path.stat().st_size > _STREAMED:
                return None
        whole = _whole(path)
    except (OSError, EOFError, ValueError):
        return None  # `read_rows` names the fault
    lists = {str(key): part for key, part in whole.items() if isinstance(part, list)} if isinstance(whole, dict) else {}
    return lists if lists and all(map(split_word, lists)) else None


def too_deep(value: Any) -> bool:
    """Whether lists and objects are nested so deeply that whatever copies or writes the value would fail."""
    level = [value] if isinstance(value, Mapping | list) else []
    for _ in range(_DEEPEST):
        inside = (one.values() if isinstance(one, Mapping) else one for one in level)
        level = [one for part in inside for one in part if isinstance(one, dict | list)]
        if not level:
            return False
    return True


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 ({error.reason} at byte {error.start:,}); save it as UTF-8"
    return " ".join(str(error).split())[:300] or type(error).__name__


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb")  # type: ignore[return-value]


def _lines(path: Path) -> Placed:
    number = 0
    with _open(path) as file:
        for part in lines_of(file):
            for line in part.splitlines():  # of bytes: at the ends of lines of any system, and nowhere else
                number += 1
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)  # some editors write a mark before the first row
                if line.strip():
                    yield f"line {number}", _of_line(line)


def _of_line(line: bytes) -> Any:
    try:
        row = json.loads(line.decode("utf-8"))
        # Few lines have so many brackets that the levels have to be counted.
        return Broken(_TOO_DEEP) if line.count(b"{") + line.count(b"[") > _DEEPEST and too_deep(row) else row
    except UnicodeDecodeError as error:
        return Broken(f"not valid JSON, since it is not UTF-8: {error}")
    except (ValueError, RecursionError) as error:
        return Broken(f"not valid JSON: {_reason(error)}")


def _beginning(file: IO[bytes]) -> bytes:
    return file.read(1 << 16).removeprefix(codecs.BOM_UTF8).lstrip()


def _json(path: Path) -> Placed:
    """Read a list of rows, such a list in an object, or rows line by line under a name that promises a list."""
    with _open(path) as file:
        beginning = _beginning(file)
    if beginning.startswith(b"["):
        large = path.stat().st_size > _STREAMED
        yield from _streamed(path) if large else _numbered(_list(_whole(path), path), path)
    elif not beginning:
        raise ConfigError(f"{path} holds no rows")
    elif _first_line_is_a_row(path):
        yield from _lines(path)
    else:
        yield from _numbered(_unwrapped(_whole(path), path), path)


def _numbered(rows: Sequence[Any], path: Path) -> Placed:
    return ((f"example {number}", row) for number, row in enumerate(rows))


def _streamed(path: Path) -> Placed:
    """Read the examples of a JSON list one by one: HotpotQA's have half a gigabyte, in one line."""
    with _open(path) as file:
        file.seek(len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0)
        number = 0
        try:
            for number, row in enumerate(ijson.items(file, "item", use_float=True), 1):
                yield f"example {number - 1}", row
        except ijson.JSONError as error:
            raise ConfigError(f"{path}, example {number}: not valid JSON: {_reason(error)}") from error


def _whole(path: Path) -> Any:
    with _open(path) as file:
        content = file.read(_LARGEST + 1).removeprefix(codecs.BOM_UTF8)
    if len(content) > _LARGEST:
        raise ConfigError(f"{path}: more than {_LARGEST:,} bytes of one JSON value; {_PER_LINE}")
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {_reason(error)}; {_PER_LINE}") from error


def _list(value: Any, path: Path) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{path} holds no list of rows; {_PER_LINE}")
    return value


def _first_line_is_a_row(path: Path) -> bool:
    """Whether a file of objects has one per line, and more than one line."""
    with _open(path) as file:
        filled = (line for line in lines_of(file) if line.strip())
        first, second = next(filled, b""), next(filled, b"")
    return bool(second) and isinstance(_of_line(first.removeprefix(codecs.BOM_UTF8)), dict)


def _unwrapped(value: Any, path: Path) -> list[Any]:
    """Find the list of rows in an object.

    SQuAD's articles become a row per question, rows of the hub's viewer lose their wrapping, a table by columns (as
    pandas and `datasets` write it) and one of names and lists become rows.
    """
    named = {str(key).lower(): one for key, one in value.items()} if isinstance(value, dict) else {}
    found = [one for key, one in named.items() if key in LISTS and isinstance(one, list)]
    if len(found) == 1:
        rows = found[0]
        if isinstance(heads := named.get("columns"), list) and all(isinstance(row, list) for row in rows):
            return [dict(zip(map(str, heads), row, strict=False)) for row in rows]
        if rows and all(isinstance(row, dict) and {"row", "row_idx"} <= row.keys() for row in rows):
            return [row["row"] for row in rows]
        return [*chain.from_iterable(map(_of_article, rows))]
    if _is_row(value):
        return [value]
    if named and all(isinstance(one, dict) for one in value.values()):  # rows by their ids, as PubMedQA and DROP
        rows = [{"id": str(key), **one} for key, one in value.items()]
        return [*chain.from_iterable(map(_of_article, rows))]
    columns = [one for one in named.values() if isinstance(one, list)]
    if len(columns) == len(named) > 1 and len({len(one) for one in columns}) == 1:
        return [dict(zip(value, cells, strict=True)) for cells in zip(*value.values(), strict=True)]
    holds = f"an object with {', '.join(str(key)[:40] for key in [*value][:8])}" if named else quoted(value)
    known = ", ".join(LISTS)
    raise ConfigError(f"{path} holds no list of rows but {holds}; {_PER_LINE}, a list may be under one of {known}")


def _is_row(value: Any) -> bool:
    """Whether an object is one row that asks something, as MATH has a file per problem."""
    asks = isinstance(value, dict) and any(str(key).lower() in _ASKED for key in value)
    return asks and not all(isinstance(one, list) for one in value.values())


def are_records(files: Sequence[Path]) -> bool:
    """Whether most of several JSON files hold one row each, and none holds more; some may be broken."""
    if len(files) < 2 or any(suffix_of(file.name).removesuffix(".gz") != ".json" for file in files):
        return False
    rows = 0
    for file in files:
        try:
            value = _whole(file) if file.stat().st_size < _STREAMED else []
            if _is_row(value):
                rows += 1
            elif isinstance(value, list) or _unwrapped(value, file):
                return False
        except (ConfigError, OSError, EOFError, ValueError):
            continue  # `read_rows` names the fault
    return rows > len(files) / 2


def _of_article(article: Any) -> list[Any]:
    """Return the questions of an article as SQuAD (arXiv:1606.05250) writes it, each with its context; else the row.

    DROP (arXiv:1903.00161) has the pairs of a passage next to it.
    """
    if isinstance(article, dict) and isinstance(asked := article.get("qa_pairs"), list) and "passage" in article:
        return [{"passage": article["passage"], **one} if isinstance(one, dict) else one for one in asked]
    if not (isinstance(article, dict) and isinstance(article.get("paragraphs"), list)):
        return [article]
    parts = article["paragraphs"]
    if not all(isinstance(part, dict) and isinstance(part.get("qas"), list) for part in parts):
        return [article]
    rows = []
    for part in parts:
        about = {"title": article["title"]} if "title" in article else {}
        for asked in part["qas"]:
            rows.append({**about, "context": part.get("context"), **asked} if isinstance(asked, dict) else asked)
    return rows


@contextmanager
def _texts(path: Path) -> Iterator[TextIOWrapper]:
    with _open(path) as file:
        mark = file.read(2)
        file.seek(0)
        # Spreadsheets save "Unicode text" as UTF-16.
        coding = "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
        yield TextIOWrapper(file, coding, newline="")


def _table(path: Path) -> Placed:
    """Read a table whose first line names the columns; a cell may hold line breaks in quotation marks."""
    csv.field_size_limit(_LONGEST_CELL)
    with _texts(path) as file:
        lines = lines_of(file)
        first = next(lines, "")
        by_name = suffix_of(path.name).startswith(".tsv")
        separator = "\t" if by_name else max(_SEPARATORS, key=lambda one: len(_cells(first, one)))
        file.seek(0)
        reader = csv.reader(lines, delimiter=separator, strict=True)
        heads = [head.strip() for head in next(reader, [])]
        if _is_multiple_choice(heads):  # as MMLU's own files, which name no columns
            file.seek(0)
            reader = csv.reader(lines, delimiter=separator, strict=True)
            heads = ["question", *(chr(ord("A") + n) for n in range(len(heads) - 2)), "answer"]
        if twice := [head for head in heads if head and heads.count(head) > 1]:
            raise ConfigError(f"{path}, line 1: two columns are called {twice[0][:40]!r}")
        begins = reader.line_num + 1
        for cells in reader:
            if any(map(str.strip, cells)):
                place = f"line {begins}"
                if len(cells) == len(heads):
                    yield place, {head: cell for head, cell in zip(heads, cells, strict=True) if head}
                else:
                    cure = "a text with separators or line breaks needs quotation marks around it"
                    yield place, Broken(f"it has {len(cells)} cells, and line 1 names {len(heads)} columns; {cure}")
            begins = reader.line_num + 1


def _is_multiple_choice(cells: Sequence[str]) -> bool:
    """Whether the first line of a table is a question, at least three choices, and the letter of one."""
    if len(cells) < 5 or not all(cells) or len(cells[-1]) != 1 or cells[0].lower() in _ASKED:
        return False
    return cells[0].count(" ") > 1 and "A" <= cells[-1] < chr(ord("A") + len(cells) - 2)


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _parquet(path: Path) -> Placed:
    require("pyarrow", "train")
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=1024))
        yield from ((f"row {number}", row) for number, row in enumerate(chain.from_iterable(batches)))


def _arrow(path: Path) -> Placed:
    """Read the files of the cache of `datasets` and of `save_to_disk`: Arrow's stream, or its file."""
    require("pyarrow", "train")
    import pyarrow

    with pyarrow.memory_map(str(path)) as source:
        try:
            batches: Any = pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:
            file = pyarrow.ipc.open_file(source)
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
        rows = chain.from_iterable(batch.to_pylist() for batch in batches)
        yield from ((f"row {number}", row) for number, row in enumerate(rows))


_READERS: dict[str, Callable[[Path], Placed]] = {
    **dict.fromkeys((".jsonl", ".ndjson"), _lines),
    ".json": _json,
    **dict.fromkeys((".csv", ".tsv"), _table),
    ".parquet": _parquet,
    ".arrow": _arrow,
}
SUFFIXES = (*_READERS, *(f"{name}.gz" for name in _READERS if name not in (".parquet", ".arrow")))
"""The suffixes of files that can be read; capitals are as good."""
