"""A product as the shop shows it, read from a row of WebShop's `items_shuffle.json`.

A goal is a person's wish for one.

Rows are changed as upstream (princeton-nlp/WebShop, `engine.load_products`) changes them: option values are stripped,
lower-cased and get " | " for "/", an empty price is 100 dollars, several prices are a range of the first two.

A goal is a dict with upstream's keys: `asin` (the product it was made from), `instruction_text`, `attributes`,
`goal_options` (a list of values for people's goals, a dict for goals of upstream's program), `price_upper`, and the
values that the reward compares of the product: `name`, `query`, `product_category`, and `nouns` if the catalogue has
them.

Values that upstream draws without a seed, prices within a range and limits of price, follows from the product's id
here.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent_gym.data import Row
from agent_gym.errors import ConfigError

NO_PRICE = 100.0  # dollars, of products that have none
KINDS = ("human", "synthetic")
NO_LIMIT = 1_000_000
_SEED = 233  # upstream's
_STEP, _HIGHEST = 10.0, 990.0  # dollars; limits of price are among 10, 20, ..., 990
_LONGEST_ID = 10
_NEEDED = ("asin", "name", "full_description", "small_description", "product_category", "category", "query")


@dataclass(frozen=True)
class Product:
    """One product, as `read_product` makes it of a row."""

    asin: str  # its id, as on Amazon
    title: str
    description: str
    bullets: tuple[str, ...]  # its features
    prices: tuple[float, ...]  # dollars; two for a range
    options: Mapping[str, tuple[str, ...]]  # name of an option to its values, all lower-case
    category: str  # where it was found when the catalogue was collected, as is `query`, in lower case
    query: str
    product_category: str  # its place in the shop, levels between "›"
    attributes: tuple[str, ...]  # its properties, such as "machine wash"; instructions ask for some of these
    image: str = ""  # address of a picture
    # People's wishes, with `instruction`, `instruction_attributes` and `instruction_options`.
    instructions: tuple[Mapping[str, Any], ...] = ()
    instruction: str = ""  # the wish of upstream's program, without options and price; "" for nothing
    instruction_attributes: tuple[str, ...] = ()
    nouns: tuple[str, ...] | None = None  # of the title if the catalogue has them, None if a tagger has to find them

    @property
    def price_tag(self) -> str:
        return " to ".join(f"${price}" for price in self.prices[:2])

    @property
    def price(self) -> float:
        """The price that is paid; of a range, always the same one of it."""
        if len(self.prices) == 1:
            return self.prices[0]
        return random.Random(f"webshop/price/{self.asin}").uniform(*self.prices[:2])

    @property
    def searched(self) -> str:
        """Its text for a search: title, description, the first feature, and the options."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullets[0] if self.bullets else ""
        return f"{self.title} {self.description} {first} {options}".lower()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Product:
        """Undo `vars`, also where JSON made lists of the tuples."""
        made: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        made["options"] = {name: tuple(given) for name, given in values["options"].items()}
        return cls(**made)


def is_product(row: Any, place: str) -> bool:
    """Whether upstream takes a row, whose id may not be "nan" or longer than ten signs; `ConfigError` if it is none."""
    if not isinstance(row, Mapping) or not isinstance(row.get("asin"), str):
        raise ConfigError(f"{place}: must be an object with {', '.join(_NEEDED)}, and is {str(row)[:60]!r}")
    if missing := [name for name in _NEEDED if name not in row]:
        raise ConfigError(f"{place}: no {missing[0]!r}; a product has {', '.join(_NEEDED)}")
    return row["asin"] != "nan" and len(row["asin"]) <= _LONGEST_ID


def read_product(row: Mapping[str, Any], about: Mapping[str, Any], people: Any, place: str) -> Product:
    """Read a row; `ConfigError` if a field is of another type than upstream's."""
    try:
        bullets, nouns, pricing = row["small_description"], row.get("nouns"), row.get("pricing") or f"${NO_PRICE}"
        # "$12.99", or "$12.99$15.99" for a range.
        prices = tuple(float(re.sub(r"[^\d.]", "", part)) for part in pricing.split("$")[1:])
        if not prices:
            raise ValueError(f"pricing {pricing[:30]!r} has no dollars")
        options = {
            name.lower(): tuple(value["value"].strip().replace("/", " | ").lower() for value in values)
            for name, values in (row.get("customization_options") or {}).items()
            if values is not None
        }
        return Product(
            asin=row["asin"],
            title=str(row["name"]),
            description=str(row["full_description"]),
            bullets=tuple(map(str, bullets)) if isinstance(bullets, list) else (str(bullets),),
            prices=prices[:2],
            options=options,
            category=row["category"],
            query=row["query"].lower().strip(),
            product_category=row["product_category"],
            # Upstream's own default for a product that its attribute file does not know.
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


class GoalBuilder:
    """Collects which goals a catalogue has, in two numbers each: the product, and which of its goals."""

    def __init__(self) -> None:
        self._pairs = {kind: array("i") for kind in KINDS}
        self._products = 0

    def add(self, product: Product) -> None:
        asked = [n for n, request in enumerate(product.instructions) if request["instruction_attributes"]]
        # One for each combination of options: 1 without options, 0 if an option has no values.
        choices = math.prod(len(values) for values in product.options.values()) if product.instruction else 0
        for kind, numbers in (("human", asked), ("synthetic", range(choices))):
            for n in numbers:
                self._pairs[kind].extend((self._products, n))
        self._products += 1

    def shuffled(self, kind: str) -> np.ndarray:
        """Return the goals of a kind in upstream's order, int32 of shape (goals, 2)."""
        pairs = np.array(self._pairs[kind], np.int32).reshape(-1, 2)
        # The result of a shuffle depends on the length of the list alone, so that upstream's goals need not be made
        # first.
        order = array("i", range(len(pairs)))
        random.Random(_SEED).shuffle(order)
        return pairs[np.frombuffer(order, np.int32)] if len(pairs) else pairs


class Goals(Sequence[Row]):
    """Goals of a kind, made on demand: `pairs` are the pairs of `GoalBuilder`, `product` finds by position."""

    def __init__(self, pairs: np.ndarray, kind: str, product: Callable[[int], Product]) -> None:
        self.pairs, self._kind, self._product = pairs, kind, product

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: Any) -> Any:
        pairs = self.pairs[index]
        if pairs.ndim == 2:
            return Goals(pairs, self._kind, self._product)
        return make_goal(self._product(int(pairs[0])), self._kind, int(pairs[1]))


def make_goal(product: Product, kind: str, n: int) -> Row:
    """Make the n-th goal of a product: a person's wish, or a combination of options.

    All synthetic goals of a product have the same limit of price.
    """
    options: list[str] | dict[str, str]
    if kind == "human":
        request = product.instructions[n]
        limit, ending = price_limit(product, n)
        text, attributes = request["instruction"].strip("."), request["instruction_attributes"]
        options = list(request["instruction_options"])
    else:
        limit, ending = price_limit(product, 0)
        names = sorted(product.options)
        chosen = next(itertools.islice(itertools.product(*(product.options[name] for name in names)), n, None))
        options = dict(zip(names, chosen, strict=True))
        listed = ", and ".join(f"{name}: {value}" for name, value in options.items())
        text = product.instruction + (f" with {listed}" if listed else "")
        attributes = product.instruction_attributes
    return goal_of(product, text + ending, attributes, options, limit)


def goal_of(product: Product, text: str, attributes: Iterable[str], options: Any, limit: float) -> Row:
    """Return a goal, and with it the facts of its product that the reward compares."""
    return {
        "asin": product.asin,
        "category": product.category,
        "query": product.query,
        "name": product.title,
        "product_category": product.product_category,
        **({} if product.nouns is None else {"nouns": list(product.nouns)}),
        "instruction_text": text,
        "attributes": list(attributes),
        "goal_options": options,
        "price_upper": limit,
    }


def read_goal(row: Mapping[str, Any], product: Callable[[str], Product], place: str) -> Row:
    """Read a goal of Agent-R1's recipe, which `reward_model.ground_truth` has; `ConfigError` for another row.

    An option of people's goals has its place as its name there, and is a value alone here, as upstream.
    """
    try:
        asked = row["reward_model"]["ground_truth"]
        options: Any = {one["name"]: one["value"] for one in asked["goal_options"]}
        if isinstance(asked["attributes"], str) or len(options) < len(asked["goal_options"]):
            raise TypeError("attributes is a text and no list, or two goal_options have one name")
        options = list(options.values()) if all(map(str.isdecimal, options)) else options
        limit = NO_LIMIT if asked["price_upper"] is None else float(asked["price_upper"])
        return goal_of(product(asked["asin"]), asked["instruction"], asked["attributes"], options, limit)
    except (KeyError, TypeError, ValueError) as error:
        told = f"{place} is no goal: {type(error).__name__} {error}; reward_model.ground_truth has"
        fields = "asin (of a product of the shop), instruction, attributes, goal_options, price_upper"
        raise ConfigError(f"{told} {fields}") from error


def price_limit(product: Product, n: int) -> tuple[float, str]:
    """Draw a limit above the price, as upstream does: the larger of two of the next four multiples of ten.

    Returns it and the words for it in an instruction; none for products that cost more than there are limits for.
    """
    first = _STEP * (product.price // _STEP + 1)
    above = [first + _STEP * i for i in range(4) if first + _STEP * i <= _HIGHEST]
    if len(above) < 2:
        return NO_LIMIT, ""
    limit = max(random.Random(f"webshop/limit/{product.asin}/{n}").sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"
