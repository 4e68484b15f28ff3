r"""The one number of a short answer, exactly: `72.0`, `-$1,200`, `18 dollars`, `5 million`, `negative 5`.

A sign next to the number may change its reading: `e50`, `/28`, `7!`, `√7`, `2π`, `7k`, `7 and a half`, `more than 7`.
Such an answer has no number here. Left alone are units, currencies, brackets, quotes, punctuation and markup, as in
`**Answer:** $7.`, `\boxed{7\text{ cm}}` and `7/hour`.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

# A comma belongs to a number only as a thousands separator, otherwise "1,2" would pass for 12. A minus sign before a
# blank is a dash in "Total - 5", and a sign in "x = - 5" and "the answer is - 5". After a letter it is a hyphen, as in
# GPT-4.
_NUMBER = re.compile(
    r"""(?P<sign>(?:(?<![^=:(\[{$\\])|(?<=[=:][ ])|(?<=\bis[ ]))[-−\u2013\u2011][ ]*|(?<![a-z])[-−\u2013\u2011])?
    (?:\\?\$\s*)? (?P<digits>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+) %?
    (?P<scales>(?:[\s-]*(?:hundred|thousand|million|billion|trillion)s?\b(?!-))*)""",
    re.VERBOSE,
)
# The comma as TeX and typesetters write it: {,} ,\! \, and narrow or fixed spaces.
_SEPARATOR = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\,|[\u2009\u202f\xa0])(?=\d{3}(?!\d))")
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_MAX_CHARS = 256
_HERE = "\ue000"  # in the place of the number, of the private use area
_MARKUP: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"</?[a-zA-Z][^<>]*>"), " "),
    (re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox|boxed|bf|rm)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?"), "°"),
    (
        re.compile(
            r"\\(?:left|right|quad|qquad|displaystyle|therefore|approx|simeq|sim|implies|to|[Rr]ightarrow|pounds|euro"
            r"|text|boxed)(?![a-zA-Z])|\\[][(),;:!> $%]|\\\\"
        ),
        " ",
    ),
    (re.compile(r"(\*{1,3}|_{1,3}|~~|`+|\|)(?![\s*_~|`])([^\n]+?)(?<!\s)\1"), r"\2"),
]
_UNIT = "(?:[mghslLcCFdpt]|[a-zA-Zµμ]{2,})"
_CURRENCY = r"(?:usd|eur|gbp|inr|cad|aud|nzd|jpy|cny|rmb|chf|php|rs\.?)"
_LEFT = re.compile(
    rf"""(?: (?<![a-zA-Z])(?!{_CURRENCY}$)[a-zA-Z]{{1,2}} | [\u0370-\u03ff_,.!%&@]            # e50  πr7  ,5  !5
        | (?:[<>!]=|(?<![=-])>|[*/×÷^√∛∜±∓∞<≤≥≠‰|&\\·⋅∙])\s*                              # /28  > 7, but not => 7
        | (?:^|[=(+*/-])\s*[a-zA-Z]\s*[-−–]\s*                                              # x - 7
        | [-−–][\s+]*\+\s* | [\w)\]}}]\s*\+\s+ | [\w)\]}}]\+                                 # -+7, x + 7
        | \\[a-zA-Z]+[\s({{\[]*                                                             # \sqrt{{7
        | \b(?:a?(?:sqrt|cbrt|root|log|ln|lg|exp|sin|cos|tan|cot|sec|csc|factorial|half|twice|double|triple|thrice
            |thirds?|quarters?|square|cube|inverse|reciprocal|modulo|mod|not|never|than)|\w+n['’]t)(?:\s+of)?[\s({{\[]*
        )$""",
    re.VERBOSE | re.IGNORECASE,
)
_RIGHT = re.compile(
    rf"""(?: [&@_‰] | [\u0370-\u03bb\u03bd-\u03ff]                                         # 2π
        | \s*(?:[kK]|[MBT]|mn|mln|bn|tn|mil|lakhs?|crores?)(?![a-zA-Z])                     # 7k, 7 M
        | (?!{_UNIT})[a-zA-Z](?![a-zA-Z]) | [xyzie]{{2,}}(?![a-zA-Z])                       # 7x, 7xy
        | \s+(?!{_UNIT})[a-zA-Z]\s*(?:[^\s\w'’]|$)                                          # 7 x
        | \s*[*^×÷√π∞±∓·⋅∙<>≤≥≠|&+\\] | \s*/(?!\s*{_UNIT}(?![a-zA-Z]))                       # 7*, 7/, but 7/hour
        | \s*=\s*$ | \s*[-−–](?:\s*$|\s*[a-zA-Z](?![a-zA-Z])|[^\w\s])                            # 7=, 7-, 7-x
        | \s*[({{\[]\s*[a-zA-Z]\s*(?:[-+*/^]|[)}}\]])                                       # 7(x+1)
        | [\s-]*(?:squared|cubed|factorial|halves|choose|modulo|mod|pi|point|plus|minus|divided|multiplied
            |(?:fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth)s?|thirds
            |or\s+(?:more|less|fewer|over|under|above|below)
            |and\s+(?:a|an|one|two|three|four|five)[\s-]+(?:half|third|quarter|fourth|fifth|sixth|eighth|tenth)s?
            |and\s+(?:half|quarter)|to\s+the\s+\w+\s+power|to\s+the\s+power)\b
        )""",
    re.VERBOSE,
)
_NEGATIVE = re.compile(r"\b(?:minus|negative)\s+(?:\\?\$\s*)?$", re.IGNORECASE)


def parse_number(text: str) -> Fraction | int | None:
    """Read the one number of a short answer ("72.0", "-$1,200", "18 dollars", "5 million", "20%" as 20), exactly.

    None without a number, for more than one, for one whose reading a neighbouring sign changes, or for more than 256
    characters.
    """
    found = _number(text)
    return None if found is None else found[0] * found[1]


def _number(text: str) -> tuple[Fraction | int, int] | None:
    """Read the one number of a short answer, and the scale of the words after it."""
    if len(text) > _MAX_CHARS:
        return None
    cased = _SEPARATOR.sub(",", text)
    text = cased.lower()
    found = list(_NUMBER.finditer(text))
    if len(found) != 1 or text[found[0].end("digits") :].lstrip()[:1].isnumeric():  # 5² and 5½ are not 5
        return None
    match = found[0]
    whole = cased if len(cased) == len(text) else text  # some capitals have small letters of another length
    before, after = whole[: match.start()], whole[match.end() :]
    if negative := _NEGATIVE.search(before):
        before = before[: negative.start()]
    currency = "$" in match[0]
    if (negative and match["sign"]) or not reads_alone(before, after, bool(match["sign"]), currency):
        return None
    digits = match["digits"].replace(",", "")
    try:
        value = Fraction(digits) if "." in digits else int(digits)  # the same value, ten times faster
    except ValueError:  # digits of other scripts match \d but are not numbers here
        return None
    words = re.findall("[a-z]+", match["scales"])
    scale = math.prod(_SCALES[word.removesuffix("s")] for word in words)
    return -value if match["sign"] or negative else value, scale


def reads_alone(before: str, after: str, signed: bool = False, currency: bool = False) -> bool:
    """Whether a number means the same without the text around it.

    Args:
        before: the text in front of the number.
        after: the text that follows it.
        signed: whether the number has a sign, which takes no second one.
        currency: whether the number begins with a sign of currency, which may follow letters: US$5.
    """
    text = before + _HERE + after
    for pattern, into in _MARKUP:
        text = pattern.sub(into, text)
    before, _, after = text.partition(_HERE)
    if currency:
        before = re.sub(r"(?<![a-zA-Z])[a-zA-Z]{1,3}$", "", before)
    if before.rstrip()[-1:].isnumeric() or (signed and before.rstrip()[-1:] in tuple("+-−–±")):
        return False
    if after.startswith("!") and not re.search(r"[^\W\d_]", before + after):  # a factorial, or a cry in a sentence
        return False
    return not _LEFT.search(before) and not _RIGHT.match(after)


def number_match(answer: str | None, gold: str) -> float:
    """1.0 if the answer is the same number as the gold answer, else 0.0.

    The matcher that many GSM8K trainers use (verl's `reward_score/gsm8k.py`) compares strings, so that "72.0" loses
    against "72". A word of scale may be the unit that was asked for: "5 million" is 5, too.
    """
    found = None if answer is None else _number(answer)
    if found is None:
        return 0.0
    value, scale = found
    return float(answer == gold or parse_number(gold) in (value, value * scale))
