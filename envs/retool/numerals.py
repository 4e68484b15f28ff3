r"""Reads an answer that is a number: a numeral, and nothing that would have to be computed.

| read | not read |
|---|---|
| `72`, `-72`, `+72`, `72.50`, `.5`, `5.` | `2+3`, `2^3`, `12!`, `|-5|`, `\sqrt{25}`, `\binom{4}{2}`, `7=6=5` |
| `1,234`, `1{,}234`, `1\,234`, `1 234`: groups of three digits | `1,2`, `1 2`, `12,34` |
| `3/4`, `\frac{3}{4}`, `\frac34`, `-\dfrac{6}{8}` | `\frac{1+2}{4}`, `1/2/3`, `3 \div 4` |
| `1\frac{1}{2}`, a mixed number: 3/2 | `2\frac{3}{2}` |
| `1.5\times10^{3}`, `2\cdot10^5`, `10^5`, `1.5e3` | `15\times10^2`, `2\times3` |
| `x = 5`, `\boxed{5}`, `$5$`, `(5)`, `\text{5}` | `x+1 = 5`, `[5]` |
| `5\text{ cm}`, `5\text{ m}^2`, `5 dollars`, `\$5`, `60^\circ` | `5\text{ million}`, `5\text{ or }6`, `5x`, `5\pi` |

A unit is left out, as the graders of MATH (arXiv:2103.03874) do it. So is the sign of a percentage: `5\%` is 5, and
neither 0.05 nor what `500\%` is. A word that changes the number, such as "million", makes it no numeral.
"""

from __future__ import annotations

import re
from fractions import Fraction

_WHOLE = r"(?:[0-9]{1,3}(?:[, ][0-9]{3})+|[0-9]+)"
_SIGN = r"(?:[-+]\s*)?"
_NUMBER = re.compile(
    rf"""(?P<sign>{_SIGN}) (?:\\?\$|€|£)? \s* (?:
        (?P<mixed>{_WHOLE})? \s* \\[dtc]?frac
            \s*(?: \{{\s*(?P<top>{_SIGN}{_WHOLE})\s*\}} | (?P<top_digit>[0-9]) )
            \s*(?: \{{\s*(?P<bottom>{_SIGN}{_WHOLE})\s*\}} | (?P<bottom_digit>[0-9]) )
        | (?P<over>{_WHOLE}) \s*/\s* (?P<under>{_WHOLE})
        | (?: (?P<digits>[1-9](?:\.[0-9]+)?) \s* (?:\\times|\\cdot|×) \s* )? 10 \s*\^\s*
            (?: \{{\s*(?P<power>{_SIGN}[0-9]{{1,3}})\s*\}} | (?P<power_digit>[0-9]) )
        | (?P<decimal>[0-9](?:\.[0-9]+)?[eE][-+]?[0-9]{{1,3}}|{_WHOLE}(?:\.[0-9]+)?|\.[0-9]+)
    )""",
    re.VERBOSE,
)
_UNIT = re.compile(
    r"""\s*(?: \\?% | \^\s*(?:\\circ|\{\s*\\circ\s*\}) | ° | \\degree
        | (?: \\(?:text|textrm|mathrm|mbox)\s*\{(?P<quoted>[a-zA-Z\s/.-]+)\} | \s(?P<plain>[a-zA-Z]{2}[a-zA-Z\s/]*) )
          (?: \s*\^\s*(?:[23]|\{[23]\}) )?
    )""",
    re.VERBOSE,
)
_NO_UNITS = frozenset(
    "hundred thousand million billion trillion dozen half halve third quarter fifth tenth hundredth thousandth squared "
    "cubed factorial pi mod modulo or and to times plus minus over divided choose base sqrt log ln sin cos tan".split()
)
_LAYER = re.compile(
    r"\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]|\{(.*)\}|\((.*)\)|[a-zA-Z]\s*=(?!.*=)(.*)"
    r"|\\(?:boxed|fbox|text|textbf|mathrm|mathbf)\s*\{(.*)\}|(.*)\.|\\displaystyle(?![a-zA-Z])(.*)",
    re.DOTALL,
)
_NOTHING = re.compile(r"\\!|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])")
_SPACE = re.compile(r"\\[,;: ]|~|\\q?quad(?![a-zA-Z])")


def numeral(text: str) -> Fraction | None:
    """Return the number that a text is, exactly; None if it is anything else, or has a denominator of 0."""
    text = _SPACE.sub(" ", _NOTHING.sub("", text)).replace("{,}", ",").replace("−", "-").strip()
    while layer := _LAYER.fullmatch(text):
        text = next(inner for inner in layer.groups() if inner is not None).strip()
    match = _NUMBER.match(text)
    if match is None or not _is_unit(text[match.end() :]):
        return None
    part = {name: value and re.sub(r"[,\s]", "", value) for name, value in match.groupdict().items()}
    sign = -1 if part["sign"] == "-" else 1
    if part["decimal"]:
        return sign * Fraction(part["decimal"])
    exponent = part["power"] or part["power_digit"]
    if exponent:
        return sign * Fraction(part["digits"] or 1) * Fraction(10) ** int(exponent)
    top = int(part["over"] or part["top"] or part["top_digit"] or 0)
    bottom = int(part["under"] or part["bottom"] or part["bottom_digit"] or 0)
    if not bottom or (part["mixed"] and not 0 < top < bottom):
        return None
    return sign * (int(part["mixed"] or 0) + Fraction(top, bottom))


def _is_unit(text: str) -> bool:
    if not text.strip():
        return True
    match = _UNIT.fullmatch(text)
    words = re.findall("[a-z]+", (match["quoted"] or match["plain"] or "").lower()) if match else []
    return match is not None and not any(word.removesuffix("s") in _NO_UNITS for word in words)
