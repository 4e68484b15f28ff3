"""A product as the shop shows it, read from a row of WebShop's `items_shuffle.json`; and the goals, what is asked for.

What upstream (princeton-nlp/WebShop, `engine.load_products`) does to a row is done here too: option values are
stripped, lower-cased and get " | " for "/", an empty price is 100 dollars, several prices are a range of the first two.
Which price of its range a product has is drawn from Python's global generator there, and so differs from run to run;
here it follows from the product's id.

A goal is a dict with upstream's keys: `asin` (the product it was made from), `instruction_text`, `attributes`,
`goal_options` (a list of values for people's goals, a dict for those of upstream's program), `price_upper`, and what
the reward compares of the product: `name`, `query`, `product_category`, and `nouns` if the catalogue has them. Upstream
shuffles all goals with the seed 233; the first 500 are its test split, the next 1,000 its dev split (here
"validation"), the rest is for training. Its limits of price come from a generator without a seed; here they follow from
the id.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

import numpy as np

from agent_gym.data import Row
from agent_gym.errors import ConfigError

NO_PRICE = 100.0  # dollars, of products that have none
_LONGEST_ID = 10
_NEEDED = ("asin", "name", "full_description", "small_description", "product_category", "category", "query")


@dataclass(frozen=True, slots=True)
class Product:
    """One product.

    Attributes:
        asin: its id, as on Amazon.
        title, description: texts.
        bullets: its features.
        prices: dollars; two for a range.
        options: name of an option to its values, all lower-case.
        category, query: where the product was found when the catalogue was collected; `query` is lower-case.
        product_category: its place in the shop, levels between "›".
        attributes: what is true of it, such as "machine wash"; instructions ask for some of these.
        image: address of a picture, shown to people only.
        instructions: what people asked for, with `instruction`, `instruction_attributes` and `instruction_options`.
        instruction: what upstream's program would ask for, without options and price; "" for nothing.
        instruction_attributes: the attributes in it.
        nouns: the nouns of the title if the catalogue says them, None if a tagger has to.
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    prices: tuple[float, ...]
    options: Mapping[str, tuple[str, ...]]
    category: str
    query: str
    product_category: str
    attributes: tuple[str, ...]
    image: str = ""
    instructions: tuple[Mapping[str, Any], ...] = ()
    instruction: str = ""
    instruction_attributes: tuple[str, ...] = ()
    nouns: tuple[str, ...] | None = None

    @property
    def price_tag(self) -> str:
        """The price as pages print it."""
        return _tag(self.prices[:2])

    @property
    def price(self) -> float:
        """The price that is paid; of a range, always the same one of it."""
        if len(self.prices) == 1:
            return self.prices[0]
        return random.Random(f"webshop/price/{self.asin}").uniform(*self.prices[:2])

    @property
    def searched(self) -> str:
        """What a search sees of it: title, description, the first feature, and the options."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullets[0] if self.bullets else ""
        return f"{self.title} {self.description} {first} {options}".lower()

    def as_dict(self) -> dict[str, Any]:
        """Return its fields, for `from_dict`; JSON can hold them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Product:
        """Undo `as_dict`, also where JSON made lists of the tuples."""
        made: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        made["options"] = {name: tuple(given) for name, given in values["options"].items()}
        return cls(**made)


@functools.lru_cache(maxsize=4096)
def _tag(prices: tuple[float, ...]) -> str:
    return " to ".join(f"${price}" for price in prices)


def is_product(row: Any, place: str) -> bool:
    """Whether upstream takes a row; ids that are "nan" or longer than ten characters are left out.

    Raises:
        ConfigError: if it is no row of `items_shuffle.json`.
    """
    if not isinstance(row, Mapping) or not isinstance(row.get("asin"), str):
        raise ConfigError(f"{place}: must be an object with {', '.join(_NEEDED)}, and is {str(row)[:60]!r}")
    missing = [name for name in _NEEDED if name not in row]
    if missing:
        raise ConfigError(f"{place}: no {missing[0]!r}; a product has {', '.join(_NEEDED)}")
    return row["asin"] != "nan" and len(row["asin"]) <= _LONGEST_ID


def read_product(row: Mapping[str, Any], about: Mapping[str, Any], people: Any, place: str) -> Product:
    """Read a row.

    Raises:
        ConfigError: if a field is of another type than upstream's.
    """
    try:
        bullets = row["small_description"]
        nouns = row.get("nouns")
        return Product(
            asin=row["asin"],
            title=str(row["name"]),
            description=str(row["full_description"]),
            bullets=tuple(map(str, bullets)) if isinstance(bullets, list) else (str(bullets),),
            prices=_prices(row.get("pricing")),
            options=_options(row.get("customization_options")),
            category=row["category"],
            query=row["query"].lower().strip(),
            product_category=row["product_category"],
            # Upstream's own stand-in for a product that its attribute file does not know.
            attributes=tuple(about["attributes"]) if "attributes" in about else ("DUMMY_ATTR",),
            image=str(next(iter(row.get("images") or ()), "")),
            instructions=tuple(people),
            instruction=about.get("instruction") or "",
            instruction_attributes=tuple(about.get("instruction_attributes") or ()),
            nouns=None if nouns is None else tuple(nouns),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{place}: product {row['asin']!r} is not as WebShop's: {type(error).__name__} {error}"
        ) from error


def _prices(text: str | None) -> tuple[float, ...]:
    """Read "$12.99" or "$12.99$15.99"."""
    if not text:
        return (NO_PRICE,)
    prices = [float(re.sub(r"[^\d.]", "", part)) for part in text.split("$")[1:]]
    if not prices:
        raise ValueError(f"pricing {text[:30]!r} has no dollars")
    return tuple(prices[:2])


def _options(given: Any) -> dict[str, tuple[str, ...]]:
    options = {}
    for name, values in (given or {}).items():
        if values is not None:
            options[name.lower()] = tuple(value["value"].strip().replace("/", " | ").lower() for value in values)
    return options


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
