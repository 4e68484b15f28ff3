"""The values of expressions: whether two trees of reader.py are the same number or the same function.

Numbers without variables are compared exactly where they are rational, else with as many digits as their sizes ask for,
so that `1/2006!` is not `1/2004!` and `1+e^{-500}` is not 1. Expressions with variables are compared at points: two
that agree in 60 digits at 9 of them are the same function. This file imports nothing of its package: comparing.py runs
it in a separate process, which bounds its time.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import Any

import mpmath

Node = list[Any]
Number = Any  # a Fraction, or a number of mpmath

SCALARS = frozenset("n based c v + * / ^ neg pm f ap unit".split())
"""Kinds of nodes that have a value."""

_SIZES = (1, 1, 1, 1, 1, 10, 10, 100, 1000)  # of the variables at the points: 0.14 to 2.14 times these
_POINTS = len(_SIZES)
_DIGITS = 60
_RATIO_DIGITS = 600
_MAX_DIGITS = 20_000  # of the sizes of numbers in one expression
_MAX_BITS = 4_000_000  # of an exact power
_FEWEST_DIGITS = 12  # of a decimal that is compared with a number that has no exact one


class NoValueError(Exception):
    """An expression has no value at a point, or none that can be computed."""


class ValueComparer:
    """The value of each expression at one point: `point` and the name of a variable say which number that is.

    `complex_numbers` says whether the expression is one of complex numbers; else a root of a negative number has no
    value. `size` is the largest size of a number so far, as a count of digits.
    """

    def __init__(self, point: int, complex_numbers: bool) -> None:
        self.point, self.complex_numbers, self.size = point, complex_numbers, 0.0

    def of(self, node: Node) -> Number:
        value = self._of(node)
        if isinstance(value, Fraction):
            bits = max(value.numerator.bit_length(), value.denominator.bit_length())
            self.size = max(self.size, bits * 0.30103)
        else:
            if not mpmath.isfinite(value) or (not self.complex_numbers and mpmath.im(value) != 0):
                raise NoValueError
            value = value if self.complex_numbers else mpmath.re(value)
            if value != 0:
                self.size = max(self.size, abs(float(mpmath.mag(value))) * 0.30103)
        return value

    def _of(self, node: Node) -> Number:
        kind = node[0]
        if kind == "n":
            return Fraction(node[1])
        if kind == "c":
            return self._constant(node[1])
        if kind == "v":
            return self._variable(node[1])
        if kind == "ap":
            values = [self.of(argument) for argument in node[2:]]
            return self._variable(f"{node[1]}({','.join(mpmath.nstr(_real(value), 25) for value in values)})")
        if kind == "unit":
            if node[1] != "degree":
                raise NoValueError
            return _real(self.of(node[2])) * mpmath.pi / 180
        if kind == "f":
            return self._function(node[1], node[2:])
        parts = [self.of(part) for part in node[1:] if isinstance(part, list)]
        if kind == "^":
            return self._power(parts[0], parts[1])
        if not all(isinstance(part, Fraction) for part in parts):
            parts = [_real(part) for part in parts]
        if kind == "+":
            return sum(parts[1:], parts[0])
        if kind == "*":
            return parts[0] * parts[1]
        if kind == "neg":
            return -parts[0]
        if kind == "/":
            if parts[1] == 0:
                raise NoValueError
            return parts[0] / parts[1]
        raise NoValueError

    def _constant(self, name: str) -> Number:
        if name == "i" and self.complex_numbers:
            return mpmath.mpc(0, 1)
        if name in ("pi", "e"):
            return +mpmath.pi if name == "pi" else mpmath.exp(1)
        raise NoValueError

    def _variable(self, name: str) -> Number:
        digest = hashlib.sha256(f"{self.point} {name}".encode()).digest()
        size = Fraction(int.from_bytes(digest[:6], "big"), 1 << 47) + Fraction(1, 7)
        size *= _SIZES[self.point]
        return size if self.point < 2 or digest[7] % 2 else -size

    def _power(self, base: Number, exponent: Number) -> Number:
        if isinstance(exponent, Fraction) and exponent.denominator == 1 and isinstance(base, Fraction):
            if base == 0 and exponent < 0:
                raise NoValueError
            bits = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
            if bits * abs(exponent) > _MAX_BITS:
                raise NoValueError
            if abs(base) == 1:
                return base if exponent.numerator % 2 else base * base
            return base**exponent.numerator
        if isinstance(exponent, Fraction) and exponent.denominator % 2 and not self.complex_numbers:
            real = _real(base)
            if real < 0:  # the real root of a negative number
                root = mpmath.power(-real, _real(exponent))
                return -root if exponent.numerator % 2 else root
        if base == 0:
            raise NoValueError
        return mpmath.power(_real(base), _real(exponent))

    def _function(self, name: str, nodes: list[Node]) -> Number:
        base = [self.of(node[1]) for node in nodes if node[0] == "base"]
        values = [self.of(node) for node in nodes if node[0] != "base"]
        if name == "\\sqrt":
            exact = _exact_root(*values)
            return exact if exact is not None else self._power(values[0], 1 / Fraction(values[1]))
        if name == "|" and isinstance(values[0], Fraction):
            return abs(values[0])
        if name == "!" and isinstance(values[0], Fraction) and values[0].denominator == 1 and 0 <= values[0] <= 20_000:
            return Fraction(math.factorial(int(values[0])))
        if name in ("\\lfloor", "\\lceil", "\\gcd", "\\lcm", "\\max", "\\min"):
            return _exact(name, values)
        function = _FUNCTIONS.get(name)
        if function is None or (base and name != "\\log"):
            raise NoValueError
        numbers = [_real(value) for value in (*values, *base)]
        try:
            return function(*numbers)
        except (ValueError, ZeroDivisionError, TypeError) as error:
            raise NoValueError from error


def _real(value: Number) -> Number:
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _exact_root(value: Number, degree: Number) -> Fraction | None:
    """Return the root of a rational number if it is one, too."""
    if not isinstance(value, Fraction) or not isinstance(degree, Fraction) or degree.denominator != 1:
        if not isinstance(degree, Fraction) or degree == 0:
            raise NoValueError
        return None
    count = degree.numerator
    if not 2 <= count <= 99:
        raise NoValueError
    if value < 0 and count % 2 == 0:
        return None
    roots = []
    for part in (abs(value.numerator), value.denominator):
        with mpmath.workdps(part.bit_length() // 3 + 20):
            root = int(mpmath.nint(mpmath.root(part, count)))
        if root**count != part:
            return None
        roots.append(root)
    return Fraction(-roots[0] if value < 0 else roots[0], roots[1])


def _exact(name: str, values: list[Number]) -> Number:
    if name in ("\\max", "\\min"):
        return (max if name == "\\max" else min)(values, key=_real)
    if name in ("\\lfloor", "\\lceil"):
        return Fraction(int((mpmath.floor if name == "\\lfloor" else mpmath.ceil)(_real(values[0]))))
    if not all(isinstance(value, Fraction) and value.denominator == 1 for value in values):
        raise NoValueError
    return Fraction((math.gcd if name == "\\gcd" else math.lcm)(*(value.numerator for value in values)))


_FUNCTIONS: dict[str, Any] = {
    **{f"\\{name}": getattr(mpmath, name) for name in "sin cos tan cot sec csc sinh cosh tanh exp".split()},
    **{f"\\arc{name}": getattr(mpmath, f"a{name}") for name in ("sin", "cos", "tan")},
    "\\ln": mpmath.ln,
    "\\lg": mpmath.log10,
    "\\log": lambda value, base=10: mpmath.log(value) / mpmath.log(base),
    "\\binom": mpmath.binomial,
    "!": mpmath.factorial,
    "|": abs,
}


def same_value(one: Node, other: Node) -> bool:
    """Whether two expressions are the same number, or the same function."""
    if one == other or "v" in (one[0], other[0]):
        return one == other  # a letter may be the name of a choice: 1A is not A
    for a, b in ((one, other), (other, one)):
        if _infinity(a):
            return _infinity(a) == _infinity(b)
        if a[0] == "based":
            return b[0] == "based" and (a[1].lstrip("0"), a[2]) == (b[1].lstrip("0"), b[2])
    imaginary = _imaginary(one) or _imaginary(other)
    agreed = 0
    for point in range(_POINTS if names_in(one) or names_in(other) else 1):
        verdict = _agree(one, other, point, imaginary)
        if verdict is False:
            return False
        agreed += verdict is True
    return agreed > 0


def _agree(one: Node, other: Node, point: int, imaginary: bool) -> bool | None:
    """Whether two expressions have the same value at a point; None where neither has one."""
    digits: float = _DIGITS
    while True:
        found: list[Number | None] = []
        size = 0.0
        with mpmath.workdps(int(digits)):
            for node in (one, other):
                values = ValueComparer(point, imaginary)
                try:
                    found.append(values.of(node))
                except (NoValueError, OverflowError):
                    found.append(None)
                size = max(size, values.size)
            if size > _MAX_DIGITS:
                return False
            if 2 * size + _DIGITS > digits:
                digits = 2 * size + _DIGITS
                continue
            a, b = found
            if a is None or b is None:
                return None if a is b else False
            if isinstance(a, Fraction) and isinstance(b, Fraction):
                return a == b
            for decimal, value, node in ((a, b, one), (b, a, other)):
                if (shown := _decimal_digits(node)) and not isinstance(value, Fraction):
                    gap = abs(_real(decimal) - value)
                    return shown >= _FEWEST_DIGITS and gap <= abs(value) * mpmath.mpf(10) ** (1 - min(shown, 15))
            a, b = _real(a), _real(b)
            return bool(abs(a - b) <= max(abs(a), abs(b)) * mpmath.mpf(10) ** (15 - mpmath.mp.dps))


def _decimal_digits(node: Node) -> int:
    """Return how many digits a decimal such as -3.14159 shows; 0 if the node is none."""
    if node[0] == "neg":
        node = node[1]
    if node[0] != "n" or "." not in node[1]:
        return 0
    return len(node[1].lower().partition("e")[0].replace(".", "").lstrip("0"))


def _infinity(node: Node) -> int:
    if node == ["c", "inf"]:
        return 1
    return -1 if node == ["neg", ["c", "inf"]] else 0


def names_in(node: Any) -> set[str]:
    """Return the variables and unknown functions of an expression."""
    if not isinstance(node, list) or not node:
        return set()
    own = {node[1]} if node[0] in ("v", "ap") else set()
    return own.union(*(names_in(part) for part in node[1:]))


def _imaginary(node: Any) -> bool:
    return isinstance(node, list) and (node == ["c", "i"] or any(map(_imaginary, node)))


def ratios(one: tuple[Node, Node], other: tuple[Node, Node]) -> list[Any] | None:
    """Return, at each point, how many times the difference of the first pair is that of the other; None without one."""
    found = []
    imaginary = _imaginary(list(one)) or _imaginary(list(other))
    with mpmath.workdps(_RATIO_DIGITS):
        for point in range(_POINTS):
            values = ValueComparer(point, imaginary)
            try:  # a ratio of numbers so large or small would not be exact
                above, below = (_real(values.of(pair[0]) - values.of(pair[1])) for pair in (one, other))
            except (NoValueError, OverflowError, TypeError):
                continue
            if above == 0 or below == 0 or values.size > _RATIO_DIGITS / 3:
                return None
            found.append(above / below)
    return found or None


def real(node: Node, digits: int) -> Any | None:
    """Return a real number without variables, or an infinity, in so many digits; None for another thing."""
    if sign := _infinity(node):
        return sign * mpmath.inf
    if node[0] not in SCALARS or names_in(node) or _imaginary(node):
        return None
    with mpmath.workdps(digits):
        try:
            return _real(ValueComparer(0, False).of(node))
        except (NoValueError, OverflowError):
            return None
