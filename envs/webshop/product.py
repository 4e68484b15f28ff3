"""A product as the shop shows it, read from a row of WebShop's `items_shuffle.json`.

What upstream (princeton-nlp/WebShop, `engine.load_products`) does to a row is done here too: option values are
stripped, lower-cased and get " | " for "/", an empty price is 100 dollars, several prices are a range of the first two.
Which price of its range a product has is drawn from Python's global generator there, and so differs from run to run;
here it follows from the product's id.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

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
        made: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
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

    Args:
        row: of `items_shuffle.json`.
        about: what `items_ins_v2.json` says about the product.
        people: what `items_human_ins.json` says about it, a list.
        place: file and position, for messages.

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
