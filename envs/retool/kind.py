"""What a kind of generated problem is."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

LEVELS = (1, 2, 3)


class Draft(NamedTuple):
    """The numbers of one problem.

    Attributes:
        values: what fills the slots of a wording.
        gold: the answer, found in another way than the program finds it.
        program: what a person would write to find it, in Python; it prints the answer and nothing else.
    """

    values: Mapping[str, Any]
    gold: int | Fraction
    program: str


Draw = Callable[[random.Random, int], Draft]
"""Draws the numbers of a problem: a generator of random numbers, a level of `LEVELS`."""


def pick(rng: random.Random, level: int, *ranges: tuple[int, int]) -> int:
    """Draw a whole number from the range of a level, both ends included."""
    return rng.randint(*ranges[level - 1])
