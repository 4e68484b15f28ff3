"""Expressions of Countdown: read and computed exactly, never by `eval`, and found by exhaustive search."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from fractions import Fraction

from agent_gym.envs.ragen.embedded.puzzles import BINDING, OPERATORS, Part, joined_parts

_TOKEN = re.compile(r"\s*(?:([0-9]{1,9})(?![0-9])|([-+*/()])|(\S))")
_TYPOGRAPHY = str.maketrans({"×": "*", "÷": "/", "−": "-"})
_MOST_CHARS = 300


def read(expression: str) -> tuple[list[int], Fraction | None]:
    """Return the numbers of an expression in order, and its value.

    The value is None for anything but numbers, + - * / and parentheses, for a division by zero, and for more than 300
    characters. By Dijkstra's shunting yard, so that no depth of parentheses matters.
    """
    if len(expression) > _MOST_CHARS:
        return [], None
    tokens = _TOKEN.findall(expression.translate(_TYPOGRAPHY).strip())
    numbers = [int(number) for number, _, _ in tokens if number]
    values, waiting, operand = list[Fraction](), list[str](), True
    try:
        for number, sign, stray in tokens:
            if stray or operand != bool(number or sign == "(" or (sign in ("-", "+") and operand)):
                return numbers, None
            if number:
                values.append(Fraction(int(number)))
                operand = False
            elif sign == "(" or operand:
                waiting += [sign] if sign == "(" else ["negative"] if sign == "-" else []
            else:
                while waiting and waiting[-1] != "(" and (sign == ")" or BINDING[waiting[-1]] >= BINDING[sign]):
                    _apply(waiting.pop(), values)
                if sign == ")":
                    if waiting.pop() != "(":
                        return numbers, None
                else:
                    waiting.append(sign)
                    operand = True
        while waiting:
            _apply(waiting.pop(), values)
    except (IndexError, KeyError, ZeroDivisionError):  # a parenthesis without its other half, or a missing number
        return numbers, None
    return numbers, values[0] if len(values) == 1 and not operand else None


def _apply(sign: str, values: list[Fraction]) -> None:
    right = values.pop()
    values.append(-right if sign == "negative" else OPERATORS[sign](values.pop(), right))


def solve(nums: Sequence[int], target: int, operators: str = "+-*/") -> str | None:
    """Return an expression of each number once that is equal to the target, by exhaustive search, or None.

    Whole intermediate results are tried before fractions.
    """
    for whole in (True, False) if "/" in operators else (True,):
        start = [(Fraction(number) if not whole else number, str(number), 3) for number in nums]
        if (found := _combined(start, target, operators, whole)) is not None:
            return found
    return None


def _combined(parts: list[Part], target: int, operators: str, whole: bool) -> str | None:
    if len(parts) == 1:
        return parts[0][1] if parts[0][0] == target else None
    for first, second in itertools.permutations(range(len(parts)), 2):
        rest = [part for place, part in enumerate(parts) if place not in (first, second)]
        for sign in operators:
            if sign in "+*" and first > second:
                continue
            joined = joined_parts(parts[first], sign, parts[second], whole)
            if joined and (found := _combined([joined, *rest], target, operators, whole)) is not None:
                return found
    return None
