r"""Which answers to a word problem are right: more forms of a number than one numeral.

`number_match` (short_numbers.py) decides first: 72, 72.0, $72, 72 dollars, 1,234, 5 million. Where it finds no number,
or several, an answer may also be one of these, and nothing else in it may be a number:

| form | value |
|---|---|
| `3/4`, `3/4 cup`, `1 1/2`, `1½`, `\frac{3}{4}` | the fraction |
| `1 000`, `1 234 567.5` | groups of three digits |
| `18 cm^2`, `18 m**3`, `18 ft2` | 18: the exponent is the unit's |
| `1.8e1`, `1.8 × 10^1`, `1.8*10^1` | 18 |
| `5*3=15`, `5 * 3 = 15 apples` | 15, if the text before the sign has the same value |

Nothing is computed for the policy: `5*3` and `15 or 16` have no value.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from agent_gym.envs.gsm8k.calculator import calculate
from agent_gym.rewards import final_answer, number_match, parse_number
from agent_gym.short_numbers import reads_alone

_MAX_CHARS = 256
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_FRAC = re.compile(r"\\[dtc]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
_UNIT_POWER = re.compile(
    r"(?<=[0-9])(\s*(?![eE][0-9])[a-zA-Z]+)(?:\s*\^\s*\{?\s*[23]\s*\}?|\s*\*\*\s*[23]|[23])(?![0-9.^])"
)
_TEXT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}")
_SPREAD = re.compile(r"(?<![0-9.,/])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])")
_FORM = re.compile(
    r"""(?P<lead>^|[=:(\[{$\s*])(?P<sign>[-+]\s?)?(?:\\?\$\s?)?(?:
        (?:(?P<whole>[0-9]+)[ ])? (?P<top>[0-9]+(?:,[0-9]{3})*) \s*/\s* (?P<bottom>[0-9]+(?:,[0-9]{3})*)
        | (?P<digits>[0-9]+(?:\.[0-9]+)?) (?:[eE](?P<exponent>[-+]?[0-9]{1,2})
            | \s*(?:\*|×|\\times|\\cdot|·|x)\s* 10 \s*(?:\^|\*\*)\s* \{?\s*(?P<power>[-+]?[0-9]{1,2})\s*\}?)
    )(?!\.?[0-9]|[/^*])""",
    re.VERBOSE,
)
_SCALES = re.compile(r"\b(?:hundred|thousand|million|billion|trillion|percent)s?\b|%", re.IGNORECASE)
_EMPHASIS = re.compile(r"^(\*{1,3}|`+)([^*`]+)\1$")
_DASH = str.maketrans("−–‑", "---")


def stated_answer(text: str) -> str | None:
    """Return the answer that a turn states, as `final_answer` does, with its tags in any case."""
    return final_answer(_TAG.sub(lambda tag: f"<{tag[1]}answer>", text))


def same_number(answer: str | None, gold: str) -> float:
    """1.0 if the answer is the same number as the gold answer, else 0.0."""
    if right := number_match(answer, gold):
        return right
    wanted = parse_number(gold)
    if answer is None or wanted is None or len(answer) > _MAX_CHARS or parse_number(answer) is not None:
        return 0.0
    return float(_value(answer) == wanted)


def _value(text: str) -> Fraction | int | None:
    """Return the number that a text is in one of the further forms; None if it is in none."""
    text = _plain(text)
    left, sign, right = text.rpartition("=")
    if sign and any(mark in left for mark in "+*/×÷-") and re.search("[0-9]", left):
        value = _single(right)
        computed = _single(calculate(_PRODUCT.sub("*", left.strip().strip("$"))))
        return value if value is not None and computed == value else None
    return _single(text)


_PRODUCT = re.compile(r"×|\\times|\\cdot|·")


def _single(text: str) -> Fraction | int | None:
    text = _SPREAD.sub(lambda group: group[0].replace(" ", ""), _UNIT_POWER.sub(r"\1", text))
    if (number := parse_number(text)) is not None:
        return number
    found = list(_FORM.finditer(text))
    if len(found) != 1:
        return None
    match = found[0]
    rest = text[: match.start()] + text[match.end() :]
    if not reads_alone(text[: match.end("lead")], text[match.end() :], bool(match["sign"]), "$" in match[0]):
        return None
    if any(sign.isnumeric() for sign in rest) or _SCALES.search(rest) or text[: match.start()].rstrip().endswith("-"):
        return None
    return _signed(match)


def _signed(match: re.Match[str]) -> Fraction | None:
    if match["sign"] and match["sign"].strip() == "-" and match["lead"].isspace() and match.start() > 0:
        return None  # a dash or a minus
    sign = -1 if (match["sign"] or "").strip() == "-" else 1
    if match["digits"]:
        return sign * Fraction(match["digits"]) * Fraction(10) ** int(match["exponent"] or match["power"])
    top, bottom = (int(match[name].replace(",", "")) for name in ("top", "bottom"))
    if not bottom or (match["whole"] and not top < bottom):
        return None
    return sign * (int(match["whole"] or 0) + Fraction(top, bottom))


def _plain(text: str) -> str:
    """Write fractions with a slash: the ones of TeX and of Unicode."""
    text = _FRAC.sub(r" \1/\2", _TEXT.sub(r"\1", text.translate(_DASH)))
    for sign in set(text):
        parts = unicodedata.normalize("NFKC", sign)
        if unicodedata.category(sign) == "No" and "⁄" in parts:
            text = text.replace(sign, " " + parts.replace("⁄", "/"))
    return _EMPHASIS.sub(r"\2", text.replace("⁄", "/").strip()).strip()
