"""The reward of a purchase: WebShop's own (arXiv:2207.01206, section 3.1), and each part of it.

    reward = r_type * (attributes that match + options that match + [price within the limit])
                    / (attributes asked for + options asked for + 1)

An attribute matches if it is like one of the product's (`token_set_ratio` above 85), or is in its texts. An option
matches if one that was chosen is like it; colours are compared by the first plain colour in their names.

`token_set_ratio` is that of thefuzz 0.19.0, which WebShop pins. Later versions compute by rapidfuzz, and decide
otherwise in one of ten thousand pairs: rounding decides whether a ratio is above 85.

WebShop finds the nouns of titles by spaCy's English model, and so does `nouns="en_core_web_sm"`. The model is not on
PyPI and weighs more than all the rest, so that the default is a rule (`by_rule`). Of the products that a search finds
besides the one that was meant, it judges 11% otherwise than the model (`benchmarks/webshop.py --nouns`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from difflib import SequenceMatcher
from typing import Any

from agent_gym.envs.webshop.products import Product
from agent_gym.errors import ConfigError, require

_ALIKE = 85
_NO_WORD = re.compile(r"\W")
# Upstream's list (engine/normalize.py, see NOTICE): the first of these that a text contains represents all of it.
COLORS = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel "
    "camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry "
    "cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey "
    "heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight "
    "mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow "
    "red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal "
    "tiger turquoise violet walnut wheat white wine yellow"
).split()


def reward(
    product: Product, goal: Mapping[str, Any], chosen: Mapping[str, str], nouns: Nouns
) -> tuple[float, dict[str, Any]]:
    """Score a purchase.

    Returns:
        The reward, 0 to 1, and its parts under upstream's names: `r_att`, `r_option` and `r_price` are shares of the
        wishes that was asked for, `w_att`, `w_option` and `w_price` their weights; then `r_type`, and `query_match`,
        `category_match` and `title_score`, from which it follows. A goal without options has no `r_option`, `w_option`.
    """
    parts = type_reward(product, goal, nouns)
    wanted, options = goal["attributes"], goal["goal_options"]
    texts = [text.lower() for text in (product.title, " ".join(product.bullets), product.description)]
    attributes = sum(
        any(token_set_ratio(own, one) > _ALIKE for own in product.attributes) or any(one in text for text in texts)
        for one in wanted
    )
    matches = sum(any(option_match(one, value) for value in chosen.values()) for one in asked_options(options))
    affordable = product.price <= goal["price_upper"]
    total = len(wanted) + len(options) + 1
    parts |= {"r_att": attributes / len(wanted), "w_att": len(wanted) / total}
    if options:
        parts |= {"r_option": matches / len(options), "w_option": len(options) / total}
    parts |= {"r_price": affordable, "w_price": 1 / total}
    return (attributes + matches + affordable) / total * parts["r_type"], parts


def type_reward(product: Product, goal: Mapping[str, Any], nouns: Nouns) -> dict[str, Any]:
    """Judge whether a product is the kind of thing asked for, by the shop's classes and by the titles' nouns.

    `r_type` is 1 if it is, and 0.5, 0.1 or 0 if neither of them shows it.
    """
    query_match = product.query == goal["query"]
    own, other = (
        {level.strip() for level in category.split("\u203a")}
        for category in (product.product_category, goal["product_category"])
    )
    category_match = len(own & other) >= 2
    wanted = tuple(goal["nouns"]) if goal.get("nouns") is not None else nouns(goal["name"])
    given = nouns(product.title) if product.nouns is None else product.nouns
    # A noun that the goal's title repeats counts once above the line and twice below it, as it does upstream.
    title_score = len(set(given) & set(wanted)) / len(wanted) if wanted else 0.2
    if title_score == 0:
        r_type = 0.0
    elif title_score < 0.1:
        r_type = 0.1
    else:
        r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    parts = {"query_match": query_match, "category_match": category_match, "title_score": title_score}
    return {"r_type": r_type, **parts}


def asked_options(options: Any) -> list[Any]:
    """Return the options of a goal: values, or pairs of name and value where the goal is one of upstream's program."""
    return list(options.items()) if isinstance(options, Mapping) else list(options)


def option_match(asked: Any, chosen: str) -> bool:
    """Whether a chosen value is the wanted one; upstream compares the pairs of its goals as their `str`."""
    return token_set_ratio(str(_color(chosen)), str(_color(asked))) > _ALIKE


def _color(text: Any) -> Any:
    """Return the first plain colour in a text. In a pair it has to be one of the two, and not only in it."""
    return next((color for color in COLORS if color in text), text)


@functools.lru_cache(maxsize=1 << 14)
def token_set_ratio(one: str, other: str) -> int:
    """Return how alike two texts are: 100 if the words of one are among the other's, whatever their order and number.

    0 means nothing in common.
    """
    # The ASCII letters, digits and underscores, with spaces for the rest of ASCII.
    words, others = (
        set(_NO_WORD.sub(" ", "".join(letter for letter in text if letter.isascii())).lower().split())
        for text in (one, other)
    )
    if not words or not others:
        return 0
    shared = " ".join(sorted(words & others))
    left = " ".join([shared, *sorted(words - others)]).strip()
    right = " ".join([shared, *sorted(others - words)]).strip()
    return max(_ratio(shared, left), _ratio(shared, right), _ratio(left, right))


def _ratio(one: str, other: str) -> int:
    return round(100 * SequenceMatcher(None, one, other).ratio()) if one and other else 0


Nouns = Callable[[str], tuple[str, ...]]
"""Returns the nouns of a title in lower case, each as often as it occurs."""

RULE = "rule"
_WORD = re.compile(r"(?<!\w)[^\W\d_]+(?:['\u2019][^\W\d_]+)?(?!\w)")
_FUNCTION_WORDS = frozenset(
    "a about above after all also an and any are as at be been before below best between both but by can could do "
    "does each easily easy etc every extra few for free from full good great has have he her high highly his how i if "
    "in inside into is it its large long low made make makes many may me mini more most much must my new no non not of "
    "off on only or other our out over perfect per plus she short should small so some such super than that the their "
    "them then there these they this those through to too top ultra under up upon us very via was we well were what "
    "when where which while who will with within without would x you your".split()
)


def by_rule(title: str) -> tuple[str, ...]:
    """Return the words of a title without single letters, digits in them, function words and frequent adjectives."""
    words = (word.lower() for word in _WORD.findall(title))
    return tuple(word for word in words if word not in _FUNCTION_WORDS and len(word) > 1)


@functools.cache
def tagger(name: str) -> Nouns:
    """Return what finds nouns: "rule", or a model of spaCy; `ConfigError` if it is not installed."""
    if name == RULE:
        return by_rule
    spacy = require("spacy", "spacy")
    try:
        # Parts of speech need no parse and no names; without them the model is twice as fast and answers the same.
        model = spacy.load(name, exclude=["parser", "ner", "lemmatizer"])
    except OSError as error:
        raise ConfigError(
            f"nouns is {name!r}; allowed: 'rule', or an installed model of spaCy: python -m spacy download {name}"
        ) from error

    @functools.lru_cache(maxsize=1 << 14)
    def nouns(title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in model(title) if token.pos_ in ("NOUN", "PROPN"))

    return nouns
