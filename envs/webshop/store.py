"""A shop as a folder: built once, opened in a moment, read where it is looked at.

A million products do not fit into the memory of every worker. So they lie in an SQLite file, each as compressed JSON,
and so do the terms of the index; postings and goals are arrays that are mapped into memory, which processes share. A
shop is complete or not there: it is built under another name, and its manifest is written last.
"""

from __future__ import annotations

import functools
import json
import shutil
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from agent_gym.envs.webshop.build_index import IndexBuilder
from agent_gym.envs.webshop.goals import KINDS, GoalBuilder
from agent_gym.envs.webshop.index import Index
from agent_gym.envs.webshop.json_stream import entries
from agent_gym.envs.webshop.product import Product, is_product, read_product
from agent_gym.envs.webshop.shop import Shop
from agent_gym.errors import ConfigError
from agent_gym.search import files
from agent_gym.shared import Shared

MANIFEST = "shop.json"
_EXPECTED = {"kind": "webshop", "format": 2}
_PRODUCTS = "products.sqlite"
_ARRAYS = ("start", "document", "divisor", "weight", "rank")
_KEPT = 4096  # products in memory
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_TABLES = """
create table product (position integer primary key, asin text not null, body blob not null);
create table term (term text primary key, number integer not null) without rowid;
"""


def read_official(paths: tuple[Path, Path, Path]) -> Iterator[Product]:
    """Read products from WebShop's files, see `data.find_official`; of several with one id, the first.

    Raises:
        ConfigError: for a file that is missing or another one.
    """
    items, about_file, people_file = paths
    people = dict(entries(people_file)) if people_file.is_file() else {}
    with _Table(about_file) as about:
        seen: set[str] = set()
        for number, row in entries(items):
            place = f"{items}, product {number}"
            if is_product(row, place) and row["asin"] not in seen:
                seen.add(row["asin"])
                yield read_product(row, about.get(row["asin"]), people.get(row["asin"], ()), place)


def write_shop(products: Iterable[Product], folder: str | Path, *, progress: bool = False) -> Path:
    """Build a shop.

    Args:
        products: what it sells, for example from `read_official`.
        folder: where to; what is there of an interrupted build is replaced.
        progress: whether to show a progress bar.

    Returns:
        The folder; `data=` takes it.

    Raises:
        ConfigError: if the folder holds something already, or there are no products.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} holds something already; delete it, or give another folder")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    index, goals = IndexBuilder(), GoalBuilder()
    with sqlite3.connect(partial / _PRODUCTS) as database:
        database.executescript(_TABLES)
        count = 0
        for product in tqdm(products, "products", unit="", disable=not progress):
            database.execute("insert into product values (?, ?, ?)", (count, product.asin, _pack(product)))
            index.add(product.asin, product.searched)
            goals.add(product)
            count += 1
        if not count:
            raise ConfigError("a shop needs at least one product, and there are none")
        database.execute("create unique index product_by_asin on product (asin)")
        index.finish(functools.partial(_map_array, partial))
        database.executemany("insert into term values (?, ?)", sorted(index.vocabulary.items()))
    database.close()
    pairs = {kind: goals.shuffled(kind) for kind in KINDS}
    for kind, array in pairs.items():
        np.save(partial / f"{kind}.npy", array)
    written = sorted(partial.iterdir())
    for file in written:
        files.flush(file)
    described = {file.name: files.describe(file) for file in written}
    counts = {"products": count, **{kind: len(array) for kind, array in pairs.items()}}
    files.write_json(partial / MANIFEST, {**_EXPECTED, **counts, "files": described})
    if folder.exists():
        folder.rmdir()
    files.replace(partial, folder)
    return folder


def open_stored(folder: Path) -> Shop:
    """Open a shop that `write_shop` built; sizes of files are compared, not checksums.

    Raises:
        ConfigError: if it is damaged, or of another format.
    """
    cure = f"delete {folder} and build the shop again"
    manifest = files.read_manifest(folder / MANIFEST, _EXPECTED, ("files", "products"), cure)
    for name, described in manifest["files"].items():
        files.check(folder / name, described, cure, verify=False)
    database = _Database(folder / _PRODUCTS)
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    pairs = {kind: np.load(folder / f"{kind}.npy", mmap_mode="r") for kind in KINDS}
    return Shop(_Stored(database, manifest["products"]), Index(_Terms(database), arrays), pairs)


def _map_array(folder: Path, name: str, size: int, dtype: np.dtype) -> np.ndarray:
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=(size,))


def _pack(product: Product) -> bytes:
    return zlib.compress(_ENCODER.encode(product.as_dict()).encode(), 1)


def _unpack(body: bytes) -> Product:
    return Product.from_dict(json.loads(zlib.decompress(body)))


class _Database(Shared):
    """An SQLite file that is only read; each process has its own connection, and its threads take turns."""

    live = ("_connection", "_lock")

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        super().__init__()

    def renew(self) -> None:
        address = f"{self._path.as_uri()}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        self._lock = threading.Lock()

    def row(self, query: str, value: Any) -> Any:
        with self._lock:
            return self._connection.execute(query, (value,)).fetchone()


class _Stored(Shared):
    """The products of a folder; those that were looked at last stay in memory."""

    live = ("product", "find")

    def __init__(self, database: _Database, count: int) -> None:
        self._database, self._count = database, count
        super().__init__()

    def renew(self) -> None:
        self.product: Callable[[int], Product] = functools.lru_cache(_KEPT)(self._product)
        self.find: Callable[[str], Product | None] = functools.lru_cache(_KEPT)(self._find)

    def __len__(self) -> int:
        return self._count

    def _product(self, position: int) -> Product:
        return _unpack(self._database.row("select body from product where position = ?", int(position))[0])

    def _find(self, asin: str) -> Product | None:
        row = self._database.row("select body from product where asin = ?", asin)
        return None if row is None else _unpack(row[0])


class _Terms(Mapping[str, int]):
    """The vocabulary of a folder."""

    def __init__(self, database: _Database) -> None:
        self._database = database

    def __getitem__(self, term: str) -> int:
        row = self._database.row("select number from term where term = ?", term)
        if row is None:
            raise KeyError(term)
        return row[0]

    def __len__(self) -> int:
        return self._database.row("select count(*) from term where ?", True)[0]

    def __iter__(self) -> Iterator[str]:
        raise TypeError("the terms of a stored shop are looked up one by one")


class _Table:
    """The attributes of all products, in a temporary file: the official one has a million entries, in another order."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect("")
        self._database.execute("create table about (asin text primary key, body text) without rowid")
        rows = ((asin, json.dumps(value)) for asin, value in entries(file))
        self._database.executemany("insert or replace into about values (?, ?)", rows)

    def get(self, asin: str) -> Any:
        row = self._database.execute("select body from about where asin = ?", (asin,)).fetchone()
        return json.loads(row[0]) if row else {}

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *_: Any) -> None:
        self._database.close()
