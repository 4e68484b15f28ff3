r"""Answers that differ from a gold answer in one character, and answers that are written in another way.

AGENT_GYM_MATH_TEST names a file of MATH's test problems (arXiv:2103.03874; one JSON object a line, with the answer in
the last \boxed{} of "solution" or "answer"). Without it the golds of this file are used.
"""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import pytest

from agent_gym.envs.retool.numerals import numeral
from agent_gym.envs.retool.scoring import math_equal
from agent_gym.rewards import boxed_answer

pytest.importorskip("math_verify")

GOLDS = r"""
72|-3|0.25|\frac{3}{4}|1,234|5\text{ cm}|\$12.50|60^\circ|25\%|2x+1|x^2-4x+7|(x+3)(x-2)|\frac{x+2}{7}|3\sqrt{2}
\sqrt[3]{5}|1+2i|-\frac{1}{2}+\frac{\sqrt{3}}{2}i|12\pi|\frac{\pi}{3}|e^{-50}|2^{2005}|\frac{1}{2006!}|(1,2)|(0,1]
[2,\infty)|\{1,2,3\}|1,-2|1 \pm \sqrt{19}|(-\infty,-2)\cup(2,\infty)|x\in[-2,7]
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}|664_7|152A_{11}|x \equiv 3 \pmod 7|n \text{ odd}|\text{Evelyn}|\text{(A)}
\text{A, D}|\angle ABC|\overline{CD}|\text{1:03 PM}|1:2|y=2x+3|4x-5y=-50|f(2)<f(1)<f(4)|3-2f(x)|1, 3, 5, \ldots, 2n-1
\log_2 3|\ln 5|\sin 3x|99\pi \text{ square inches}|4^\circ, 20^\circ|f'(x)|\vec{a}|x_1+x_2|\emptyset|12\text{ and }13
\frac{a}{b}|7z^{96}(4z+1)|-\frac{3}{2}, 7|(3,\frac{\pi}{2})|\text{June 20}
""".strip()
SIGNS = "0123456789abegixyABC+-*/^_(){}[],.<>=!|\\ "


def mutants(gold: str, count: int, generator: random.Random) -> list[str]:
    """Return texts that are the gold answer with one character replaced, left out or added, or two swapped."""
    found: list[str] = []
    while len(found) < count:
        at, sign = generator.randrange(len(gold)), generator.choice(SIGNS)
        found.append(
            generator.choice(
                [
                    gold[:at] + sign + gold[at + 1 :],
                    gold[:at] + gold[at + 1 :],
                    gold[:at] + sign + gold[at:],
                    gold[:at] + gold[at + 1 : at + 2] + gold[at] + gold[at + 2 :],
                ]
            )
        )
    return [text for text in found if text != gold and text.strip()]


# Why a mutant is the same answer after all, by rules that know nothing of the reader: each leaves the meaning as it is.
HARMLESS: list[tuple[str, str]] = [
    (r"\\in(?![a-z])|\bin\b", "∈"),
    (r",?\\!\s*(?=\d{3})|\\?\$", ""),  # thousands; a currency is a unit
    (r"\\[dtc]frac", r"\\frac"),
    (r"(?<=\d)\.(?!\d)", ""),  # 5.
    (r"\\mp", r"\\pm"),  # both are both
    (r"\\(?:left|right)(?![a-z])|(?<!\\)\\[!,;:> ]|\\quad|~", ""),
    (r"\s+", " "),
    (r"(?<![a-zA-Z]) | (?![a-zA-Z])", ""),
    (r"\\(pi|sin|cos|tan|cot|sec|csc|sqrt|ln|log)(?![a-z])", r"\1"),
    (r"\\text\{\}", ""),
    (r"\\(?:text|mbox)\{\((\w)\)\}|\\text\{\((\w)\}\)|\(\\text\{(\w)\)\}|\(\\text\{(\w)\}\)|\((\w)\)", r"\1\2\3\4\5"),
    (r"\\(?:text|mbox)\{([^{}]*)\}", r"\1"),
    (r"\*|\\cdot", ""),
    (r"(^|[(\[{,=&<>]|\\\\|matrix\})\+(?=[\w\\.])", r"\1"),  # a plus in front
    (r"(^|[(\[{,=]|\\\\)0-", r"\1-"),  # 0-4
    (r"(?<![\w.])0+(?=\d)", ""),  # 007
    (r"(?<=[a-zA-Z])\.(?=\s|$|[a-zA-Z]\b)", ""),  # p.m.
    (r"(?<!\d)0\.", "."),
    (r"^(-?)\.0$", "0"),
    (r"(?<![\w.}^_])1(?=[a-zA-Z(\\])", ""),  # 1x
    (r"\\%", "%"),
    (r"\^\{(\w)\}", r"^\1"),
    (r"_\{(\w)\}", r"_\1"),
    (r"inchs", "inches"),
]


def meaning(text: str) -> str:
    for pattern, into in HARMLESS:
        text = re.sub(pattern, into, text)
    return re.sub(r"^(?:x=|-(?=0$))", "", text.strip().rstrip(".").lower() if len(text) > 3 else text.strip())


def wrongly_paid(golds: list[str], count: int, seed: int) -> tuple[int, list[tuple[str, str]], list[tuple[str, str]]]:
    """Return how many mutants were tried, which were paid and are the same answer, and which were paid all the same."""
    generator = random.Random(seed)
    pairs = [(text, gold) for gold in golds for text in mutants(gold, count, generator)]
    paid = [pair for pair in pairs if math_equal(*pair)]
    same = [pair for pair in paid if meaning(pair[0]) == meaning(pair[1])]
    return len(pairs), same, [pair for pair in paid if pair not in same]


def own_golds() -> list[str]:
    return [gold for line in GOLDS.split("\n") for gold in line.split("|")]


def test_no_mutant_of_a_gold_answer_is_right() -> None:
    tried, _, wrong = wrongly_paid(own_golds(), 8, 0)
    assert tried > 400 and wrong == []


UNICODE = {"\\pi": "π", "\\infty": "∞", "\\cup": "∪", "\\pm": "±", "-": "−", "^2": "²", "^3": "³", "^\\circ": "°"}


def unicode_of(gold: str) -> str:
    for tex, sign in UNICODE.items():
        gold = re.sub(re.escape(tex) + r"(?![a-z])", sign, gold)
    return re.sub(r"\\sqrt\{(\d+)\}", r"√\1", gold)


def python_of(gold: str) -> str | None:
    """Return the text of the object that math-verify's parser makes of a gold answer; None where it skips something."""
    from math_verify import parse

    skipped = r"\\(?:text|mbox|overline|ldots|pmod|angle|log|vec|circ|!|frac ?\\|frac1\{2x)|_|[A-Z]|:|'|<|t$|%"
    if re.search(skipped, gold):
        return None
    found = parse(f"${gold}$", parsing_timeout=None, fallback_mode="no_fallback")
    return str(found[0]) if found and "Eq(" not in str(found[0]) else None


FORMS = {
    "dfrac": lambda gold: gold.replace("\\frac", "\\dfrac"),
    "spaces": lambda gold: re.sub(r"(?<=[\w)}])([+=-])(?=[\w(\\])", r" \1 ", gold) if "\\text" not in gold else gold,
    "left and right": lambda gold: (
        re.sub(r"(?<!t)\)", r"\\right)", re.sub(r"(?<!t)\(", r"\\left(", gold)) if not {"[", "]"} & {*gold} else gold
    ),
    "dollars": lambda gold: f"${gold}$",
    "bold": lambda gold: f"**{gold}**",
    "full stop": lambda gold: f"{gold}." if gold[-1] != "." else gold,
    "unicode": unicode_of,
    "python": python_of,
}


def refused(golds: list[str]) -> tuple[int, list[tuple[str, str, str]]]:
    """Return how many other forms of gold answers there are, and those that are not right."""
    made = [(name, form(gold), gold) for name, form in FORMS.items() for gold in golds]
    made = [(name, text, gold) for name, text, gold in made if text is not None and text != gold]
    return len(made), [one for one in made if not math_equal(one[1], one[2])]


def test_other_forms_of_gold_answers_are_right() -> None:
    made, wrong = refused(own_golds())
    assert made > 250 and wrong == []


@pytest.fixture(scope="module")
def math_golds() -> list[str]:
    place = os.environ.get("AGENT_GYM_MATH_TEST")
    if not place:
        pytest.skip("AGENT_GYM_MATH_TEST names no file of MATH's test problems")
    rows = [json.loads(line) for line in Path(place).read_text().splitlines()]
    texts = [str(row.get("solution") or row["answer"]) for row in rows]
    return [boxed_answer(text) or text for text in texts]


@pytest.mark.slow
def test_no_mutant_of_maths_gold_answers_is_right(math_golds: list[str]) -> None:
    symbolic = [gold for gold in math_golds if numeral(gold) is None]
    for golds, count, seed in ((math_golds, 1, 1), (symbolic, 6, 2)):
        tried, same, wrong = wrongly_paid(golds, count, seed)
        print(f"{tried} mutants of {len(golds)} golds: {len(same)} the same answer, {len(wrong)} wrongly paid: {wrong}")
        assert wrong == []


@pytest.mark.slow
def test_other_forms_of_maths_gold_answers_are_right(math_golds: list[str]) -> None:
    symbolic = [gold for gold in math_golds if numeral(gold) is None]
    made, wrong = refused(symbolic + [gold for gold in math_golds if numeral(gold) is not None][:300])
    print(f"{made} other forms: {len(wrong)} refused ({1 - len(wrong) / made:.2%} right): {wrong}")
    assert made >= 1000 and len(wrong) <= 0.005 * made
