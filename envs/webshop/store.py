"""A shop: its products, its search engine, its goals; in memory, or as a folder that is built once.

A million products do not fit into the memory of every worker. In a folder they are compressed JSON in an SQLite file,
with the terms of the index; postings and goals are arrays that are mapped into memory, which processes share. A folder
is complete or not there: it is built under another name, and its manifest is written last.
"""

from __future__ import annotations

import functools
import json
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from tqdm import tqdm

from agent_gym.envs.webshop.index import Index, IndexBuilder
from agent_gym.envs.webshop.products import KINDS, GoalBuilder, Goals, Product
from agent_gym.errors import ConfigError
from agent_gym.search import files
from agent_gym.search.base import ForkSafe

MANIFEST = "shop.json"
_EXPECTED = {"kind": "webshop", "format": 2}
_PRODUCTS = "products.sqlite"
_ARRAYS = ("start", "document", "divisor", "weight", "rank")
_KEPT = 4096  # products in memory
RESULTS = 50  # products that a search finds at most
_REMEMBERED = 20_000  # searches
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_TABLES = """
create table product (position integer primary key, asin text not null, body blob not null);
create table term (term text primary key, number integer not null) without rowid;
"""


class Shop(ForkSafe):
    """The shop of an environment: products, a search engine over their positions, the pairs of `GoalBuilder`."""

    def __init__(self, catalogue: _InMemory | StoredProducts, index: Index, pairs: Mapping[str, np.ndarray]) -> None:
        self.catalogue, self.index, self._pairs = catalogue, index, pairs
        super().__init__()

    def renew(self) -> None:
        def search(query: str) -> tuple[str, ...]:
            return tuple(self.catalogue.product(position).asin for position in self.index.search(query, RESULTS))

        self.search = functools.lru_cache(_REMEMBERED)(search)

    def goals(self, kind: str) -> Goals:
        """Return the goals of a kind, "human" or "synthetic", in upstream's order."""
        return Goals(self._pairs[kind], kind, self.catalogue.product)

    def product(self, asin: str) -> Product:
        """Return a product; `KeyError` if the shop does not have it."""
        found = self.catalogue.find(asin)
        if found is None:
            raise KeyError(asin)
        return found


class _InMemory:
    def __init__(self, products: Sequence[Product]) -> None:
        self._products = products
        self._by_id = {product.asin: product for product in products}

    def product(self, position: int) -> Product:
        return self._products[position]

    def find(self, asin: str) -> Product | None:
        return self._by_id.get(asin)


def open_shop(products: Iterable[Product]) -> Shop:
    """Make a shop of some thousand products in memory."""
    held, index, goals = [], IndexBuilder(), GoalBuilder()
    for product in products:
        held.append(product)
        index.add(product.asin, product.searched)
        goals.add(product)
    arrays = index.finish()
    return Shop(_InMemory(held), Index(index.vocabulary.get, arrays), {kind: goals.shuffled(kind) for kind in KINDS})


def write_shop(products: Iterable[Product], folder: str | Path, *, progress: bool = False) -> Path:
    """Build a shop in a folder, which `data=` takes; the rest of an interrupted build is replaced.

    `ConfigError` if the folder holds something already, or the products are missing.
    """
    index, goals = IndexBuilder(), GoalBuilder()
    with files.new_folder(folder, MANIFEST) as (partial, about):
        with closing(sqlite3.connect(partial / _PRODUCTS)) as database, database:
            database.executescript(_TABLES)
            count = 0
            for product in tqdm(products, "products", unit="", disable=not progress):
                body = zlib.compress(_ENCODER.encode(vars(product)).encode(), 1)
                database.execute("insert into product values (?, ?, ?)", (count, product.asin, body))
                index.add(product.asin, product.searched)
                goals.add(product)
                count += 1
            if not count:
                raise ConfigError("a shop needs at least one product, and there are none")
            database.execute("create unique index product_by_asin on product (asin)")
            index.finish(lambda name, size, dtype: open_memmap(partial / f"{name}.npy", "w+", dtype, (size,)))
            database.executemany("insert into term values (?, ?)", sorted(index.vocabulary.items()))
        pairs = {kind: goals.shuffled(kind) for kind in KINDS}
        for kind, array in pairs.items():
            np.save(partial / f"{kind}.npy", array)
        about |= {**_EXPECTED, "products": count, **{kind: len(array) for kind, array in pairs.items()}}
    return Path(folder).expanduser()


def open_stored(folder: Path) -> Shop:
    """Open a shop that `write_shop` built; `ConfigError` if a file has another size, or the shop another format."""
    files.open_folder(folder, MANIFEST, _EXPECTED, verify=False)
    products = StoredProducts(folder / _PRODUCTS)
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    pairs = {kind: np.load(folder / f"{kind}.npy", mmap_mode="r") for kind in KINDS}
    return Shop(products, Index(products.term, arrays), pairs)


class StoredProducts(ForkSafe):
    """The products and terms of a folder, in an SQLite file that is only read.

    Each process has its own connection, and its threads take turns. Products that were looked at last stay in memory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        super().__init__()

    def renew(self) -> None:
        address = f"{self._path.as_uri()}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        self._lock = threading.Lock()
        self._read = functools.lru_cache(_KEPT)(self._product)

    def product(self, position: int) -> Product:
        found = self._read("position", int(position))
        assert found is not None
        return found

    def find(self, asin: str) -> Product | None:
        return self._read("asin", asin)

    def term(self, term: str) -> int | None:
        """Return the number of a term of the index, None if it has none."""
        row = self._row("select number from term where term = ?", term)
        return None if row is None else row[0]

    def _product(self, column: str, value: Any) -> Product | None:
        row = self._row(f"select body from product where {column} = ?", value)
        return None if row is None else Product.from_dict(json.loads(zlib.decompress(row[0])))

    def _row(self, query: str, value: Any) -> Any:
        with self._lock:
            return self._connection.execute(query, (value,)).fetchone()
