"""Rows brought into the columns that the environments read, and written as parquet.

The shape of a column is "text", "number", "flag", any of them with "?" where it may be missing, a list `[shape]`, or
fields `{name: shape}`. Fields that a shape does not name are left out. A function per kind of row brings a row into its
columns; it raises KeyError, TypeError or ValueError for a row of another kind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

from agent_gym.errors import ConfigError, require
from agent_gym.row_choices import Survey
from agent_gym.row_columns import renamed
from agent_gym.row_files import Broken
from agent_gym.row_forms import aliases_of, normalize_columns, pairs, without_rivals
from agent_gym.row_golds import Fault, golds
from agent_gym.row_reader import Report, Rules, say_once
from agent_gym.search import files

if TYPE_CHECKING:
    from agent_gym.prepare.recipes import Table

Row = Mapping[str, Any]
ROWS_AT_ONCE = 1_000  # in memory; of HotpotQA six megabytes

# The columns of HotpotQA on the hub. The official files have pairs instead, of a text and a number or a list, and a
# column of parquet has one type.
MULTI_HOP = {
    "id": "text",
    "question": "text",
    "answer": "text",
    "type": "text?",
    "level": "text?",
    "supporting_facts": {"title": ["text"], "sent_id": ["number"]},
    "context": {"title": ["text"], "sentences": [["text"]]},
}

# MuSiQue's own; the environment turns its paragraphs into HotpotQA's form.
MUSIQUE = {
    "id": "text",
    "question": "text",
    "answer": "text",
    "answer_aliases": ["text"],
    "answerable": "flag",
    "paragraphs": [{"idx": "number", "title": "text", "paragraph_text": "text", "is_supporting": "flag"}],
    "question_decomposition": [{"question": "text", "answer": "text", "paragraph_support_idx": "number?"}],
}


def word_problem(row: Row) -> Row:
    """Read a row with a question and one answer, in any form of agent_gym/row_forms.py."""
    read, _ = normalize_columns(row, Survey())
    answer, *others = golds(read["answer"])
    if others:
        raise Fault("there are several answers, and GSM8K has one", answer)
    return {"question": read["question"], "answer": answer}


def math_problem(row: Row) -> Row:
    """Read a row with a problem and its answer, in any form of agent_gym/row_forms.py, such as DAPO-Math-17k's."""
    read, _ = normalize_columns(row, Survey())
    return {"problem": read["question"], "answer": golds(read["answer"])[0]}


def multi_hop(row: Row) -> Row:
    """Read a row of HotpotQA (arXiv:1809.09600) or 2WikiMultihopQA (arXiv:2011.01060), official or the hub's."""
    facts, context = _columns(row["supporting_facts"], "sent_id"), _columns(row["context"], "sentences")
    return {**row, "id": str(row.get("id") or row.get("_id") or ""), "supporting_facts": facts, "context": context}


def musique(row: Row) -> Row:
    """Read a row of MuSiQue (arXiv:2108.00573)."""
    aliases, steps = list(aliases_of(row)), row.get("question_decomposition") or []
    missing = {"answer_aliases": aliases, "answerable": row.get("answerable", True), "question_decomposition": steps}
    return {**row, "id": str(row.get("id", "")), **missing}


class RowKind(NamedTuple):
    """A kind of rows."""

    convert: Callable[[Row], Row]  # brings a row into the columns
    columns: Mapping[str, Any]  # their names and shapes


KINDS = {
    "word_problem": RowKind(word_problem, {"question": "text", "answer": "text"}),
    "math_problem": RowKind(math_problem, {"problem": "text", "answer": "text"}),
    "multi_hop": RowKind(multi_hop, MULTI_HOP),
    "musique": RowKind(musique, MUSIQUE),
}


def with_context(row: Row) -> Row:
    """Give a row of any kind the column `context`, from which a corpus takes its paragraphs."""
    if "paragraphs" not in row:
        return row
    return {"context": [[paragraph["title"], [paragraph["paragraph_text"]]] for paragraph in row["paragraphs"]]}


def _columns(value: Any, second: str) -> dict[str, list[Any]]:
    found = pairs(value, second)
    return {"title": [title for title, _ in found], second: [rest for _, rest in found]}


def write_table(
    path: Path, table: Table, rows: Iterable[tuple[str, Row | Broken]], rules: Rules, *, progress: bool = False
) -> None:
    """Write rows, given with places such as "train.jsonl, line 3", to a file that appears when it is complete.

    They are written in groups, so that memory does not grow with the data set. `rules` are the rules of the environment
    that reads the file: rows that it refuses are not written. A `ConfigError` groups the rows that cannot be used,
    unless `rules.skip_bad`, which counts them on stderr.
    """
    pyarrow, parquet = require("pyarrow", "train"), require("pyarrow.parquet", "train")
    schema = pyarrow.schema([(name, _arrow(shape)) for name, shape in KINDS[table.kind].columns.items()])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    # The delay: where the source cannot be reached, no bar comes before the message.
    bar = tqdm(rows, desc=path.stem, unit=" rows", disable=not progress, delay=1)
    report = Report()
    converted = _converted(table, bar, rules, report)
    count = 0
    with parquet.ParquetWriter(partial, schema) as writer:
        while group := list(islice(converted, ROWS_AT_ONCE)):
            writer.write_table(pyarrow.Table.from_pylist(group, schema))
            count += len(group)
    if report.faults and not (rules.skip_bad and count):
        partial.unlink()
        raise report.error()
    if not count:
        partial.unlink()
        raise ConfigError(f"there are no rows for {path.name}; check the source")
    if report.faults:
        say_once(f"{path.name}: {report.bad:,} of {report.rows:,} rows are left out: {report.reasons()}")
    if repeated := report.rows - report.bad - count:
        say_once(f"{path.name}: {repeated:,} rows are left out, since they repeat the {table.distinct} of another")
    files.replace(partial, path)


def _converted(
    table: Table, rows: Iterable[tuple[str, Row | Broken]], rules: Rules, report: Report
) -> Iterator[dict[str, Any]]:
    """Bring rows into the columns of a table, each value of its `distinct` column once, at 16 bytes per value."""
    seen: set[bytes] = set()
    kind = KINDS[table.kind]
    for place, row in rows:
        report.rows += 1
        try:
            if isinstance(row, Broken):
                raise Fault(row.reason)
            row = without_rivals(renamed(row, dict(rules.columns))) if rules.columns else row
            fitted = _fitted(kind.convert(row), kind.columns, "row")
            rules._replace(columns=()).read(fitted, Survey())
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            problem = f"no column {error}" if isinstance(error, KeyError) else str(error)
            told = f"{problem}; expected {table.local}"
            report.fault(place, error if isinstance(error, ConfigError) else ConfigError(told))
            continue
        if table.distinct is not None:
            key = hashlib.blake2b(fitted[table.distinct].encode(), digest_size=16).digest()
            if key in seen:
                continue
            seen.add(key)
        yield fitted


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
        optional = {name: None for name, inner in shape.items() if isinstance(inner, str) and inner.endswith("?")}
        found = {**optional, **value}
        return {name: _fitted(found[name], inner, name) for name, inner in shape.items()}
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise TypeError(f"{where} is {str(value)[:50]!r}; it must be a list")
        return [_fitted(item, shape[0], where) for item in value]
    if value is None and shape.endswith("?"):
        return None
    kind = shape.removesuffix("?")
    if type(value) is not {"text": str, "number": int, "flag": bool}[kind]:  # not isinstance: True is an int
        raise TypeError(f"{where} is {str(value)[:50]!r}; it must be a {kind}")
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) and not value.isascii() else value
