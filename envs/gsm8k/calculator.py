"""The calculator of the GSM8K task: one arithmetic expression in, one short line of text out.

Covered: `+ - * / // % **`, parentheses, unary signs, decimals, thousands separators (`1,200`), a dollar sign
before a number, percentages (`20%`), and the typographic signs `×`, `÷`, `−`. That is what the `<<...>>`
annotations of GSM8K (Cobbe et al., arXiv:2110.14168) use, and a little of what language models write besides.

Left out on purpose: variables, functions, words ("20% of 50"), implied products (`2(3)`), scientific notation,
roots.

The expression comes from a policy, so nothing in it is trusted: there is no `eval`, no recursion, and the sizes
that can make exact arithmetic slow (length, exponents, digits) are bounded before any work is done. Whatever is
wrong comes back as one line of text that starts with `Error:`, because a policy's mistake is something for it
to read.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

MAX_LENGTH = 500  # characters; the longest annotation of GSM8K has 36
MAX_BITS = 4096  # size a power may grow to, so that 9**9**9 fails before it is computed
MAX_DIGITS = 50  # digits before the point, or zeros after it, that are still printed

Number = int | Fraction

_LIMIT = 10**MAX_DIGITS
# A comma belongs to a number only as a proper thousands separator: `1,20` is more likely a slip than 120.
_NUMBER = r"(?:\$\s*)?((?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
# The last group takes whatever is neither number nor sign, so that nothing is skipped between two tokens.
_TOKEN = re.compile(rf"{_NUMBER}|(\*\*|//|[-+*/%()])|(\S)")
_PLAIN = re.compile(r" ?([0-9]{1,18}) ?([-+*/]) ?([0-9]{1,18}) ?")
_TYPOGRAPHY = str.maketrans({"×": "*", "÷": "/", "−": "-"})
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "negate": 3, "keep": 3, "**": 4}


class _Problem(Exception):
    """What is wrong with an expression, in words for the policy."""


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
        The number, or a line that starts with `Error:` and names what is wrong. Never raises.
    """
    try:
        # Most calls are two whole numbers and one sign, which need no stacks and are within every limit.
        if plain := _PLAIN.fullmatch(expression):
            left, sign, right = plain.groups()
            value = _BINARY[sign](int(left), int(right))
            return str(value) if isinstance(value, int) else _show(value)
        if len(expression) > MAX_LENGTH:
            raise _Problem(f"{len(expression)} characters are too many, at most {MAX_LENGTH} are allowed")
        return _show(_evaluate(expression))
    except _Problem as problem:
        return f"Error: {problem}"
    except ZeroDivisionError:
        return "Error: division by zero"


def _evaluate(expression: str) -> Number:
    """Shunting-yard: two explicit stacks instead of recursion, so that nesting never costs the C stack."""
    if not expression.isascii():
        expression = expression.translate(_TYPOGRAPHY)
    tokens = _TOKEN.findall(expression)
    if not tokens:
        raise _Problem("the expression is empty")
    values: list[Number] = []
    operators: list[str] = []
    want_operand = True
    for place, (number, sign, stray) in enumerate(tokens, 1):
        if stray:
            raise _Problem(f"unexpected {ascii(stray)}")  # printable even where it is a lone surrogate
        if want_operand:
            if number:
                values.append(_read(number))
                want_operand = False
            elif sign == "(":
                operators.append(sign)
            elif sign == "-" or sign == "+":
                operators.append("negate" if sign == "-" else "keep")
            else:
                raise _Problem(f"a number is missing before '{sign}'")
        elif number or sign == "(":
            raise _Problem(f"an operator is missing before '{number or sign}'")
        elif sign == ")":
            while operators and operators[-1] != "(":
                _apply(operators.pop(), values)
            if not operators:
                raise _Problem("')' without '('")
            operators.pop()
        elif sign == "%" and _is_percentage(tokens[place : place + 1]):
            values[-1] = _divide(values[-1], 100)
        else:
            binding = _BINDING[sign]
            # Operators of equal binding run from left to right, except powers: 2**3**2 is 2**9.
            while operators and operators[-1] != "(":
                if _BINDING[operators[-1]] < binding or operators[-1] == sign == "**":
                    break
                _apply(operators.pop(), values)
            operators.append(sign)
            want_operand = True
    if want_operand:
        raise _Problem("a number is missing at the end")
    while operators:
        if operators[-1] == "(":
            raise _Problem("'(' without ')'")
        _apply(operators.pop(), values)
    return values[0]


def _is_percentage(following: list[tuple[str, str, str]]) -> bool:
    """Whether the `%` before these tokens is a percentage; an operand after it makes it a remainder."""
    if not following:
        return True
    number, sign, _ = following[0]
    if sign in ("+", "-"):
        raise _Problem(f"'%' before '{sign}' is ambiguous, put the percentage in parentheses")
    return not number and sign != "("


def _read(number: str) -> Number:
    number = number.replace(",", "")
    return Fraction(number.rstrip(".")) if "." in number else int(number)


def _apply(sign: str, values: list[Number]) -> None:
    """Replace the last one or two values by the operator's result."""
    right = values.pop()
    if sign == "negate":
        values.append(-right)
    elif sign == "keep":
        values.append(right)
    else:
        values[-1] = _BINARY[sign](values[-1], right)


def _divide(left: Number, right: Number) -> Number:
    # Whole quotients stay plain integers, which are about ten times faster than fractions.
    if isinstance(left, int) and isinstance(right, int) and left % right == 0:
        return left // right
    return Fraction(left) / right


def _power(base: Number, exponent: Number) -> Number:
    if exponent.denominator != 1:
        raise _Problem("the exponent must be a whole number")
    power = exponent.numerator
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and bits * abs(power) > MAX_BITS:
        raise _Problem("the power is too large")
    if base == 0 and power < 0:
        raise ZeroDivisionError
    # -1, 0 and 1 pass the bound above with any exponent, and the parity is all that matters to them.
    power = power if bits > 1 else power % 2 + 2 * (power != 0)
    return base**power if power >= 0 else Fraction(base) ** power


_BINARY: dict[str, Callable[[Any, Any], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
}


def _show(value: Number) -> str:
    """Write a number as calculate() promises: an integer, or a decimal without trailing zeros."""
    if isinstance(value, int) and -_LIMIT < value < _LIMIT:
        return str(value)
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
