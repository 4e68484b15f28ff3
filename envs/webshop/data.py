"""Where a shop and its goals come from: the generator, WebShop's files, or a folder that was built of them."""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import ijson
import numpy as np

from agent_gym.data import Splits, load_splits
from agent_gym.envs.webshop.embedded import generate, generate_easy
from agent_gym.envs.webshop.products import KINDS, Product, is_product, read_goal, read_product
from agent_gym.envs.webshop.store import MANIFEST, Shop, open_shop, open_stored
from agent_gym.errors import ConfigError, only_embedded, whole_number

EMBEDDED, EASY = "embedded", "embedded-easy"
LADDER = {1: EASY, 2: "embedded-2", 3: EMBEDDED, 4: "embedded-4", 5: "embedded-5"}
"""Difficulty to the generated shop: an easy one, then more and more products that nearly match."""
_LARGE = 64 << 20  # bytes of a file of products that is not read anew in each process
# Upstream's splits of its shuffled goals; its dev split is "validation" here.
_BOUNDS = {"train": (1500, None), "validation": (500, 1500), "test": (0, 500)}
_GOAL: dict[str, Any] = {
    "instruction_text": str,
    "attributes": list,
    "goal_options": (list, Mapping),
    "price_upper": (int, float),
    "name": str,
    "query": str,
    "product_category": str,
}


def open_data(data: str, kind: str, difficulty: int | None = None) -> tuple[Splits, Shop]:
    """Return the goals of a kind, or of a file of rows, of a data source by split, and its shop; see `WebShopEnv`.

    `ConfigError` if there is nothing, or no goal of this kind, or if it is too large to be read without being built.
    """
    if kind not in KINDS:
        if not isinstance(kind, str) or not Path(kind).expanduser().exists():
            raise ConfigError(f"goals is {kind!r}; allowed: {', '.join(KINDS)}, or a file or folder of rows")
        shop = open_data(data, KINDS[0], difficulty)[1]
        return _row_goals(kind, shop), shop
    if difficulty is not None:
        only_embedded("difficulty", difficulty, data)
        data = LADDER[whole_number("difficulty", difficulty, 1, len(LADDER))]
    if data in LADDER.values():
        return _generated_goals(data, kind), _generated(data)[0]
    path = Path(data).expanduser()
    # The times of change are part of the keys, so that an edited file is read again.
    if (path / MANIFEST).is_file():
        shop = _stored(path.resolve(), (path / MANIFEST).stat().st_mtime_ns)
    else:
        paths = find_official(path)
        if paths[0].stat().st_size > _LARGE:
            cure = f"build its shop once, by agent-gym prepare webshop --from {paths[0]}"
            raise ConfigError(f"{paths[0]} is large: {cure}")
        shop = _official(paths, tuple(one.stat().st_mtime_ns for one in paths if one.is_file()))
    goals = shop.goals(kind)
    found = {split: goals[slice(*bounds)] for split, bounds in _BOUNDS.items() if len(goals) > bounds[0]}
    if not found:
        other = next(one for one in KINDS if one != kind)
        raise ConfigError(f"{data} has no {kind} goals; goals={other!r} takes the others")
    return found, shop


def _row_goals(file: str, shop: Shop) -> Splits:
    return {
        split: [read_goal(row, shop.product, f"{file}: row {at} of {split}") for at, row in enumerate(rows)]
        for split, rows in load_splits(file, columns=("reward_model",)).items()
    }


def check_goal(task: Any) -> None:
    """Check a goal that was handed in; `ConfigError`, which names the field, if it is none."""
    if not isinstance(task, Mapping):
        raise ConfigError(f"a goal must be an object with {', '.join(_GOAL)}, and is {str(task)[:50]!r}")
    for name, kind in _GOAL.items():
        if not isinstance(task.get(name), kind):
            raise ConfigError(f"{name} of the goal is {str(task.get(name))[:50]!r}; a goal has {', '.join(_GOAL)}")
    if not task["attributes"] or task["price_upper"] <= 0:
        raise ConfigError("a goal needs at least one attribute, and a price_upper above 0")


def find_official(data: Path) -> tuple[Path, Path, Path]:
    """Find the files of products, of their attributes and of people's instructions.

    In a folder the full set goes before the small one; a file of products has the others next to it. `ConfigError` if
    there are none.
    """
    folder, names = data.parent, [data.name]
    if data.is_dir():
        folder, names = data, ["items_shuffle.json", "items_shuffle_1000.json"]
    for name in names:
        size = name.removeprefix("items_shuffle").removesuffix(".json")
        if name.startswith("items_shuffle") and (folder / name).is_file():
            return folder / name, folder / f"items_ins_v2{size}.json", folder / "items_human_ins.json"
    raise ConfigError(
        f"data is {str(data)!r}; allowed: 'embedded', 'embedded-easy', a folder with items_shuffle.json, "
        "items_ins_v2.json (or both with _1000) and items_human_ins.json, that file of products, or what agent-gym "
        "prepare webshop made"
    )


def read_official(paths: tuple[Path, Path, Path]) -> Iterator[Product]:
    """Read products from the files of `find_official`; of several with one id, the first."""
    items, about_file, people_file = paths
    people = dict(entries(people_file)) if people_file.is_file() else {}
    # In a temporary file: the official one has a million entries, in another order than the products.
    with closing(sqlite3.connect("")) as about:
        about.execute("create table about (asin text primary key, body text) without rowid")
        rows = ((asin, json.dumps(value)) for asin, value in entries(about_file))
        about.executemany("insert or replace into about values (?, ?)", rows)
        seen: set[str] = set()
        for number, row in entries(items):
            place = f"{items}, product {number}"
            if is_product(row, place) and row["asin"] not in seen:
                seen.add(row["asin"])
                found = about.execute("select body from about where asin = ?", (row["asin"],)).fetchone()
                described = json.loads(found[0]) if found else {}
                yield read_product(row, described, people.get(row["asin"], ()), place)


def entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Give the entries of a file that holds one JSON list or object, each with its key; that of a list is its number.

    The memory does not grow with the file: the official ones have up to 5 GB. `ConfigError` if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            opening = file.read(1 << 16).lstrip()[:1]
            file.seek(0)
            if opening == b"{":
                yield from ijson.kvitems(file, "", use_float=True)
            elif opening == b"[":
                yield from ((str(n), row) for n, row in enumerate(ijson.items(file, "item", use_float=True)))
            else:
                raise ValueError("it holds no JSON list or object")
    except (OSError, ValueError, ijson.JSONError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


@functools.cache
def _generated(data: str) -> tuple[Shop, np.ndarray]:
    difficulty = next(difficulty for difficulty, name in LADDER.items() if name == data)
    made = list(generate_easy() if data == EASY else generate(difficulty=difficulty))
    return open_shop(one.product for one in made), np.array([one.split for one in made])


@functools.cache
def _generated_goals(data: str, kind: str) -> Splits:
    """The goals of each split; of several with one text the first alone, and rather in test than in train."""
    shop, split_of = _generated(data)
    seen: set[str] = set()
    found = {}
    for split in ("test", "validation", "train"):
        goals = shop.goals(kind)
        goals = goals[np.flatnonzero(split_of[goals.pairs[:, 0]] == split).tolist()]
        texts = [goal["instruction_text"] for goal in goals]
        new = [n for n, text in enumerate(texts) if text not in seen and texts.index(text) == n]
        seen.update(texts)
        found[split] = goals[new]
    return dict(reversed(found.items()))


@functools.lru_cache(maxsize=4)
def _official(paths: tuple[Path, Path, Path], _changed: tuple[int, ...]) -> Shop:
    return open_shop(read_official(paths))


@functools.lru_cache(maxsize=4)
def _stored(folder: Path, _changed: int) -> Shop:
    return open_stored(folder)
