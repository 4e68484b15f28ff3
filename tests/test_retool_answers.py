"""Answers: what stands in the box, when two answers are the same, and that no answer can hold up the trainer."""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym.envs.retool import equality
from agent_gym.envs.retool.equality import exact_number, math_equal, normalize
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
        assert exact_number(normalize(text)) == value
    assert exact_number(normalize(f"{a:,}")) == a and exact_number(f"{a}.50") == a + Fraction(
        "-0.5" if a < 0 else "0.5"
    )


def test_numbers_never_leave_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "_compare", lambda *_: pytest.fail("math-verify was asked"))
    assert math_equal("72.0", "72") and not math_equal("71", "72") and math_equal("\\pi ", "$\\pi$")


HOSTILE = ["9^{9^{9^9}}", "10000000!", "{" * 450 + "1" + "}" * 450, "\\int_0^1 x^{x^x} dx", "\\sqrt" * 199]


def test_expensive_answers_are_wrong_and_spare_the_others() -> None:
    """From threads, as environments run; the honest answers between them are judged as ever."""
    pairs = [(text, "9") for text in HOSTILE] + [("2\\cdot 3", "6"), ("x+x", "2x")] * 3
    with ThreadPoolExecutor(4) as threads:
        verdicts = list(threads.map(lambda pair: math_equal(*pair), pairs))
    assert verdicts == [False] * len(HOSTILE) + [True] * 6
    assert not math_equal("1" * 100_000, "1") and not math_equal("\\boxed{" * 100_000, "1")


def test_forked_processes_have_checkers_of_their_own() -> None:
    assert math_equal("3\\cdot 3", "9")
    child = os.fork()
    if not child:
        ok = False
        try:
            ok = math_equal("4\\cdot 4", "16") and not math_equal("4\\cdot 5", "16")
        finally:
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert math_equal("5\\cdot 5", "25")


def test_a_killed_checker_is_replaced_and_a_broken_one_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert math_equal("6\\cdot 6", "36")
    for checker in equality._pool._idle:
        checker._process.kill()
        checker._process.wait()
    assert math_equal("7\\cdot 7", "49")
    equality._pool.close()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvFailure, match="cannot be compared"):
        math_equal("8\\cdot 8", "64")
