"""The calculator: one arithmetic expression in, its value as text out.

It trusts nothing in the text of the policy. A regular expression admits numbers, signs and parentheses only, and the
operators of a table are evaluated, in exact fractions. Length, exponents and digits are bounded before the work is
done. It does not use `ast.parse`, which fails in CPython 3.11 if two threads parse at the same time.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from agent_gym.tools import ToolResult, tool

MAX_LENGTH = 500  # characters; the longest annotation of GSM8K has 36
MAX_BITS = 4096  # size a power may grow to, so that 9**9**9 fails before it is computed
MAX_DIGITS = 50  # digits before the point, or zeros after it, that are still printed

Number = int | Fraction

_LIMIT = 10**MAX_DIGITS
# A comma belongs to a number only as a proper thousands separator: `1,20` is more likely a slip than 120.
_NUMBER = r"(?:\$\s*)?((?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
# The last group takes a character that is neither number nor sign, so that nothing is skipped between two tokens.
_TOKEN = re.compile(rf"{_NUMBER}|(\*\*|//|[-+*/%()])|(\S)")
_TYPOGRAPHY = str.maketrans({"×": "*", "÷": "/", "−": "-"})


@tool
def calculator(expression: str) -> ToolResult:
    """Evaluate an arithmetic expression with + - * / % ** and parentheses.

    Args:
        expression: for example "48/2 + 3".
    """
    result = calculate(expression)
    return ToolResult(result, result.startswith("Error"))


class _Problem(Exception):
    """A fault of an expression, in words for the policy."""


def calculate(expression: str) -> str:
    """Evaluate one arithmetic expression.

    The arithmetic is exact (`0.1+0.2` is `0.3`, `1/3*3` is `1`); only the printed result is rounded, half to
    even: to six decimals, or to six significant digits where the result is smaller than one. An integer prints
    without a point, and nothing prints in scientific notation.

    `%` is a percentage when no operand follows it (`20%*50` is `10`) and the remainder when one does (`20%6` is
    `2`). Before a sign it could be either, and that is an error.

    Args:
        expression: at most `MAX_LENGTH` characters of any text.

    Returns:
        The number, or a line that starts with `Error:` and names the fault. Never raises.
    """
    try:
        if len(expression) > MAX_LENGTH:
            raise _Problem(f"{len(expression)} characters are too many, at most {MAX_LENGTH} are allowed")
        return _show(_evaluate(_postfix(expression)))
    except _Problem as problem:
        return f"Error: {problem}"
    except ZeroDivisionError:
        return "Error: division by zero"


def _postfix(expression: str) -> list[Number | str]:
    """Check that operands and operators alternate, and write `1+2*3` as `1 2 3 * +`, by Dijkstra's shunting yard."""
    tokens = _TOKEN.findall(expression.translate(_TYPOGRAPHY))
    if not tokens:
        raise _Problem("the expression is empty")
    output: list[Number | str] = []
    waiting: list[str] = []  # operators whose right operand is not complete, and open parentheses
    want_operand = True
    for place, (number, sign, stray) in enumerate(tokens):
        if stray:
            raise _Problem(f"unexpected {ascii(stray)}")  # printable even where it is a lone surrogate
        if number or sign == "(":
            if not want_operand:
                raise _Problem(f"an operator is missing before '{number or sign}'")
        elif want_operand and sign not in "+-":
            raise _Problem(f"a number is missing before '{sign}'")
        if number:
            whole, _, decimals = number.replace(",", "").partition(".")
            output.append(_divide(int(whole + decimals), 10 ** len(decimals)) if decimals else int(whole))
            want_operand = False
        elif sign == "(":
            waiting.append(sign)
        elif want_operand:
            if sign == "-":
                output.append(-1)
                waiting.append("-1 times")
        elif sign == "%" and _is_percentage(tokens[place + 1 :]):
            output += [100, "/"]
        else:
            # A power groups to the right, so that the one before it is not complete yet.
            while waiting and sign != "**" and _BINDING[waiting[-1]] >= _BINDING[sign]:
                output.append(waiting.pop())
            if sign != ")":
                waiting.append(sign)
                want_operand = True
            elif waiting:
                waiting.pop()
            else:
                raise _Problem("')' without '('")
    if want_operand:
        raise _Problem("a number is missing at the end")
    if "(" in waiting:
        raise _Problem("'(' without ')'")
    return output + waiting[::-1]


def _is_percentage(following: list[tuple[str, str, str]]) -> bool:
    """Whether the `%` before these tokens is a percentage; an operand after it makes it a remainder."""
    number, sign, _ = following[0] if following else ("", "", "")
    if sign in ("+", "-"):
        raise _Problem(f"'%' before '{sign}' is ambiguous, put the percentage in parentheses")
    return not number and sign != "("


def _evaluate(postfix: list[Number | str]) -> Number:
    values: list[Number] = []
    for item in postfix:
        if isinstance(item, str):
            right = values.pop()
            item = _OPERATORS[item](values.pop(), right)
        values.append(item)
    return values[0]


def _divide(left: Number, right: Number) -> Number:
    quotient, remainder = divmod(left, right)  # integers are about ten times faster than fractions
    return Fraction(left) / right if remainder else quotient


def _power(base: Number, exponent: Number) -> Number:
    if exponent.denominator != 1:
        raise _Problem("the exponent must be a whole number")
    power = int(exponent)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and bits * abs(power) > MAX_BITS:
        raise _Problem("the power is too large")
    # -1, 0 and 1 pass the bound above with any exponent, and the parity is all that matters to them.
    return Fraction(base) ** (power if bits > 1 or base == 0 else power % 2)


_OPERATORS: dict[str, Callable[[Any, Any], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "//": operator.floordiv,
    "%": operator.mod,
    "-1 times": operator.mul,
    "**": _power,
}
# The higher binds the tighter, as in Python; a closing parenthesis completes everything since the opening one.
_BINDING = {"(": 0, ")": 1, "+": 2, "-": 2, "*": 3, "/": 3, "//": 3, "%": 3, "-1 times": 4, "**": 5}


def _show(value: Number) -> str:
    """Write a number as `calculate` promises: an integer, or a decimal without trailing zeros."""
    size = abs(value)
    if size >= _LIMIT or 0 < size * _LIMIT < 1:
        raise _Problem(f"the result needs more than {MAX_DIGITS} digits")
    if value.denominator == 1:
        return str(value.numerator)
    places = 6
    while size * 10 ** (places - 5) < 1:  # one more place for every zero right after the point
        places += 1
    digits = str(round(size * 10**places)).rjust(places + 1, "0")
    text = f"{digits[:-places]}.{digits[-places:]}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 else text
