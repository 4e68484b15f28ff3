r"""Whether an answer is the gold answer.

Both are written in TeX first (typed.py), so that Python's output, Unicode and Markdown are read. Where the gold answer
is a number, the answer must be a numeral of the same value (numerals.py): nothing is computed for the policy. Other
gold answers, such as `x^2+1`, `\sqrt{2}`, `(1, 2)` or `n \text{ even}`, are read completely (reader.py) and compared
part by part, values by value, in another process (comparing.py).

`\sqrt{18}` is `3\sqrt{2}`. But a comparison must not solve the problem or compute for minutes, so an answer may have no
operator such as `\sum` or `!`, and no power of numbers, that the gold answer has not; see `computes`.

A unit, or a name as in `x = 5`, may be left out; where both answers have one it must be the same. A sign of percent is
a unit where the gold answer has it or the question speaks of percents, else a hundredth: `5\%` is 0.05 and not 5.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator

from agent_gym.envs.retool import checker
from agent_gym.envs.retool.numerals import Quantity, quantity
from agent_gym.envs.retool.numerals import numeral as numeral
from agent_gym.envs.retool.reader import read
from agent_gym.envs.retool.tokens import word_of
from agent_gym.envs.retool.typed import to_tex
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
_ROOT = re.compile(r"[{(]*-?(?:1/[2-9]|0?\.5|\\frac\{?1\}?\{?[2-9]\}?)[)}]*", re.ASCII)
_PERCENT = re.compile(r"percent|per cent|%", re.IGNORECASE)
_NEAR = 20  # characters around a `^` that are looked at without a bracket


def math_equal(answer: str | None, gold: str, question: str = "") -> bool:
    """Whether two answers are the same mathematical object. One that takes too much to compare is not equal.

    Args:
        answer: as it was stated; None for none.
        gold: the right answer.
        question: decides whether a sign of percent is a unit, which the gold answer leaves out.

    `EnvFailure` if the comparison could not be made, through no fault of the answer.
    """
    if answer is None or not answer.strip() or len(answer) > MAX_ANSWER_CHARS:
        return False
    given, wanted = to_tex(answer, gold), to_tex(gold, gold)
    number = quantity(wanted)
    if number is not None:
        return _same_quantity(quantity(given), number, bool(_PERCENT.search(question)))
    if _tight(given) == _tight(wanted) or _words(given) == _words(wanted) != []:
        return True
    return not computes(given, wanted) and _compare(given, wanted)


def _same_quantity(given: Quantity | None, gold: Quantity, in_percent: bool) -> bool:
    """Whether two numbers are the same, and their units and names, where both state them."""
    if given is None:
        return False
    if given.unit == "%" and not gold.unit and not in_percent:
        return given.value / 100 == gold.value
    if given.value != gold.value:
        return False
    return all(not one or not other or one == other for one, other in zip(given[1:], gold[1:], strict=True))


def _tight(text: str) -> str:
    """Leave out spaces, but not the ones between letters or digits."""
    return re.sub(r"(?<![a-zA-Z0-9]) | (?![a-zA-Z0-9])", "", " ".join(text.split()))


def _words(text: str) -> list[tuple[str, str]]:
    r"""Return the words of a text that is nothing else: `\text{Evelyn}` and `Evelyn` are the same."""
    plain = _TEXT.sub(r" \1 ", text)
    return [word_of(word) for word in plain.split()] if re.fullmatch(r"[a-zA-Z\s]{2,}", plain.strip()) else []


def normalize(text: str) -> str:
    """Leave out characters without a meaning: spaces, dollar signs, separators of thousands, a full stop."""
    return _SPACING.sub("", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").rstrip(".")


def computes(answer: str, gold: str) -> bool:
    r"""Whether an answer leaves to the reader work that the gold answer does not: operators, equations, large powers.

    A power must be computed if neither base nor exponent has a variable, or if the exponent has none and is more than
    a number of two digits or a fraction of such numbers, as in `x^{9^{9^9}}`. One that the gold answer has is fine.
    """
    if (set(_COMMAND.findall(answer)) - set(_COMMAND.findall(gold))) & _OPERATORS:
        return True
    if any(len(_EQUALS.findall(part)) > max(1, gold.count("=")) for part in _ITEM_ENDS.split(answer)):
        return True
    for base, exponent in set(_powers(answer)) - set(_powers(gold)):
        # In a power of powers pi, e and i are numbers, too: `\pi^{\pi^{\pi}}`.
        layout = _LAYOUT if "^" not in base + exponent else _LAYOUT_AND_CONSTANTS
        if _ROOT.fullmatch(exponent):
            continue  # 2^{1/2} is \sqrt{2} in other words
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
_TEXT = re.compile(r"\\(?:text|mbox|hbox|textbf|textrm)\s*\{([^{}]*)\}")
_EQUALS = re.compile(r"(?<![<>!])=")
_ITEM_ENDS = re.compile(r"[,;]|\b(?:and|or)\b")


@functools.lru_cache(maxsize=4096)
def _compare(answer: str, gold: str) -> bool:
    trees = [read(text) for text in (answer, gold)]
    if trees[0] == trees[1]:
        return True
    for _ in range(checker.CHECKERS + 1):  # all of them may have been killed from outside, to free memory
        if verdict := _pool.ask({"trees": trees, "texts": [answer, gold]}):
            return verdict == "equal"
    raise EnvFailure(
        "answers cannot be compared: the process that compares them ended or does not answer; try "
        f"`{sys.executable} {checker.SCRIPT}`"
    )
