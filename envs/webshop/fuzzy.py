"""How alike two short texts are: `token_set_ratio` of thefuzz 0.19.0, which WebShop pins, by the standard library.

Later versions compute by rapidfuzz, and decide otherwise in one of ten thousand pairs. The reward asks whether the
ratio is above 85, so that the arithmetic, rounding included, is the reward's.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import lru_cache

_NO_WORD = re.compile(r"\W")


@lru_cache(maxsize=1 << 14)
def token_set_ratio(one: str, other: str) -> int:
    """Return 0 to 100: 100 if the words of one are among those of the other, whatever their order and number."""
    words, others = set(_plain(one).split()), set(_plain(other).split())
    if not words or not others:
        return 0
    shared = " ".join(sorted(words & others))
    left = " ".join([shared, *sorted(words - others)]).strip()
    right = " ".join([shared, *sorted(others - words)]).strip()
    return max(_ratio(shared, left), _ratio(shared, right), _ratio(left, right))


def _plain(text: str) -> str:
    """Return the ASCII letters, digits and underscores of a text in lower case, with spaces for the rest of ASCII."""
    return _NO_WORD.sub(" ", "".join(letter for letter in text if letter.isascii())).lower()


def _ratio(one: str, other: str) -> int:
    return round(100 * SequenceMatcher(None, one, other).ratio()) if one and other else 0
