"""`math_equal` under fuzz: it never raises, never stalls, and never takes a wrong number for the right one."""

from __future__ import annotations

import os
import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from agent_gym.envs.retool import scoring
from agent_gym.envs.retool.checker import CPU_SECONDS
from agent_gym.envs.retool.embedded.kinds import KINDS, LEVELS
from agent_gym.envs.retool.scoring import math_equal

pytest.importorskip("math_verify")


def forms(value: Fraction) -> list[str]:
    """Ways in which people and models write a number. All of them are exact."""
    sign, top, bottom = "-" if value < 0 else "", abs(value.numerator), value.denominator
    plain = f"{sign}{top}" if bottom == 1 else f"{sign}{top}/{bottom}"
    found = [
        plain,
        f"${plain}$",
        f"\\({plain}\\)",
        f" {plain} .",
        f"{{{plain}}}",
        f"\\left({plain}\\right)",
        f"x = {plain}",
        f"{sign}\\frac{{{top}}}{{{bottom}}}",
        f"{sign}\\dfrac{{{3 * top}}}{{{3 * bottom}}}",
        f"\\frac{{{sign}{top}}}{{{bottom}}}",
    ]
    if bottom == 1:
        found += [f"{sign}{top:,}", f"{sign}{top}.0", f"{sign}{top:,}".replace(",", "{,}"), f"\\text{{{plain}}}"]
        found += [f"{sign}{top:,}".replace(",", "\\,"), f"{plain} \\text{{ cm}}", f"{plain}\\%"[:-2]]
    if 10**6 % bottom == 0:
        digits = f"{top * (10**6 // bottom):07d}"
        decimal = f"{sign}{digits[:-6]}.{digits[-6:]}"
        found += [decimal, decimal.rstrip("0").rstrip(".")]
    return found


BOTTOMS = [1, 1, 1, 2, 3, 4, 5, 7, 8, 12, 125]
numbers = st.builds(Fraction, st.integers(-(10**7), 10**7), st.sampled_from(BOTTOMS))
# Near misses: the sign, a digit, a power of ten, the denominator. What a lenient reader of LaTeX would confuse.
changes = st.sampled_from(
    [
        lambda x: -x,
        lambda x: x + 1,
        lambda x: x - Fraction(1, 1000),
        lambda x: x * 10,
        lambda x: x / 1000,
        lambda x: x * 1000,
        lambda x: x + Fraction(1, 10**6),
        lambda x: 1 / x if x else Fraction(7),
        lambda x: Fraction(x.numerator, x.denominator + 1),
        lambda x: Fraction(int(str(abs(x.numerator))[::-1]), x.denominator),
    ]
)


@given(numbers, st.data())
def test_the_right_number_is_right_however_it_is_written(value: Fraction, data: st.DataObject) -> None:
    """Against gold answers as data sets have them."""
    gold = data.draw(st.sampled_from([str(value), f"${value}$", f"\\frac{{{value.numerator}}}{{{value.denominator}}}"]))
    assert math_equal(data.draw(st.sampled_from(forms(value))), gold)


SUMS = [
    "{0}+{1}",
    "{1}+{0}",
    "{2}-{1}",
    "\\sum_{{i=1}}^{{{0}}}1+{1}",
    "{0}-(-{1})",
    "{1}\\cdot\\frac{{{3}}}{{{1}}}",
    "\\sqrt{{{3}}}^2",
]


@given(
    st.integers(1, 10**6), st.integers(2, 10**6), st.sampled_from([*SUMS, "|-{3}|", "{1}={3}", "{3}\\cdot1", "{3}^1"])
)
def test_nothing_is_computed_for_the_policy(a: int, b: int, form: str) -> None:
    """An expression of the right value is no answer."""
    assert not math_equal(form.format(a, b, a + 2 * b, a + b), str(a + b))


RESTATED = {
    "modular-power": "{a}^{{{b}}} \\mod {m}",
    "apart": "\\binom{{{b}+1}}{{{a}}}",
    "unpayable": "{a} \\cdot {b} - {a} - {b}",
    "reciprocal-sum": "\\sum_{{k=1}}^{{{n}}} \\frac{{1}}{{k(k+{d})}}",
    "lattice-paths": "\\binom{{{w}+{h}}}{{{w}}} - \\binom{{{x}+{y}}}{{{x}}} \\binom{{{w}+{h}-{x}-{y}}}{{{w}-{x}}}",
    "no-runs": "\\sum_{{i=0}}^{{{n}}} \\binom{{{n}-i+1}}{{i}}",
    "digit-sum": "\\sum_{{i=1}}^{{{n}}} [{s}]",
}


@pytest.mark.parametrize("kind", RESTATED)
def test_a_problem_restated_is_not_its_answer(kind: str) -> None:
    rng = random.Random(0)
    for level in 200 * LEVELS:
        draft = KINDS[kind](rng, level)
        assert not math_equal(RESTATED[kind].format(**draft.values), str(draft.gold))


@given(numbers, changes, st.data())
def test_a_wrong_number_is_never_right(value: Fraction, change: object, data: st.DataObject) -> None:
    wrong = change(value)  # type: ignore[operator]
    assume(wrong != value)
    written, gold = data.draw(st.sampled_from(forms(wrong))), data.draw(st.sampled_from(forms(value)))
    assert not math_equal(written, gold)


PIECES = [*"0123456789xyi+-*/^_=<>()[]{}|!,.;:&%$ ", "\\frac", "\\sqrt", "\\pi", "\\infty", "\\left", "\\right"]
PIECES += ["\\{", "\\}", "\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", "\\sum_", "\\int", "\\log", "\\binom", "\\cup"]
PIECES += ["\\pm", "\\times", "\\circ", "^{", "_{", "{,}", "1/0", "\n", "\0", "é", "π", "½", "\ud800", "9^{9^{9", "!!"]
written = st.lists(st.sampled_from(PIECES), max_size=14).map("".join) | st.text(max_size=30)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the CPU time of a checker is read from /proc")
@settings(max_examples=120)
@given(written, st.sampled_from(["7", "1/2", "x+1"]))
@example("\\frac{7}{", "7")
@example("7" + "!" * 60, "7")
@example("9^{9^{9^9}}", "7")
@example("(" * 490 + "7" + ")" * 490, "7")
@example("\\boxed{7}" * 100, "7")
def test_whatever_is_written_gets_a_verdict(answer: str, gold: str) -> None:
    """In CPU time, because on a busy machine everything takes long: the kernel ends a comparison at its limit."""
    math_equal("2\\cdot 3x", "6x")  # starts a checker, if there is none
    before = compared_seconds()
    assert math_equal(answer, gold) in (True, False)
    assert compared_seconds() - before < CPU_SECONDS + 1
    assert math_equal(gold, gold)


def compared_seconds() -> float:
    """CPU time of all comparisons so far: a checker makes each in a child, and the kernel adds up those that ended."""
    pids = [checker.pid for checker in scoring._pool._idle]
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[13]) + int(field[14]) for field in fields) / os.sysconf("SC_CLK_TCK")
