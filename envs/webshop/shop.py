"""A shop: its products, its search engine, its goals. Built once, read by many.

A small catalogue is held in memory. A large one is a folder that `store.py` writes, of which only what is looked at is
read: `Shop` is the same for both, and safe to share between threads and processes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from agent_gym.envs.webshop.build_index import IndexBuilder
from agent_gym.envs.webshop.goals import KINDS, GoalBuilder, Goals
from agent_gym.envs.webshop.index import Index
from agent_gym.envs.webshop.product import Product
from agent_gym.shared import Shared

RESULTS = 50
"""Products that a search finds at most."""
_REMEMBERED = 20_000  # searches


class Catalogue(Protocol):
    """Products by position and by id."""

    def __len__(self) -> int:
        """How many products there are."""

    def product(self, position: int) -> Product:
        """Return the product at a position."""

    def find(self, asin: str) -> Product | None:
        """Return the product of an id, None if there is none."""


class Shop(Shared):
    """What an environment plays in.

    Args:
        catalogue: the products.
        index: the search engine, over the same positions.
        pairs: kind of goal to the goals of that kind, in upstream's order (goals.py).
    """

    live = ("search",)

    def __init__(self, catalogue: Catalogue, index: Index, pairs: Mapping[str, np.ndarray]) -> None:
        self.catalogue, self.index, self._pairs = catalogue, index, pairs
        super().__init__()

    def renew(self) -> None:
        """Make a memory of searches for this process."""
        self.search = functools.lru_cache(_REMEMBERED)(self._search)

    def goals(self, kind: str) -> Goals:
        """Return the goals of a kind, "human" or "synthetic", in upstream's order."""
        return Goals(self._pairs[kind], kind, self.catalogue.product)

    def product(self, asin: str) -> Product:
        """Return a product that the shop has.

        Raises:
            KeyError: if it has not.
        """
        found = self.catalogue.find(asin)
        if found is None:
            raise KeyError(asin)
        return found

    def _search(self, query: str) -> tuple[str, ...]:
        """Return the ids of the products that a search finds, the best first."""
        return tuple(self.catalogue.product(position).asin for position in self.index.search(query, RESULTS))


class ProductList:
    """A catalogue in memory."""

    def __init__(self, products: Sequence[Product]) -> None:
        self._products = products
        self._by_id = {product.asin: product for product in products}

    def __len__(self) -> int:
        return len(self._products)

    def product(self, position: int) -> Product:
        """Return the product at a position."""
        return self._products[position]

    def find(self, asin: str) -> Product | None:
        """Return the product of an id, None if there is none."""
        return self._by_id.get(asin)


def open_shop(products: Iterable[Product]) -> Shop:
    """Make a shop of some thousand products in memory."""
    held, index, goals = [], IndexBuilder(), GoalBuilder()
    for product in products:
        held.append(product)
        index.add(product.asin, product.searched)
        goals.add(product)
    arrays: dict[str, Any] = index.finish()
    return Shop(ProductList(held), Index(index.vocabulary, arrays), {kind: goals.shuffled(kind) for kind in KINDS})
