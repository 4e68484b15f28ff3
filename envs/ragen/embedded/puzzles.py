"""Numbers with a target that a random expression of them has."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from agent_gym.data import Row, SplitRows
from agent_gym.envs.ragen.embedded import split_of
from agent_gym.errors import ConfigError

Part = tuple[Any, str, int]  # a value, its expression, and how strongly that binds
OPERATORS: Mapping[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
BINDING = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2, "negative": 3}
MOST_TARGET = 999
_MOST_DRAWS = 100_000


class Puzzles(SplitRows):
    """The tasks of a split, with `count` numbers up to `largest`, and solutions of some operators."""

    SIZES = {"train": 20_000, "validation": 200, "test": 200}
    KEY = ""

    def __init__(self, split: str, size: int | None = None, *, many: int, largest: int, operators: str) -> None:
        super().__init__(split, size)
        self.many, self.largest, self.operators = many, largest, operators

    def _mark(self, row: Any) -> Any:
        return (*sorted(row["nums"]), row["target"])

    def drafts(self, index: int) -> Iterator[Any]:
        rng = random.Random(f"countdown/{self.split}/{self.many}/{self.largest}/{self.operators}/{index}")
        draws = 0
        while draws < _MOST_DRAWS:
            draws += 1
            row = _drawn(rng, self.many, self.largest, self.operators)
            if row and split_of(repr(self._mark(row))) == self.split:
                yield row
                draws = 0
        raise ConfigError(
            f"no task of {self.many} numbers up to {self.largest} with {self.operators!r} belongs to split "
            f"{self.split!r}; take other numbers, largest or operators"
        )


def _drawn(rng: random.Random, many: int, largest: int, operators: str) -> Row | None:
    """Draw numbers, and join two parts of them again and again; None if a result is not whole and positive."""
    nums = [rng.randint(1, largest) for _ in range(many)]
    parts: list[Part] = [(number, str(number), 3) for number in nums]
    while len(parts) > 1:
        left, right = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
        joined = joined_parts(left, rng.choice(operators), right, whole=True)
        if joined is None or joined[0] < 1:
            return None
        parts.append(joined)
    value, answer, _ = parts[0]
    plain = {*operators} & {*"*/"} and not {*answer} & {*"*/"}
    return None if plain or value > MOST_TARGET else {"nums": nums, "target": value, "answer": answer}


def joined_parts(left: Part, sign: str, right: Part, whole: bool) -> Part | None:
    """Return an operation of two parts, or None for a division by zero, or with a rest where results are whole."""
    if sign == "/" and (not right[0] or (whole and left[0] % right[0])):
        return None
    value = left[0] // right[0] if sign == "/" and whole else OPERATORS[sign](left[0], right[0])
    binding = BINDING[sign]
    before = left[1] if left[2] >= binding else f"({left[1]})"
    # After - and / a part that binds as strongly is another operation.
    after = right[1] if right[2] > binding or (right[2] == binding and sign in "+*") else f"({right[1]})"
    return value, f"{before} {sign} {after}", binding
