r"""Numerals: texts that are a number, without anything left to compute.

| a numeral | none |
|---|---|
| `72`, `-72`, `+72`, `72.50`, `.5`, `5.` | `2+3`, `2^3`, `12!`, `|-5|`, `\sqrt{25}`, `\binom{4}{2}`, `7=6=5` |
| `1,234`, `1{,}234`, `1\,234`, `1 234`: groups of three digits | `1,2`, `1 2`, `12,34` |
| `3/4`, `\frac{3}{4}`, `\frac34`, `-\dfrac{6}{8}`, `(-3)/4` | `\frac{1+2}{4}`, `1/2/3`, `3 \div 4` |
| `1\frac{1}{2}`, `1 1/2`, a mixed number: 3/2 | `2\frac{3}{2}` |
| `1.5\times10^{3}`, `2\cdot10^5`, `10^5`, `1.5e3` | `15\times10^2`, `2\times3` |
| `x = 5`, `AB = 5`, `f(2) = 5`, `\boxed{5}`, `$5$`, `(5)`, `\text{5}` | `x+1 = 5`, `[5]` |
| `5\text{ cm}`, `5\text{ m}^2`, `5 dollars`, `\$5`, `5^\circ C` | `5\text{ million}`, `5\text{ or }6`, `5x`, `5\pi` |

A unit is left out, as the graders of MATH (arXiv:2103.03874) do it. `5\%` has the value 5 and the unit %: scoring.py
decides whether it is 5 or 0.05. A word that changes the number, such as "million", makes it no numeral.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from agent_gym.envs.retool.units import unit_name

_WHOLE = r"(?:[0-9]{1,3}(?:[, ][0-9]{3})+|[0-9]+)"
_SIGN = r"(?:[-+]\s*)?"
_NUMBER = re.compile(
    rf"""(?P<sign>{_SIGN}) (?P<currency>\\?\$|€|£)? \s* (?:
        (?P<mixed>{_WHOLE})? \s* \\[dtc]?frac
            \s*(?: \{{\s*(?P<top>{_SIGN}{_WHOLE})\s*\}} | (?P<top_digit>[0-9]) )
            \s*(?: \{{\s*(?P<bottom>{_SIGN}{_WHOLE})\s*\}} | (?P<bottom_digit>[0-9]) )
        | (?: (?P<whole>[0-9]+)[ ] )? (?P<over>{_WHOLE}) \s*/\s* (?P<under>{_WHOLE})
        | (?: (?P<digits>[1-9](?:\.[0-9]+)?) \s* (?:\\times|\\cdot|×) \s* )? 10 \s*\^\s*
            (?: \{{\s*(?P<power>{_SIGN}[0-9]{{1,3}})\s*\}} | (?P<power_digit>[0-9]) )
        | (?P<decimal>[0-9](?:\.[0-9]+)?[eE][-+]?[0-9]{{1,3}}|{_WHOLE}(?:\.[0-9]+)?|\.[0-9]+)
    )""",
    re.VERBOSE,
)
_UNIT = re.compile(
    r"""\s*(?: \\?%
        | (?:\^\s*(?:\\circ|\{\s*\\circ\s*\}) | ° | \\degree) 
            \s*(?:(?P<scale>[CF])|\\(?:text|mathrm)\{\s*(?P<scale_text>[CF])\s*\})?
        | (?: \\(?:text|textrm|mathrm|mbox)\s*\{(?P<quoted>[a-zA-Z\s/.-]+(?:\^\{?[23]\}?)?)\}
                | \s(?P<plain>[a-zA-Z]{2}[a-zA-Z\s/]*) )
          (?P<power> \s*\^\s*(?:[23]|\{[23]\}) | [²³] )?
    )""",
    re.VERBOSE,
)
_NO_UNITS = frozenset(
    "hundred thousand million billion trillion dozen half halve third quarter fifth tenth hundredth thousandth squared "
    "cubed factorial pi mod modulo or and to times plus minus over divided choose base sqrt log ln sin cos tan".split()
)
_LAYER = re.compile(
    r"\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]|\{(.*)\}|\((.*)\)"
    r"|(?P<name>(?:\\angle\s*)?\\?[a-zA-Z]+(?:_\w|_\{\w+\})?(?:\(\w+\))?)\s*=(?!.*=)(.*)"  # x, x_1, f(2), AB, \theta
    r"|\\(?:boxed|fbox|text|textbf|mathrm|mathbf)\s*\{(.*)\}|(.*)\.|\\displaystyle(?![a-zA-Z])(.*)",
    re.DOTALL,
)
_SIGNED = re.compile(r"\A(?:\(\s*(-?[0-9]+)\s*\)|(-?[0-9]+))\s*/\s*(?:\(\s*(-?[0-9]+)\s*\)|([0-9]+))(?![0-9.])")
_NOTHING = re.compile(r"\\!|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])")
_TYPED = str.maketrans("−\u2013\u2011\u202f\u2009\xa0", "---   ")
_SPACE = re.compile(r"\\[,;: ]|~|\\q?quad(?![a-zA-Z])")
_CURRENCIES = {"\\$": "dollar", "$": "dollar", "€": "euro", "£": "gbp"}


class Quantity(NamedTuple):
    """A number with its unit and the name in front of it, each "" where a text has none."""

    value: Fraction
    unit: str
    name: str


def numeral(text: str) -> Fraction | None:
    """Return the number that a text is, exactly; None if it is anything else, or has a denominator of 0."""
    found = quantity(text)
    return None if found is None else found.value


def quantity(text: str) -> Quantity | None:
    """Return the number that a text is, with its unit (`unit_name`) and its name; None if it is anything else."""
    text = _SPACE.sub(" ", _NOTHING.sub("", text)).replace("{,}", ",").translate(_TYPED).strip()
    name = ""
    while layer := _LAYER.fullmatch(text):
        if layer["name"]:
            name = re.sub(r"\s", "", layer["name"])
        found = (inner for at, inner in enumerate(layer.groups(), 1) if at != _LAYER.groupindex["name"])
        if layer[0].startswith("(") and "," in layer[0]:
            return None  # (1,234) is a pair
        text = next(inner for inner in found if inner is not None).strip()
    text = _SIGNED.sub(_unsigned, text, count=1)
    match = _NUMBER.match(text)
    if match is None:
        return None
    rest = text[match.end() :]
    unit = _UNIT.fullmatch(rest)
    words = re.findall("[a-z]+", (unit["quoted"] or unit["plain"] or "").lower()) if unit else []
    if (rest.strip() and not unit) or any(word.removesuffix("s") in _NO_UNITS for word in words):
        return None
    value = _value(match)
    if value is None:
        return None
    currency = _CURRENCIES.get(match["currency"] or "", "")
    return Quantity(value, (_stated(unit) if unit else "") or currency, name)


def _unsigned(fraction: re.Match[str]) -> str:
    """Write `(-3)/4` and `3/(-4)` as `-3/4`."""
    top, bottom = fraction[1] or fraction[2], fraction[3] or fraction[4]
    sign = "-" if top.startswith("-") != bottom.startswith("-") else ""
    return f"{sign}{top.lstrip('-')}/{bottom.lstrip('-')}"


def _stated(unit: re.Match[str]) -> str:
    words = unit["quoted"] or unit["plain"]
    if words:
        return unit_name(words + (unit["power"] or ""))
    return unit["scale"] or unit["scale_text"] or ("%" if "%" in unit[0] else "degree")


def _value(match: re.Match[str]) -> Fraction | None:
    part = {name: value and re.sub(r"[,\s]", "", value) for name, value in match.groupdict().items()}
    sign = -1 if part["sign"] == "-" else 1
    if part["decimal"]:
        return sign * Fraction(part["decimal"])
    exponent = part["power"] or part["power_digit"]
    if exponent:
        return sign * Fraction(part["digits"] or 1) * Fraction(10) ** int(exponent)
    top = int(part["over"] or part["top"] or part["top_digit"] or 0)
    bottom = int(part["under"] or part["bottom"] or part["bottom_digit"] or 0)
    whole = part["mixed"] or part["whole"]
    if not bottom or (whole and not (0 < top < bottom and int(whole))):
        return None
    return sign * (int(whole or 0) + Fraction(top, bottom))
