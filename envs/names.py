"""Invented names, made of syllables, so that nothing a model has read helps it.

No name occurs in two worlds, so that no entity of a validation or test question was ever seen in training: the names
are numbered, and world w only takes numbers that leave w when divided by `MOST_WORLDS`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

SYLLABLES = tuple(consonant + vowel for consonant in "bdfglmnprstv" for vowel in "aeiou")
MOST_WORLDS = 97  # a prime above the number of worlds, so that each gets an equal share of every kind of name
_BASE = len(SYLLABLES)
_AVOID = ("fag", "nig", "put")  # begin words that do not belong into a data set


class Namer:
    """Hands out the names of one world, numbered from 0 to `MOST_WORLDS` - 1, each once; `rng` decides which."""

    def __init__(self, world: int, rng: random.Random) -> None:
        self._world, self._rng, self._used = world, rng, set[str]()
        self._first_names = rng.sample(range(_BASE**2), 40)

    def word(self) -> str:
        """Return a name of three syllables: a work, a city, an organisation."""
        return self._draw(lambda: _spell(self._rng.randrange(_BASE**3 // MOST_WORLDS) * MOST_WORLDS + self._world, 3))

    def person(self) -> str:
        """Return a first name, which others have too, and a last name of two syllables each."""

        def make() -> str:
            first = self._rng.choice(self._first_names)
            last = self._rng.randrange(_BASE**2 // MOST_WORLDS) * MOST_WORLDS + (self._world - first) % MOST_WORLDS
            return f"{_spell(first, 2)} {_spell(last, 2)}"

        return self._draw(make)

    def _draw(self, make: Callable[[], str]) -> str:
        while True:
            name = make()
            if name not in self._used and not any(part in name.lower() for part in _AVOID):
                self._used.add(name)
                return name


def _spell(number: int, syllables: int) -> str:
    name = ""
    for _ in range(syllables):
        number, digit = divmod(number, _BASE)
        name += SYLLABLES[digit]
    return name.capitalize()
