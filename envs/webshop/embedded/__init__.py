"""A shop before anything is downloaded: products and what people want of them, in WebShop's own rows.

Products come in families of the same kind, name and maker, that differ in one attribute each, so that the first hit is
often the wrong one and only the product's page says so. Titles are long and noisy, and name two or three attributes of
four to six; people say some attributes in other words than the catalogue does. As in the official small set, six of ten
products have no options, one of eight has a range of prices and one of twenty none. Most is wanted of those with
options.

Each row of products says the nouns of its title (`nouns`), because who made the title knows them. No family belongs to
two splits, and so no maker does; the shop shows all of them to everybody.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Iterator, Mapping
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
_ID_SIGNS = "0123456789ABCDEFGHJKLMNPQRSTVWXYZ"


class Kind(NamedTuple):
    """A kind of product.

    Attributes:
        category: one of the shop's five.
        query: what finds the kind.
        path: its place in the shop, levels between ">".
        heads: what it is called.
        attributes: what can be true of it, `as a catalogue has it = as a person says it`; without the second, people
            use the first.
        options: kinds of options that it can come in, keys of `OPTIONS`.
        low, high: dollars.
    """

    category: str
    query: str
    path: str
    heads: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    low: float
    high: float


def _read_kind(row: Mapping[str, Any]) -> Kind:
    lists = {name: tuple(row[name]) for name in ("heads", "options")}
    attributes = tuple(_TABLES["attributes"][row["attributes"]])
    return Kind(**{**row, **lists, "attributes": attributes, "path": row["path"].replace(" > ", " \u203a ")})


_TABLES: dict[str, Any] = json.loads(files(__package__).joinpath("shop.json").read_text("utf-8"))
KINDS = tuple(map(_read_kind, _TABLES["kinds"]))
OPTIONS: dict[str, list[str]] = _TABLES["options"]
"""Kind of option to its values."""
WITH_OPTION: dict[str, str] = _TABLES["with_option"]
"""Kind of option to how a person asks for a value of it."""
NOISE: dict[str, list[str]] = _TABLES["noise"]
"""What sellers add to a title, and the nouns in it."""


class Generated(NamedTuple):
    """One product: its rows of the three official files, and its split."""

    item: Row
    about: Row
    people: list[Row]
    split: str

    @property
    def product(self) -> Product:
        return read_product(self.item, self.about, self.people, "a generated row")


def generate(size: int = PRODUCTS, seed: int = 0) -> Iterator[Generated]:
    """Generate products; the first are the same for every size.

    Raises:
        ConfigError: for a size below one.
    """
    if size < 1:
        raise ConfigError(f"size is {size}, but a shop needs at least one product")
    made, number, taken = 0, 0, set[str]()
    while made < size:
        # A string seed goes through SHA-512, so neighbouring families share nothing.
        rng = random.Random(f"webshop/{seed}/{number}")
        split = SPLITS[number % len(SPLITS)]
        number += 1
        for one in _family(rng, split, seed):
            asin = one.item["asin"]
            if asin not in taken and made < size:
                taken.add(asin)
                made += 1
                yield one


def _family(rng: random.Random, split: str, seed: int) -> Iterator[Generated]:
    kind = rng.choice(KINDS)
    maker, head = rng.choice(_makers(split, seed)), rng.choice(kind.heads)
    core = rng.sample(kind.attributes, rng.randint(4, 6))
    others = [attribute for attribute in kind.attributes if attribute not in core]
    for n in range(rng.choice((2, 3, 3, 4))):
        own = list(core)
        if n:  # a relative lacks one attribute, and has another one in its place
            own[rng.randrange(len(own))] = rng.choice(others)
        yield _product(rng, split, kind, maker, head, own)


def _product(rng: random.Random, split: str, kind: Kind, maker: str, head: str, own: list[str]) -> Generated:
    asin = "B0" + "".join(rng.choices(_ID_SIGNS, k=8))
    attributes = [attribute.partition(" = ")[0] for attribute in own]
    options = _draw_options(rng, kind)
    title, nouns = _title(rng, maker, head, attributes)
    item = {
        "name": title,
        "full_description": _description(rng, kind, head, attributes),
        "pricing": _pricing(rng, kind),
        "images": [],
        "product_category": f"{kind.path} \u203a {head.title()}",
        "average_rating": "",
        "small_description": [f"{attribute.upper()}: for every day of the year" for attribute in attributes],
        "customization_options": {name.title(): [{"value": one} for one in options[name]] for name in options} or "",
        "asin": asin,
        "category": kind.category,
        "query": kind.query,
        "page": 1,
        "nouns": nouns,
    }
    asked = rng.sample(attributes, rng.randint(2, min(4, len(attributes))))
    about = {
        "attributes": attributes,
        "instruction": f"Find me {', '.join(asked[:-1])} {kind.query} with {asked[-1]}",
        "instruction_attributes": asked,
    }
    people = [
        _request(rng, asin, kind, head, own, options) for _ in range(rng.choice((4, 5, 6) if options else (1, 2)))
    ]
    return Generated(item, about, people, split)


def _title(rng: random.Random, maker: str, head: str, attributes: list[str]) -> tuple[str, list[str]]:
    noise, nouns = rng.choice(list(NOISE.items()))
    first, second, third = (attribute.title() for attribute in rng.sample(attributes, 3))
    parts = {"brand": maker, "head": head.title(), "first": first, "second": second, "third": third, "noise": noise}
    return rng.choice(_TABLES["titles"]).format(**parts), [maker.lower(), *head.split(), *nouns]


def _description(rng: random.Random, kind: Kind, head: str, attributes: list[str]) -> str:
    if rng.random() < 0.3:
        return ""
    listed = ", ".join(rng.sample(attributes, 2))
    return (
        f"Looking for {kind.query}? This {head} was made with care ({listed}). It is packed by hand and arrives within "
        "days. If it is not what you expected, write to us, and our team will answer within 24 hours."
    )


def _pricing(rng: random.Random, kind: Kind) -> str:
    draw, price = rng.random(), kind.low * (kind.high / kind.low) ** rng.random()
    if draw < 0.05:
        return ""
    return f"${price:.2f}" + (f"${price * rng.uniform(1.1, 1.8):.2f}" if draw < 0.17 else "")


def _draw_options(rng: random.Random, kind: Kind) -> dict[str, list[str]]:
    count = min(len(kind.options), rng.choices((0, 1, 2), (58, 25, 17))[0])
    options = {}
    for name in sorted(rng.sample(kind.options, count), key=kind.options.index):
        values = OPTIONS[name]
        drawn = set(rng.sample(values, rng.randint(3, min(6, len(values)))))
        options[name] = [value for value in values if value in drawn]
    return options


def _request(
    rng: random.Random, asin: str, kind: Kind, head: str, own: list[str], options: Mapping[str, list[str]]
) -> Row:
    wanted = rng.sample(own, rng.randint(2, 3))
    said = [attribute.partition(" = ")[2] or attribute.partition(" = ")[0] for attribute in wanted]
    chosen = {name: rng.choice(values) for name, values in options.items() if rng.random() < 0.9}
    text = rng.choice(_TABLES["requests"]).format(
        article=article(head),
        head=head,
        query=kind.query,
        attributes=" and ".join(said),
        with_options="".join(WITH_OPTION[name].format(value) for name, value in chosen.items()),
    )
    return {
        "asin": asin,
        "instruction": f"{text}.",
        "attributes": [attribute.partition(" = ")[0] for attribute in own],
        "options": [f"{name}: {value}" for name, value in chosen.items()],
        "instruction_attributes": [attribute.partition(" = ")[0] for attribute in wanted],
        "instruction_options": list(chosen.values()),
        "assignment_id": "generated",
        "worker_id": "generated",
    }


def article(head: str) -> str:
    """Return what stands before the name of a thing that somebody wants."""
    return "some" if head.endswith("s") else "an" if head[0] in "aeio" else "a"


@functools.cache
def _makers(split: str, seed: int) -> list[str]:
    namer = Namer(_WORLDS[split], random.Random(f"webshop/makers/{split}/{seed}"))
    return [namer.word() for _ in range(_MAKERS)]


def write_embedded(folder: str | Path, size: int = PRODUCTS, seed: int = 0) -> Path:
    """Write generated products and what people want of them, in the official files; upstream's own code reads them too.

    Returns:
        The folder, with `items_shuffle.json`, `items_ins_v2.json` and `items_human_ins.json`; `data=` takes it. Its
        splits are then upstream's, by goals, while the embedded ones keep products apart.

    Raises:
        ConfigError: for a size below one.
    """
    folder = Path(folder).expanduser()
    made = list(generate(size, seed))
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "items_shuffle": [one.item for one in made],
        "items_ins_v2": {one.item["asin"]: one.about for one in made},
        "items_human_ins": {one.item["asin"]: one.people for one in made},
    }
    for name, rows in content.items():
        (folder / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder


_IDS = ["".join(signs) for signs in itertools.product("bcdfgh", "aeiou", "-", "klmnprst", "aeiou")]
_VALUES = 3  # of an option, each of which somebody wants
_DEAREST = 99  # dollars; of furniture
_WORDS = {name: [value for value in values if value.isalpha()] for name, values in OPTIONS.items()}


def generate_easy() -> Iterator[Generated]:
    """Generate a shop that a model of a fraction of a million parameters can learn to buy in; it is always the same.

    Ids are two syllables, of consonants that do not occur in the other one, so that a policy that copies them cannot
    confuse them. Prices are whole dollars, titles the name of the thing and its two attributes. People ask for both, in
    the catalogue's words, and for the one option that each product has, a word. No two products of one name have the
    same attributes: a search for the instruction finds the product first, and one for the kind of thing another one.
    """
    rng = random.Random("webshop/easy")
    kinds = [kind for kind in KINDS if all(len(_WORDS[name]) >= _VALUES for name in kind.options)]
    things = [(kind, head, pair) for kind in kinds for head in kind.heads for pair in _pairs(kind)]
    # Ids say nothing about what they stand for: a policy has to read them.
    chosen = zip(rng.sample(_IDS, PRODUCTS), rng.sample(things, PRODUCTS), strict=True)
    for number, (asin, (kind, head, pair)) in enumerate(chosen):
        yield _easy_product(rng, asin, SPLITS[number % len(SPLITS)], kind, head, pair)


def _pairs(kind: Kind) -> Iterator[tuple[str, str]]:
    return itertools.combinations([attribute.partition(" = ")[0] for attribute in kind.attributes], 2)


def _easy_product(rng: random.Random, asin: str, split: str, kind: Kind, head: str, pair: tuple[str, str]) -> Generated:
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
    return Generated(item, about, [_easy_request(asin, head, attributes, option, value) for value in values], split)


def _easy_request(asin: str, head: str, attributes: list[str], option: str, value: str) -> Row:
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
