"""What a recipe reads this time: data sets of the hub here, local files in local.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from agent_gym.prepare.hub import hub_rows
from agent_gym.prepare.recipe import Forecast, Hub, Piece, Recipe, Row, Table
from agent_gym.search.base import Document
from agent_gym.search.sources import Source

NO_SPLIT = "all"  # of a file whose name says no split; environments take it for train


@dataclass(frozen=True)
class Rows:
    """The rows of one split of a table.

    Attributes:
        table: which table.
        split: which split.
        read: starts a pass over the rows, each with its place.
        size: bytes of the source.
        known: how many rows there are, if that is known without reading them.
    """

    table: Table
    split: str
    read: Callable[[], Iterator[tuple[str, Row]]]
    size: int
    known: int | None = None


@dataclass(frozen=True)
class Inputs:
    """Everything that a recipe reads.

    Attributes:
        origin: what it is, for the manifest.
        rows: of all splits of all tables.
        documents: what is searched, where that is not the paragraphs of the rows.
        known_documents: how many these are, if that is known without reading them.
        fetches: what will be downloaded or read.
        unpacked: pieces that are files of an archive as they are.
    """

    origin: list[dict[str, Any]]
    rows: tuple[Rows, ...]
    documents: Source | None
    known_documents: int | None
    fetches: tuple[Forecast, ...]
    unpacked: tuple[Piece, ...] = ()


NOTHING = Inputs([], (), None, None, ())


def from_hub(recipe: Recipe) -> Inputs:
    """Take the data sets that the recipe names; nothing is loaded yet."""
    hubs = [table.hub for table in recipe.tables]
    rows = [_split(recipe, table, split) for table in recipe.tables for split in table.hub.rows]
    documents = known = None
    if isinstance(recipe.corpus, Hub):
        hubs.append(recipe.corpus)
        known = recipe.corpus.count
        documents = _documents(recipe.corpus, _cure(recipe, "; and with it ".join(recipe.accepted())))
    fetches = [Forecast("fetch", str(hub), hub.size, f"{hub.count:,} rows; {hub.size_from}") for hub in hubs]
    origin = [{"hub": hub.name, "config": hub.config, "revision": hub.revision} for hub in hubs]
    return Inputs(origin, tuple(rows), documents, known, tuple(fetches))


def _split(recipe: Recipe, table: Table, split: str) -> Rows:
    cure = _cure(recipe, table.local)
    size = round(table.hub.size * table.hub.rows[split] / table.hub.count)
    return Rows(table, split, lambda: hub_rows(table.hub, split, cure), size, table.hub.rows[split])


def _documents(hub: Hub, cure: str) -> Source:
    def read() -> Iterator[tuple[str, Document]]:
        for split in hub.rows:
            for place, row in hub_rows(hub, split, cure):
                yield place, Document(row["_id"], row["title"] or "", row["text"])

    return Source(read)


def _cure(recipe: Recipe, local: str) -> str:
    offers = [f"a local copy works: --from PATH, with {local}", recipe.without_download()]
    return "; ".join(filter(None, offers))
