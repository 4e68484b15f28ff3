"""The nouns of a title, by which the reward tells whether what was bought is the kind of thing that was asked for.

WebShop asks spaCy's English model. With `nouns="en_core_web_sm"` (or another model that is installed) so does this
environment. Its authors have the model on GitHub, not on PyPI, and it weighs more than all the rest, so that the
default is a rule: a word of two letters or more without a digit is taken for a noun, unless it is in a list of function
words and of adjectives that titles are full of. Titles of products are lists of nouns and names; other adjectives in
them mostly have a capital letter, and taggers call them proper nouns. Of the products that a search finds beside the
one that was meant, the rule judges 11% otherwise than the model (`benchmarks/webshop.py --nouns`).

The generated catalogue says the nouns of its titles, so that there is nothing to guess.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from agent_gym.errors import ConfigError, require

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


def tagger(name: str) -> Nouns:
    """Return what finds nouns.

    Args:
        name: "rule", or the name of a model of spaCy.

    Raises:
        ConfigError: if spaCy or its model is not installed.
    """
    return by_rule if name == RULE else _by_model(name)


def by_rule(title: str) -> tuple[str, ...]:
    """Return the words of a title that are no function words and hold no digit."""
    words = (word.lower() for word in _WORD.findall(title))
    return tuple(word for word in words if word not in _FUNCTION_WORDS and len(word) > 1)


@functools.cache
def _by_model(name: str) -> Nouns:
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
