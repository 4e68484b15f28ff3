"""Answers: what stands in the box, when two answers are the same, that nothing is computed, and nothing held up."""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym.envs.retool import scoring
from agent_gym.envs.retool.scoring import math_equal, numeral
from agent_gym.errors import EnvFailure
from agent_gym.rewards import boxed_answer, boxed_format

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("text", "answer", "formed"),
    [
        (r"\boxed{72}", "72", 1),
        (r"So <answer>" + "\n\\boxed{ 72 }\n</answer>\n", "72", 1),
        (r"It is $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}", 1),
        (r"\[\boxed {\sqrt{2^{10}}}\]", r"\sqrt{2^{10}}", 1),
        (r"\boxed{\left\{1, 2\right.}", r"\left\{1, 2\right.", 1),  # in TeX an escaped brace is a letter
        (r"\boxed{1}, no, \boxed{2}", "2", 0),
        (r"\boxed{2} apples", "2", 0),
        (r"\boxed{\boxed{3}}", "3", 0),
        (r"\boxed{}", "", 0),
        (r"\boxed{1} and \boxed{2", "1", 0),
        (r"\boxed{1", None, 0),
        (r"\boxed 5", None, 0),
        ("<answer>5</answer>", None, 0),
        ("", None, 0),
    ],
)
def test_boxes(text: str, answer: str | None, formed: int) -> None:
    assert boxed_answer(text) == answer
    assert boxed_format(text) == formed


@given(st.text("ab{}\\ "), st.text("ab{}\\ "))
def test_whatever_is_balanced_comes_out_of_its_box(before: str, inside: str) -> None:
    depth, balanced = 0, not inside.replace("\\\\", "").endswith("\\")
    for mark in re.sub(r"\\.", "", inside):
        depth += {"{": 1, "}": -1}.get(mark, 0)
        balanced = balanced and depth >= 0
    if balanced and depth == 0 and not before.replace("\\\\", "").endswith("\\"):
        assert boxed_answer(f"{before}\\boxed{{{inside}}}") == inside.strip()


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("1,234", "1234"),
        ("12\\,345", "12345"),
        ("3/4", "0.75"),
        ("\\dfrac{3}{4}", "\\frac34"),
        ("-\\frac{6}{8}", "-3/4"),
        ("$42$.", "42.0"),
        ("x^2+1", "1+x^2"),
        ("2\\sqrt2", "\\sqrt{8}"),
        ("\\{2,1\\}", "\\{1,2\\}"),
        ("x=5", "5"),
        ("5\\text{ cm}", "5"),
        ("\\left(\\frac{1}{2}\\right)", "1/2"),
        ("\\text{yes}", "yes"),
        ("10^5", "100000"),
    ],
)
def test_equal(answer: str, gold: str) -> None:
    assert math_equal(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (None, "5"),
        ("", "5"),
        (" ", " "),
        ("5", "6"),
        ("0.333333", "1/3"),
        ("1,2", "12"),
        ("1/0", "5"),
        ("(2,1)", "(1,2)"),
        ("1,2,3,4,5", "5"),
        ("x", "y"),
        ("5,6", "5"),
        ("1 2", "12"),
        ("500\\%", "5"),
        ("0.05", "5\\%"),
        ("5\\text{ million}", "5"),
        ("", ""),
        ("}{", "5"),
        ("\ud800", "5"),
    ],
)
def test_different(answer: str | None, gold: str) -> None:
    assert not math_equal(answer, gold)


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**6))
def test_numbers_are_read_exactly(a: int, b: int) -> None:
    value = Fraction(a, b)
    sign = "-" if a < 0 else ""
    for text in (f"{a}/{b}", f"{sign}\\frac{{{abs(a)}}}{{{b}}}", f" ${a} / {b}$. "):
        assert numeral(text) == value
    assert numeral(f"{a:,}") == a and numeral(f"{a}.50") == a + Fraction("-0.5" if a < 0 else "0.5")


def test_numbers_never_leave_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_compare", lambda *_: pytest.fail("math-verify was asked"))
    assert math_equal("72.0", "72") and not math_equal("71", "72") and math_equal("\\pi ", "$\\pi$")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("+72", 72), ("−72", -72), ("- 72", -72), ("072", 72), ("72.50", "72.5"), (".5", "0.5"), ("5.", 5)],
        *[("1{,}234", 1234), ("1 234 567", 1234567), ("10,\\!080", 10080), ("1,234.5", "1234.5")],
        *[
            ("\\frac 1 2", "1/2"),
            ("\\frac{3}{-4}", "-3/4"),
            ("-\\tfrac{6}{8}", "-3/4"),
            ("\\cfrac{1,000}{3}", "1000/3"),
        ],
        *[("1\\frac{1}{2}", "3/2"), ("-2\\frac34", "-11/4")],
        *[("1.5\\times10^{3}", 1500), ("2\\cdot 10^{-2}", "1/50"), ("10^5", 100000), ("1e+16", 10**16)],
        *[("\\boxed{5}", 5), ("$x = 5$.", 5), ("\\(5\\)", 5), ("\\left(-5\\right)", -5), ("\\text{5 cm}", 5)],
        *[
            ("5\\text{ m}^2", 5),
            ("5 \\mathrm{~km/h}", 5),
            ("18 dollars", 18),
            ("\\$1,200.50", "1200.5"),
            ("60^{\\circ}", 60),
        ],
        *[("5\\%", 5), ("500\\%", 500), ("5 percent", 5)],
    ],
)
def test_numerals(text: str, value: object) -> None:
    assert numeral(text) == Fraction(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        *[
            "2+3",
            "6-1",
            "2^3",
            "10^{2^3}",
            "12!",
            "|-5|",
            "\\sqrt{25}",
            "\\binom{5}{1}",
            "\\sum_{i=1}^{5} 1",
            "7=6=5",
            "5=5",
        ],
        *[
            "5\\cdot 1",
            "2\\times3",
            "15\\times10^2",
            "3\\div 4",
            "1/2/3",
            "(2)(3)",
            "\\frac{1+2}{4}",
            "\\frac{\\frac{1}{2}}{3}",
        ],
        *[
            "12 \\mod 7",
            "12 \\bmod 7",
            "\\lfloor 5.5 \\rfloor",
            "\\gcd(5,10)",
            "\\max(5,1)",
            "x+1=6",
            "x=y=5",
            "--5",
            "\\pm 5",
        ],
        *[
            "5x",
            "5i",
            "5\\pi",
            "5 pi",
            "5_8",
            "5\\text{ or }6",
            "5 \\text{ squared}",
            "5\\text{ dozens}",
            "2\\frac{3}{2}",
            "5 6",
        ],
        *[
            "12,34",
            "1,2,3",
            "[5]",
            "\\{5\\}",
            "1/0",
            "\\frac{0}{0}",
            "1.2.3",
            "1e9999",
            "five",
            "½",
            "٥",
            "",
            "-",
            "\\infty",
        ],
    ],
)
def test_what_would_have_to_be_computed_is_no_numeral(text: str) -> None:
    assert numeral(text) is None


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("\\sum_{k=1}^{5} k x", "15x"),
        ("\\binom{5}{2}\\pi", "10\\pi"),
        ("2^{10}\\pi", "1024\\pi"),
        ("5!\\sqrt{2}", "120\\sqrt{2}"),
        ("|-5|\\pi", "5\\pi"),
        ("\\sqrt{3}=\\sqrt{5}=\\sqrt{2}", "\\sqrt{2}"),
    ],
)
def test_no_expression_is_computed_for_a_gold_answer_in_symbols(answer: str, gold: str) -> None:
    assert not math_equal(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("(x+1)^2", "x^2+2x+1"), ("5\\cdot3^{100}+x", "x+3^{100}\\cdot5"), ("\\log 2 + x", "x+\\log 2"), ("y=x+1", "1+x")],
)
def test_what_the_gold_answer_has_an_answer_may_have(answer: str, gold: str) -> None:
    assert math_equal(answer, gold)


def towers() -> st.SearchStrategy[str]:
    """Powers of powers of numbers, and what else is short and large, alone or in an expression."""
    number = st.sampled_from(["9", "99", "(9)", "{9}", "\\frac{9}{2}", "9+9", "\\pi"])
    tower = st.recursive(
        number,
        lambda inner: (
            st.builds("{}^{{{}}}".format, number, inner)
            | st.builds("({})^{{{}}}".format, inner, number)
            | st.builds("\\left({}\\right)**{}".format, inner, number)
            | st.builds("{{{}}}^{}".format, inner, st.sampled_from("239"))
        ),
        max_leaves=6,
    ).filter(lambda text: text.count("^") + text.count("**") > 1)
    large = tower | st.sampled_from(["99999999!", "9!!!", "9^{99999999}", "\\binom{9999999}{999999}", "2^{1000000}"])
    frame = st.sampled_from(["{}", "x^{{{}}}", "\\sqrt{{{}}}", "\\frac{{1}}{{{}}}", "{}x", "(1,{})", "x={}", "1-{}"])
    return st.builds(lambda frame, tower: frame.format(tower), frame, large)


@given(
    towers(), st.sampled_from(["7", "1/2", "0.5", "5\\%", "x+1", "\\sqrt{2}", "\\pi", "(1,2)", "2^{n}", "\\text{yes}"])
)
def test_towers_of_powers_are_wrong_without_being_looked_at(answer: str, gold: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_compare", lambda *pair: pytest.fail(f"math-verify was asked about {pair}"))
        assert not math_equal(answer, gold)


HOSTILE = ["9^{9^{9^9}}", "10000000!", "{" * 450 + "1" + "}" * 450, "\\int_0^1 x^{x^x} dx", "\\sqrt" * 199]


def test_expensive_answers_are_wrong_and_spare_the_others() -> None:
    """From threads, as environments run; the honest answers between them are judged as ever."""
    pairs = [(text, gold) for text in HOSTILE for gold in ("9", "9x")] + [("2\\cdot x", "2x"), ("x+x", "2x")] * 3
    with ThreadPoolExecutor(4) as threads:
        verdicts = list(threads.map(lambda pair: math_equal(*pair), pairs))
    assert verdicts == [False] * 2 * len(HOSTILE) + [True] * 6
    assert not math_equal("1" * 100_000, "1") and not math_equal("\\boxed{" * 100_000, "1")


def test_forked_processes_have_checkers_of_their_own() -> None:
    assert math_equal("3\\cdot 3x", "9x")
    child = os.fork()
    if not child:
        ok = False
        try:
            ok = math_equal("4\\cdot 4x", "16x") and not math_equal("4\\cdot 5x", "16x")
        finally:
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert math_equal("5\\cdot 5x", "25x")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the environment of a checker is read from /proc")
def test_a_checker_knows_nothing_of_the_callers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "CANARY-KEY")
    scoring._pool.close()
    assert math_equal("9\\cdot 7x", "63x")
    (checker,) = scoring._pool.idle
    environment = Path(f"/proc/{checker.pid}/environ").read_bytes()
    assert b"CANARY-KEY" not in environment and b"OPENAI" not in environment


def test_a_killed_checker_is_replaced_and_a_broken_one_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert math_equal("6\\cdot 6x", "36x")
    for checker in scoring._pool.idle:
        checker.kill()
        checker.wait()
    assert math_equal("7\\cdot 7x", "49x")
    scoring._pool.close()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvFailure, match="cannot be compared"):
        math_equal("8\\cdot 8x", "64x")
