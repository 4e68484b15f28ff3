"""A shop that a model of a fraction of a million parameters can learn to buy in, in WebShop's own rows.

It differs from the other generated shop (generator.py) in what makes pages long and instructions hard to meet:

- Ids are two syllables, of consonants that do not occur in the other one, so that a policy that copies them cannot
  confuse one with the other. Prices are whole dollars, titles the name of the thing and its two attributes.
- People ask for both attributes, in the catalogue's words, and for the one option that each product has, a word.
- No two products of one name have the same attributes. So a search for what an instruction says finds the product
  first, and one for the kind of thing alone finds another one.

What remains is the task: to search for all that is asked for, to open what was found, to choose the option, to buy.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from agent_gym.data import Row
from agent_gym.envs.webshop.embedded.generator import (
    KINDS,
    OPTIONS,
    SPLITS,
    WITH_OPTION,
    Generated,
    Kind,
    article,
)

PRODUCTS = 1000
_IDS = ["".join(signs) for signs in itertools.product("bcdfgh", "aeiou", "-", "klmnprst", "aeiou")]
_VALUES = 3  # of an option, each of which somebody wants
_DEAREST = 99  # dollars; of furniture
_WORDS = {name: [value for value in values if value.isalpha()] for name, values in OPTIONS.items()}


def generate_easy() -> Iterator[Generated]:
    """Generate the products; it is always the same shop."""
    rng = random.Random("webshop/easy")
    kinds = [kind for kind in KINDS if all(len(_WORDS[name]) >= _VALUES for name in kind.options)]
    things = [(kind, head, pair) for kind in kinds for head in kind.heads for pair in _pairs(kind)]
    # Ids say nothing about what they stand for: a policy has to read them.
    chosen = zip(rng.sample(_IDS, PRODUCTS), rng.sample(things, PRODUCTS), strict=True)
    for number, (asin, (kind, head, pair)) in enumerate(chosen):
        yield _product(rng, asin, SPLITS[number % len(SPLITS)], kind, head, pair)


def _pairs(kind: Kind) -> Iterator[tuple[str, str]]:
    return itertools.combinations([attribute.partition(" = ")[0] for attribute in kind.attributes], 2)


def _product(rng: random.Random, asin: str, split: str, kind: Kind, head: str, pair: tuple[str, str]) -> Generated:
    attributes, option = rng.sample(pair, 2), rng.choice(kind.options)
    values = rng.sample(_WORDS[option], _VALUES)
    item = {
        "name": ", ".join([head, *attributes]),
        "full_description": f"One of our {kind.query}",
        "pricing": f"${rng.randint(round(kind.low), round(min(kind.high, _DEAREST)))}",
        "images": [],
        "product_category": f"{kind.path} \u203a {head.title()}",
        "average_rating": "",
        "small_description": [attribute.upper() for attribute in attributes],
        "customization_options": {option.title(): [{"value": value} for value in values]},
        "asin": asin,
        "category": kind.category,
        "query": kind.query,
        "page": 1,
        "nouns": head.split(),
    }
    about = {
        "attributes": attributes,
        "instruction": f"Find me {attributes[0]} {kind.query} with {attributes[1]}",
        "instruction_attributes": attributes,
    }
    return Generated(item, about, [_request(asin, head, attributes, option, value) for value in values], split)


def _request(asin: str, head: str, attributes: list[str], option: str, value: str) -> Row:
    return {
        "asin": asin,
        "instruction": f"i need {article(head)} {head}, {' and '.join(attributes)}{WITH_OPTION[option].format(value)}.",
        "attributes": attributes,
        "options": [f"{option}: {value}"],
        "instruction_attributes": attributes,
        "instruction_options": [value],
        "assignment_id": "generated",
        "worker_id": "generated",
    }
