"""A shop before anything is downloaded: products and people's wishes for them, in WebShop's own rows.

Products come in families of the same kind, name and maker, that differ in one attribute each, so that the first hit is
often the wrong one and only the product's page shows it. Titles are long and noisy, and name two or three attributes of
four to six; people use other words for some. As in the official small set, six of ten products have no options, one of
eight has a range of prices and one of twenty none. Most wishes are for the ones with options.

Each row has the nouns of its title (`nouns`). No family belongs to two splits, and so no maker does; the shop shows all
of them to everybody.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from agent_gym.data import Row
from agent_gym.envs.names import Namer
from agent_gym.envs.webshop.products import Product, read_product
from agent_gym.errors import ConfigError

PRODUCTS = 1000
SPLITS = ("train", "train", "train", "train", "validation", "test")  # which every sixth of the families belongs to
_WORLDS = {"train": 0, "validation": 1, "test": 2}
_MAKERS = 400
_VALUES = 3  # of an option of the easy shop, each of which is wanted once
_ID_SIGNS = "0123456789ABCDEFGHJKLMNPQRSTVWXYZ"
_TABLES: dict[str, Any] = json.loads(files(__package__).joinpath("shop.json").read_text("utf-8"))
OPTIONS: dict[str, list[str]] = _TABLES["options"]
"""Kind of option to its values."""


class ProductKind(NamedTuple):
    """A kind of product."""

    category: str  # one of the shop's five
    query: str  # the query that finds the kind
    path: str  # its place in the shop, levels between "›"
    heads: Sequence[str]  # its names
    attributes: Mapping[str, str]  # its possible properties, in the catalogue's words, to the words of a person
    options: Sequence[str]  # kinds of options that it can come in, keys of `OPTIONS`
    low: float  # dollars, as is the next
    high: float

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> ProductKind:
        # "as a catalogue has it = as a person says it"; without the second, people use the first.
        pairs = (text.partition(" = ") for text in _TABLES["attributes"][row["attributes"]])
        attributes = {catalogue: person or catalogue for catalogue, _, person in pairs}
        return cls(**{**row, "attributes": attributes, "path": row["path"].replace(" > ", " \u203a ")})


class Noise(NamedTuple):
    """The settings that make it hard to find the right product and its options."""

    family: tuple[int, ...] = (2, 3, 3, 4)  # products that differ in one attribute each; drawn evenly, as is `wanted`
    wanted: tuple[int, int] = (2, 3)  # attributes that people ask for, at least and at most
    options: tuple[int, int, int] = (58, 25, 17)  # weights of products with none, one and two kinds of options
    plain: bool = False  # whether people use the catalogue's words


NOISE = {
    2: Noise(family=(1, 2), options=(40, 40, 20), plain=True),
    3: Noise(),
    4: Noise(family=(5, 6), wanted=(3, 3), options=(20, 40, 40)),
    5: Noise(family=(9, 10), wanted=(3, 4), options=(0, 30, 70)),
}
"""Difficulty to the noise of a shop; 3 is the default."""
KINDS = tuple(map(ProductKind.read, _TABLES["kinds"]))


class GeneratedShop(NamedTuple):
    """One product: its rows of the three official files, and its split."""

    item: Row
    about: Row
    people: list[Row]
    split: str

    @property
    def product(self) -> Product:
        return read_product(self.item, self.about, self.people, "a generated row")


def generate(size: int = PRODUCTS, difficulty: int = 3) -> Iterator[GeneratedShop]:
    """Generate products with the noise of a difficulty; the first are the same for every size.

    `ConfigError` for a size below one.
    """
    if size < 1:
        raise ConfigError(f"size is {size}, but a shop needs at least one product")
    taken, noise = set[str](), NOISE[difficulty]
    for number in itertools.count():
        # A string seed goes through SHA-512, so neighbouring families share nothing.
        rng = random.Random(f"webshop/{0 if difficulty == 3 else difficulty}/{number}")
        for one in _family(rng, SPLITS[number % len(SPLITS)], noise):
            if one.item["asin"] not in taken:
                taken.add(one.item["asin"])
                yield one
                if len(taken) == size:
                    return


def _family(rng: random.Random, split: str, noise: Noise) -> Iterator[GeneratedShop]:
    kind = rng.choice(KINDS)
    maker, head, known = rng.choice(_makers(split)), rng.choice(kind.heads), list(kind.attributes)
    core = rng.sample(known, rng.randint(4, 6))
    others = [attribute for attribute in known if attribute not in core]
    for n in range(rng.choice(noise.family)):
        own = list(core)
        if n:  # a relative lacks one attribute, and has another one in its place
            own[rng.randrange(len(own))] = rng.choice(others)
        yield _product(rng, split, kind, maker, head, own, noise)


@functools.cache
def _makers(split: str) -> list[str]:
    namer = Namer(_WORLDS[split], random.Random(f"webshop/makers/{split}/0"))
    return [namer.word() for _ in range(_MAKERS)]


def _product(
    rng: random.Random, split: str, kind: ProductKind, maker: str, head: str, own: list[str], noise: Noise
) -> GeneratedShop:
    asin = "B0" + "".join(rng.choices(_ID_SIGNS, k=8))
    options = {}
    count = min(len(kind.options), rng.choices((0, 1, 2), noise.options)[0])
    for name in sorted(rng.sample(kind.options, count), key=kind.options.index):
        values = OPTIONS[name]
        drawn = set(rng.sample(values, rng.randint(3, min(6, len(values)))))
        options[name] = [value for value in values if value in drawn]
    # Words that sellers add to a title, and the nouns in it.
    added, nouns = rng.choice(list(_TABLES["noise"].items()))
    first, second, third = (attribute.title() for attribute in rng.sample(own, 3))
    parts = {"brand": maker, "head": head.title(), "first": first, "second": second, "third": third, "noise": added}
    title = rng.choice(_TABLES["titles"]).format(**parts)
    description = pricing = ""
    if rng.random() >= 0.3:
        description = (
            f"Looking for {kind.query}? This {head} was made with care ({', '.join(rng.sample(own, 2))}). It is packed "
            "by hand and arrives within days. If it is not what you expected, write to us, and our team will answer "
            "within 24 hours."
        )
    draw, price = rng.random(), kind.low * (kind.high / kind.low) ** rng.random()
    if draw >= 0.05:
        pricing = f"${price:.2f}" + (f"${price * rng.uniform(1.1, 1.8):.2f}" if draw < 0.17 else "")
    item = _item(asin, kind, head, options) | {
        "name": title,
        "full_description": description,
        "pricing": pricing,
        "small_description": [f"{attribute.upper()}: for every day of the year" for attribute in own],
        "nouns": [maker.lower(), *head.split(), *nouns],
    }
    about = _about(kind, own, rng.sample(own, rng.randint(2, min(4, len(own)))))
    people = []
    for _ in range(rng.choice((4, 5, 6) if options else (1, 2))):
        wanted = rng.sample(own, rng.randint(*noise.wanted))
        chosen = {name: rng.choice(values) for name, values in options.items() if rng.random() < 0.9}
        words = {
            "article": _article(head),
            "head": head,
            "query": kind.query,
            "attributes": " and ".join(one if noise.plain else kind.attributes[one] for one in wanted),
            "with_options": _with_options(chosen),
        }
        people.append(_request(asin, rng.choice(_TABLES["requests"]).format(**words), own, wanted, chosen))
    return GeneratedShop(item, about, people, split)


def generate_easy() -> Iterator[GeneratedShop]:
    """Generate a shop that a model of a fraction of a million parameters can learn to buy in; it is always the same.

    Ids are two syllables, of consonants that do not occur in the other one, so that a policy that copies them cannot
    confuse them. Prices are whole dollars, titles the name of the thing and its two attributes. People ask for both, in
    the catalogue's words, and for the one option that each product has, a word. No two products of one name have the
    same attributes: a search for the instruction finds the product first, and one for the kind of thing another one.
    """
    rng = random.Random("webshop/easy")
    words = {name: [value for value in values if value.isalpha()] for name, values in OPTIONS.items()}
    kinds = [kind for kind in KINDS if all(len(words[name]) >= _VALUES for name in kind.options)]
    things = [
        (kind, head, pair)
        for kind in kinds
        for head in kind.heads
        for pair in itertools.combinations(kind.attributes, 2)
    ]
    ids = ["".join(signs) for signs in itertools.product("bcdfgh", "aeiou", "-", "klmnprst", "aeiou")]
    # Ids are unrelated to their products: a policy has to read them.
    drawn = zip(rng.sample(ids, PRODUCTS), rng.sample(things, PRODUCTS), strict=True)
    for number, (asin, (kind, head, pair)) in enumerate(drawn):
        attributes, option = rng.sample(pair, 2), rng.choice(kind.options)
        values = rng.sample(words[option], _VALUES)
        item = _item(asin, kind, head, {option: values}) | {
            "name": ", ".join([head, *attributes]),
            "full_description": f"One of our {kind.query}",
            "pricing": f"${rng.randint(round(kind.low), round(min(kind.high, 99)))}",
            "small_description": [attribute.upper() for attribute in attributes],
            "nouns": head.split(),
        }
        text = f"i need {_article(head)} {head}, {' and '.join(attributes)}"
        people = []
        for value in values:
            chosen = {option: value}
            people.append(_request(asin, text + _with_options(chosen), attributes, attributes, chosen))
        yield GeneratedShop(item, _about(kind, attributes, attributes), people, SPLITS[number % len(SPLITS)])


# The rows of the official files.


def _item(asin: str, kind: ProductKind, head: str, options: Mapping[str, list[str]]) -> Row:
    named = {name.title(): [{"value": value} for value in values] for name, values in options.items()}
    return {
        "asin": asin,
        "category": kind.category,
        "query": kind.query,
        "product_category": f"{kind.path} \u203a {head.title()}",
        "customization_options": named or "",
        "images": [],
        "average_rating": "",
        "page": 1,
    }


def _about(kind: ProductKind, attributes: list[str], wanted: list[str]) -> Row:
    instruction = f"Find me {', '.join(wanted[:-1])} {kind.query} with {wanted[-1]}"
    return {"attributes": attributes, "instruction": instruction, "instruction_attributes": wanted}


def _request(asin: str, text: str, attributes: list[str], wanted: list[str], chosen: Mapping[str, str]) -> Row:
    return {
        "asin": asin,
        "instruction": f"{text}.",
        "attributes": attributes,
        "options": [f"{name}: {value}" for name, value in chosen.items()],
        "instruction_attributes": wanted,
        "instruction_options": list(chosen.values()),
        "assignment_id": "generated",
        "worker_id": "generated",
    }


def _article(head: str) -> str:
    return "some" if head.endswith("s") else "an" if head[0] in "aeio" else "a"


def _with_options(chosen: Mapping[str, str]) -> str:
    return "".join(_TABLES["with_option"][name].format(value) for name, value in chosen.items())


def write_embedded(folder: str | Path, size: int = PRODUCTS) -> Path:
    """Write generated products and people's wishes for them, in the official files; upstream's own code reads them too.

    `data=` takes the folder. Its splits are then upstream's, by goals, while the embedded ones keep products apart.
    """
    folder, made = Path(folder).expanduser(), list(generate(size))
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "items_shuffle": [one.item for one in made],
        "items_ins_v2": {one.item["asin"]: one.about for one in made},
        "items_human_ins": {one.item["asin"]: one.people for one in made},
    }
    for name, rows in content.items():
        (folder / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder
