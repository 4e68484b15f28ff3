"""Reward terms: pure functions from text to a number.

An environment sums weighted terms and reports each by name, so that a curve that goes up can be told from a format
that went up. None of them sees the environment; each names its source.
"""

from __future__ import annotations

import re
from fractions import Fraction

# No tag inside an answer, and nothing to backtrack into: `<answer>(.*?)</answer>` takes minutes over a megabyte of
# opening tags, which is one action that a policy may well write.
_ANSWER = re.compile(r"<answer>([^<]*+(?:<(?!/?answer>)[^<]*+)*+)</answer>")
# A comma belongs to a number only as a thousands separator, otherwise "1,2" would pass for 12.
_NUMBER = re.compile(r"[-−]?\$?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)%?")
_MAX_ANSWER_CHARS = 256


def final_answer(text: str) -> str | None:
    """Return the final answer that a turn states, or None.

    It is the content of the last `<answer>...</answer>`, else the rest of the line after the last `####`, which is
    how GSM8K ends its own solutions (arXiv:2110.14168).
    """
    tagged = _ANSWER.findall(text)
    if tagged:
        return tagged[-1].strip()
    _, mark, rest = text.rpartition("####")
    return rest.strip().split("\n")[0].strip() if mark else None


def parse_number(text: str) -> Fraction | int | None:
    """Read the one number of a short answer: "72", "72.0", "$1,200", "-3", "18 dollars", "20%" (as 20).

    Returns:
        The exact value, or None if there is no number, more than one, or far too much text for an answer.
    """
    if len(text) > _MAX_ANSWER_CHARS:
        return None
    found = _NUMBER.findall(text)
    if len(found) != 1:
        return None
    digits = found[0].replace(",", "").replace("$", "").replace("−", "-").rstrip("%")
    try:
        return Fraction(digits) if "." in digits else int(digits)  # the same value, ten times faster
    except ValueError:  # digits of other scripts match \d but are no number here
        return None


def number_match(answer: str | None, gold: str) -> float:
    """1.0 if the answer is the same number as the gold answer, else 0.0.

    Numbers compare as numbers. The matcher that many GSM8K trainers use (verl's `reward_score/gsm8k.py`) compares
    strings after `#### `, so that "72.0" loses against "72".
    """
    if answer is None:
        return 0.0
    value = parse_number(answer)
    return float(value is not None and value == parse_number(gold))


def answer_format(text: str) -> float:
    """1.0 if the turn states exactly one final answer, by tag or by `####`, and nothing stands after it."""
    tags, marks = len(_ANSWER.findall(text)), text.count("####")
    if tags + marks != 1:
        return 0.0
    end = text.rstrip()
    return float(end.endswith("</answer>") if tags else "\n" not in end.rpartition("####")[2].strip())
