"""Local files as the source of a recipe: recognised by the columns of their first row, and their split by the name.

So a folder can be given as it was downloaded, and a file under any name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.prepare.inputs import NO_SPLIT, Inputs, Rows
from agent_gym.prepare.recipe import Forecast, Hub, Recipe, Table
from agent_gym.search import files
from agent_gym.search.sources import SUFFIXES, existing, read_documents, read_rows

_SPLITS = {"train": "train", "dev": "validation", "val": "validation", "validation": "validation", "test": "test"}
_SHARD = re.compile(r"-\d+-of-\d+")  # as the hub names the parts of a large split

# A table's folder and a split, to the table and the files of it.
_Found = dict[tuple[str, str], tuple[Table, list[Path]]]


def from_files(recipe: Recipe, paths: Sequence[Path], urls: Mapping[Path, str] | None = None) -> Inputs:
    """Take local files, and those of local folders.

    Args:
        recipe: says what they can be.
        paths: files and folders.
        urls: from where files were downloaded, for the manifest.

    Raises:
        ConfigError: if one is not there, or it cannot be told what it is.
    """
    found, corpora = _recognise(recipe, paths)
    _check(recipe, found, corpora, paths, urls or {})
    used = [path for _, group in found.values() for path in group] + corpora
    rows = [_rows(table, split, group) for (_, split), (table, group) in found.items()]
    return Inputs(
        origin=[_origin(path, (urls or {}).get(path)) for path in used],
        rows=tuple(rows),
        documents=read_documents(corpora[0]) if corpora else None,
        known_documents=None,
        fetches=tuple(Forecast("read", str(path), path.stat().st_size, "") for path in used),
    )


def _recognise(recipe: Recipe, paths: Sequence[Path]) -> tuple[_Found, list[Path]]:
    """Tell what each file is; in an order that does not depend on names, because it becomes that of the corpus."""
    found: _Found = {}
    corpora: list[Path] = []
    for path, asked_for in _expand(paths):
        words = re.split(r"[-_.]", path.name.lower())
        split = next((_SPLITS[word] for word in words if word in _SPLITS), NO_SPLIT)
        columns = _columns(path, optional=not asked_for and split == NO_SPLIT)
        tables = [table for table in recipe.tables if any(columns.issuperset(form) for form in table.forms)]
        if isinstance(recipe.corpus, Hub) and columns.issuperset(("_id", "text")) and not tables:
            corpora.append(path)
        elif tables and (asked_for or not set(tables[0].pass_over).intersection(words)):
            found.setdefault((tables[0].folder, split), (tables[0], []))[1].append(path)
        elif asked_for:
            has = f"it has the columns {', '.join(sorted(columns))}" if columns else "it has no rows"
            expected = "; or ".join(recipe.accepted())
            raise ConfigError(f"{path} is nothing that {recipe.name} is made of: {has}; expected {expected}")
    order = [(table.folder, split) for table in recipe.tables for split in (*_SPLITS.values(), NO_SPLIT)]
    return {key: found[key] for key in order if key in found}, corpora


def _expand(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Give the files, and those in the folders, each with whether it was asked for by name."""
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.is_file() and file.name.endswith(SUFFIXES))
            yield from ((file, False) for file in inside)
        else:
            yield existing(path), True


def _columns(path: Path, *, optional: bool) -> set[str]:
    """Return the columns of the first row; none of a file that may be anything, such as a list of licences."""
    try:
        return set(next(read_rows(path), ("", {}))[1])
    except ConfigError:
        if optional:
            return set()
        raise


def _check(recipe: Recipe, found: _Found, corpora: list[Path], paths: Sequence[Path], urls: Mapping[Path, str]) -> None:
    if not found:
        where, expected = ", ".join(map(str, paths)), "; or ".join(recipe.accepted())
        raise ConfigError(f"{where} holds nothing that {recipe.name} is made of; expected {expected}")
    for (folder, split), (_, group) in found.items():
        names = ", ".join(urls.get(path, str(path)) for path in group)
        if len({path.resolve() for path in group}) < len(group):
            raise ConfigError(f"{names}: a file is given twice, and its rows would be, too")
        if len(group) > 1 and not all(_SHARD.search(path.name) for path in group):
            raise ConfigError(f"{names} would be the same split ({split}); give one of them by --from")
        if split == NO_SPLIT and any(other != split for kind, other in found if kind == folder):
            raise ConfigError(f"cannot tell which split {group[0]} is; its name must hold train, validation or test")
    if isinstance(recipe.corpus, Hub) and len(corpora) != 1:
        got = ", ".join(map(str, corpora)) or "none"
        raise ConfigError(f"{recipe.name} needs one file of documents (columns _id, title and text), and got {got}")


def _rows(table: Table, split: str, group: list[Path]) -> Rows:
    size = sum(path.stat().st_size for path in group)
    return Rows(table, split, lambda: chain.from_iterable(map(read_rows, group)), size)


def _origin(path: Path, url: str | None) -> dict[str, Any]:
    # The name and not the path: the same file elsewhere is the same source.
    return {"url": url} if url else {"file": path.name, **files.describe(path)}
