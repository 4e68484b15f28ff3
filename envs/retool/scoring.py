r"""Whether an answer is the gold answer.

Where the gold answer is a number, the answer must be a numeral of the same value: nothing is computed for the policy.
Other gold answers, such as `x^2+1`, `\sqrt{2}` or `(1, 2)`, are compared as strings and then by math-verify
(https://github.com/huggingface/Math-Verify), in another process. Its own time limits are alarms, which only a main
thread can have, and environments run in threads.

math-verify simplifies, so that it takes `\sqrt{18}` for `3\sqrt{2}`. It must not solve the problem or compute for
minutes, so an answer that it is asked about may have no operator such as `\sum` or `!`, and no power of numbers, that
the gold answer has not; see `computes`.

| a numeral | none |
|---|---|
| `72`, `-72`, `+72`, `72.50`, `.5`, `5.` | `2+3`, `2^3`, `12!`, `|-5|`, `\sqrt{25}`, `\binom{4}{2}`, `7=6=5` |
| `1,234`, `1{,}234`, `1\,234`, `1 234`: groups of three digits | `1,2`, `1 2`, `12,34` |
| `3/4`, `\frac{3}{4}`, `\frac34`, `-\dfrac{6}{8}` | `\frac{1+2}{4}`, `1/2/3`, `3 \div 4` |
| `1\frac{1}{2}`, a mixed number: 3/2 | `2\frac{3}{2}` |
| `1.5\times10^{3}`, `2\cdot10^5`, `10^5`, `1.5e3` | `15\times10^2`, `2\times3` |
| `x = 5`, `AB = 5`, `f(2) = 5`, `\boxed{5}`, `$5$`, `(5)`, `\text{5}` | `x+1 = 5`, `[5]` |
| `5\text{ cm}`, `5\text{ m}^2`, `5 dollars`, `\$5`, `5^\circ C` | `5\text{ million}`, `5\text{ or }6`, `5x`, `5\pi` |

A unit is left out, as the graders of MATH (arXiv:2103.03874) do it. So is the sign of a percentage: `5\%` is 5, and
neither 0.05 nor what `500\%` is. A word that changes the number, such as "million", makes it no numeral.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from fractions import Fraction

from agent_gym.envs.retool import checker
from agent_gym.errors import EnvFailure

MAX_ANSWER_CHARS = 1000  # no honest answer is longer, and a parser would be busy with it

_SPACING = re.compile(r"\\[!,;: ]|\\left(?![a-z])|\\right(?![a-z])|[\s$]|(?<=\d),(?=\d{3}(?!\d))")
_COMMAND = re.compile(r"\\[a-zA-Z]+|\\.|[!|]", re.DOTALL)
_OPERATORS = frozenset("!|") | {
    f"\\{name}"
    for name in "sum prod int iint iiint oint lim sup inf max min gcd lcm binom dbinom tbinom choose mod bmod pmod pod "
    "det exp log ln lg sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan operatorname lfloor rfloor "
    "lceil rceil vert lvert rvert Gamma".split()
}
_PAIRS = {"(": ")", "{": "}", "[": "]"}
_LAYOUT = re.compile(r"\\(?:[dt]?frac|sqrt|cdot|times|div|text|mathrm|mathbf|over)(?![a-zA-Z])")
_LAYOUT_AND_CONSTANTS = re.compile(rf"{_LAYOUT.pattern}|\\pi(?![a-zA-Z])|[ei]")
_SMALL = re.compile(r"[{(]*-?(?:\d{1,2}(?:[./]\d{1,2})?|\\[dt]?frac\{?\d{1,2}\}?\{?\d{1,2}\}?)[)}]*", re.ASCII)
_NEAR = 20  # characters around a `^` that are looked at where no bracket stands


def math_equal(answer: str | None, gold: str) -> bool:
    """Whether two answers are the same mathematical object. One that takes too much to compare is not equal.

    `EnvFailure` if the comparison could not be made, through no fault of the answer.
    """
    if answer is None or not answer.strip() or len(answer) > MAX_ANSWER_CHARS:
        return False
    number = numeral(gold)
    if number is not None:
        return numeral(answer) == number
    if normalize(answer) == normalize(gold):
        return True
    return not computes(answer, gold) and _compare(answer, gold)


def normalize(text: str) -> str:
    """Leave out what does not change the meaning: spaces, dollar signs, separators of thousands, a full stop."""
    return _SPACING.sub("", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").rstrip(".")


def computes(answer: str, gold: str) -> bool:
    r"""Whether an answer leaves to the reader what the gold answer does not: operators, equations, large powers.

    A power must be computed if neither base nor exponent has a variable, or if the exponent has none and is more than
    a number of two digits or a fraction of such numbers, as in `x^{9^{9^9}}`. One that the gold answer has is fine.
    """
    if (set(_COMMAND.findall(answer)) - set(_COMMAND.findall(gold))) & _OPERATORS:
        return True
    if answer.count("=") > max(1, gold.count("=")):
        return True
    for base, exponent in set(_powers(answer)) - set(_powers(gold)):
        # In a power of powers pi, e and i are numbers, too: `\pi^{\pi^{\pi}}`.
        layout = _LAYOUT if "^" not in base + exponent else _LAYOUT_AND_CONSTANTS
        free = [not any(map(str.isalpha, layout.sub("", part))) for part in (base, exponent)]
        if free[1] and (free[0] or not _SMALL.fullmatch(exponent)):
            return True
    return False


def _powers(text: str) -> Iterator[tuple[str, str]]:
    """Yield base and exponent of each power, without spaces; both are the brackets, number or sign next to the `^`."""
    text = normalize(text).replace("**", "^")
    partner: dict[int, int] = {}
    opened: list[int] = []
    for at, sign in enumerate(text):
        if sign in _PAIRS:
            opened.append(at)
        elif opened and sign == _PAIRS[text[opened[-1]]]:
            partner[at] = opened.pop()
            partner[partner[at]] = at
    for at, sign in enumerate(text):
        if sign == "^":
            before = re.search(r"(?:\\[a-zA-Z]+|[\d.]+|.)\Z", text[max(0, at - _NEAR) : at], re.DOTALL)
            after = re.match(r"-?(?:\\[a-zA-Z]+|[\d.]+|.)", text[at + 1 : at + _NEAR], re.DOTALL)
            base = text[partner[at - 1] : at] if at - 1 in partner else before[0] if before else ""
            exponent = text[at + 1 : partner[at + 1] + 1] if at + 1 in partner else after[0] if after else ""
            yield base, exponent


_pool = checker.Pool()


@functools.lru_cache(maxsize=4096)
def _compare(answer: str, gold: str) -> bool:
    for _ in range(checker.CHECKERS + 1):  # all of them may have been killed from outside, to free memory
        if verdict := _pool.ask(answer, gold):
            return verdict == "equal"
    raise EnvFailure(
        "answers cannot be compared: the process that runs math-verify ended or does not answer; try "
        f"`{sys.executable} {checker.__file__}`"
    )


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
    r"""\s*(?: \\?%
        | (?:\^\s*(?:\\circ|\{\s*\\circ\s*\}) | ° | \\degree) \s*(?:[CF]|\\(?:text|mathrm)\{\s*[CF]\s*\})?
        | (?: \\(?:text|textrm|mathrm|mbox)\s*\{(?P<quoted>[a-zA-Z\s/.-]+)\} | \s(?P<plain>[a-zA-Z]{2}[a-zA-Z\s/]*) )
          (?: \s*\^\s*(?:[23]|\{[23]\}) | [²³] )?
    )""",
    re.VERBOSE,
)
_NO_UNITS = frozenset(
    "hundred thousand million billion trillion dozen half halve third quarter fifth tenth hundredth thousandth squared "
    "cubed factorial pi mod modulo or and to times plus minus over divided choose base sqrt log ln sin cos tan".split()
)
_LAYER = re.compile(
    r"\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]|\{(.*)\}|\((.*)\)"
    r"|(?:\\angle\s*)?\\?[a-zA-Z]+(?:_\w|_\{\w+\})?(?:\(\w+\))?\s*=(?!.*=)(.*)"  # x, x_1, f(2), AB, \theta
    r"|\\(?:boxed|fbox|text|textbf|mathrm|mathbf)\s*\{(.*)\}|(.*)\.|\\displaystyle(?![a-zA-Z])(.*)",
    re.DOTALL,
)
_NOTHING = re.compile(r"\\!|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])")
_TYPED = str.maketrans("−\u2013\u2011\u202f\u2009\xa0", "---   ")
_SPACE = re.compile(r"\\[,;: ]|~|\\q?quad(?![a-zA-Z])")


def numeral(text: str) -> Fraction | None:
    """Return the number that a text is, exactly; None if it is anything else, or has a denominator of 0."""
    text = _SPACE.sub(" ", _NOTHING.sub("", text)).replace("{,}", ",").translate(_TYPED).strip()
    while layer := _LAYER.fullmatch(text):
        text = next(inner for inner in layer.groups() if inner is not None).strip()
    match = _NUMBER.match(text)
    if match is None:
        return None
    rest = text[match.end() :]
    unit = _UNIT.fullmatch(rest)
    words = re.findall("[a-z]+", (unit["quoted"] or unit["plain"] or "").lower()) if unit else []
    if (rest.strip() and not unit) or any(word.removesuffix("s") in _NO_UNITS for word in words):
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
