"""What is asked for: the goals of a catalogue in WebShop's order and splits.

A goal is a dict with upstream's keys: `asin` (the product it was made from), `instruction_text`, `attributes`,
`goal_options` (a list of values for people's goals, a dict for those of upstream's program), `price_upper`, and what
the reward compares of the product: `name`, `query`, `product_category`, and `nouns` if the catalogue says them.

Upstream shuffles all goals with the seed 233; the first 500 are its test split, the next 1,000 its dev split (here
"validation"), the rest is for training. The limits of price come from a generator that it does not seed, before that:
so the order is the same in every run and the limits are not. Here they follow from the id of the product.
"""

from __future__ import annotations

import itertools
import math
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from agent_gym.data import Row
from agent_gym.envs.webshop.product import Product

KINDS = ("human", "synthetic")
NO_LIMIT = 1_000_000
_SEED = 233
_BOUNDS = {"train": (1500, None), "validation": (500, 1500), "test": (0, 500)}
_STEP, _HIGHEST = 10.0, 990.0  # dollars; limits of price are among 10, 20, ..., 990


class GoalBuilder:
    """Collects which goals a catalogue has, in two numbers each: the product, and which of its goals."""

    def __init__(self) -> None:
        self._pairs = {kind: array("i") for kind in KINDS}
        self._products = 0

    def add(self, product: Product) -> None:
        """Take the goals of the next product."""
        for n, asked in enumerate(product.instructions):
            if asked["instruction_attributes"]:
                self._pairs["human"].extend((self._products, n))
        if product.instruction:
            for n in range(count_choices(product)):
                self._pairs["synthetic"].extend((self._products, n))
        self._products += 1

    def shuffled(self, kind: str) -> np.ndarray:
        """Return the goals of a kind in upstream's order, int32 of shape (goals, 2)."""
        pairs = np.array(self._pairs[kind], np.int32).reshape(-1, 2)
        # What a shuffle does depends on the length of the list alone, so that upstream's goals need not be made first.
        order = array("i", range(len(pairs)))
        random.Random(_SEED).shuffle(order)
        return pairs[np.frombuffer(order, np.int32)] if len(pairs) else pairs


class Goals(Sequence[Row]):
    """Goals of one split, made when they are asked for.

    Args:
        pairs: int32 of shape (goals, 2), see `GoalBuilder`.
        kind: "human" or "synthetic".
        product: returns the product at a position.
    """

    def __init__(self, pairs: np.ndarray, kind: str, product: Callable[[int], Product]) -> None:
        self._pairs, self._kind, self._product = pairs, kind, product

    def __len__(self) -> int:
        return len(self._pairs)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Goals: ...
    def __getitem__(self, index: int | slice) -> Row | Goals:
        """Make one goal, or take some of them."""
        if isinstance(index, slice):
            return Goals(self._pairs[index], self._kind, self._product)
        position, n = map(int, self._pairs[index])
        made = human_goal if self._kind == "human" else synthetic_goal
        return made(self._product(position), n)

    def __iter__(self) -> Iterator[Row]:
        return (self[i] for i in range(len(self)))

    def of(self, products: np.ndarray) -> Goals:
        """Take the goals of some products: bool of shape (products,)."""
        return Goals(self._pairs[products[self._pairs[:, 0]]], self._kind, self._product)

    def at(self, indices: Sequence[int]) -> Goals:
        """Take the goals at some indices."""
        return Goals(self._pairs[list(indices)], self._kind, self._product)


def splits(goals: Goals) -> dict[str, Goals]:
    """Cut goals into upstream's splits; those that would be empty are left out."""
    return {split: goals[slice(*bounds)] for split, bounds in _BOUNDS.items() if len(goals) > bounds[0]}


def human_goal(product: Product, n: int) -> Row:
    """Make a goal of what a person asked for."""
    asked = product.instructions[n]
    limit, text = price_limit(product, n)
    return {
        **_about(product),
        "instruction_text": asked["instruction"].strip(".") + text,
        "attributes": list(asked["instruction_attributes"]),
        "goal_options": list(asked["instruction_options"]),
        "price_upper": limit,
    }


def synthetic_goal(product: Product, n: int) -> Row:
    """Make a goal of the n-th combination of options; all of them have the same limit of price."""
    names = sorted(product.options)
    chosen = next(itertools.islice(itertools.product(*(product.options[name] for name in names)), n, None))
    options = dict(zip(names, chosen, strict=True))
    limit, text = price_limit(product, 0)
    listed = ", and ".join(f"{name}: {value}" for name, value in options.items())
    return {
        **_about(product),
        "instruction_text": product.instruction + (f" with {listed}" if listed else "") + text,
        "attributes": list(product.instruction_attributes),
        "goal_options": options,
        "price_upper": limit,
    }


def count_choices(product: Product) -> int:
    """Return how many combinations of options a product has; 1 if it has no options, 0 if one has no values."""
    return math.prod(len(values) for values in product.options.values())


def price_limit(product: Product, n: int) -> tuple[float, str]:
    """Draw a limit above the price, as upstream does: the larger of two of the next four multiples of ten.

    Returns:
        The limit, and how an instruction says it; nothing for products that cost more than there are limits for.
    """
    first = _STEP * (product.price // _STEP + 1)
    above = [first + _STEP * i for i in range(4) if first + _STEP * i <= _HIGHEST]
    if len(above) < 2:
        return NO_LIMIT, ""
    limit = max(random.Random(f"webshop/limit/{product.asin}/{n}").sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def _about(product: Product) -> dict[str, Any]:
    about = {
        "asin": product.asin,
        "category": product.category,
        "query": product.query,
        "name": product.title,
        "product_category": product.product_category,
    }
    return about if product.nouns is None else {**about, "nouns": list(product.nouns)}
