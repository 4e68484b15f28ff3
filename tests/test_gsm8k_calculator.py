"""The calculator: right on arithmetic, exact where floats are not, unharmed by what a policy may write."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tools import examples

from agent_gym.envs.gsm8k.calculator import MAX_LENGTH, calculate


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("48/2", "24"),
        ("(2+3)*4", "20"),
        ("-2**2", "-4"),  # a power binds tighter than a sign, as in Python
        ("2**3**2", "512"),
        ("-(3-5)", "2"),
        ("(-1)**99999999999", "-1"),
        ("1,234,567.5*2", "2469135"),
        ("$1,200 - $.50", "1199.5"),
        ("20%*50", "10"),
        ("(10+10)%", "0.2"),
        ("−5×2÷4", "-2.5"),
        ("\n3\t+\u00a04\n", "7"),
        ("0.1+0.2", "0.3"),
        ("1/3*3", "1"),
        ("100/3", "33.333333"),
        ("1/300", "0.00333333"),  # below one: six significant digits, or small rates would all become 0
        ("1/8", "0.125"),
        ("0.99999999", "1"),
    ],
)
def test_arithmetic(expression: str, result: str) -> None:
    assert calculate(expression) == result


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "empty"),
        ("1/0", "division by zero"),
        ("0**-1", "division by zero"),
        ("2*", "missing at the end"),
        ("2 3", "operator is missing before '3'"),
        ("(2", "'(' without ')'"),
        ("20%-5", "ambiguous"),
        ("1,20", "','"),
        ("5 apples", "'a'"),
        ("__import__('os')", "'_'"),
        ("1e5", "'e'"),
        ("4**0.5", "whole number"),
        ("٣+1", "u0663"),  # a digit to str.isdigit() and int(), and still not one of ours
    ],
)
def test_mistakes_are_named(expression: str, words: str) -> None:
    answer = calculate(expression)
    assert answer.startswith("Error: ") and words in answer


HOSTILE = [
    "9**9**9",
    "(2**4000)*(2**4000)",
    "1/" + "9" * 60,
    "(" * 10_000 + "1" + ")" * 10_000,
    "**".join(["9"] * 160),
    "*".join(["(2**4095)"] * 49),
    "+".join(f"1/{n}" for n in range(101, 181)),
    "\ud800" * 400,
]


@pytest.mark.parametrize("expression", HOSTILE, ids=lambda expression: ascii(expression[:20]))
def test_hostile_expressions_come_back_at_once(expression: str) -> None:
    spent = []
    for _ in range(3):  # the best of three, so that a busy machine does not fail the test
        start = time.process_time()
        answer = calculate(expression)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.05, "the work must not grow with what a policy can write"
    assert "\n" not in answer and len(answer) < 200 and answer.isascii()


@examples(300)
@given(st.one_of(st.text(), st.text(alphabet="0123456789+-*/%().,$ ", max_size=40)))
def test_never_raises_and_answers_one_line(expression: str) -> None:
    answer = calculate(expression)
    assert "\n" not in answer and len(answer) < 200
    if not answer.startswith("Error: "):
        assert Fraction(answer) == Fraction(calculate(answer))  # what it prints, it can read


@examples(300)
@given(st.lists(st.tuples(st.sampled_from(["+", "-", "*"]), st.integers(0, 999)), min_size=1, max_size=8))
def test_agrees_with_python_on_integers(parts: list[tuple[str, int]]) -> None:
    expression = "7" + "".join(f"{sign}{number}" for sign, number in parts)
    assert len(expression) <= MAX_LENGTH
    assert calculate(expression) == str(eval(expression))  # a literal built here, never text of a policy


def test_threads_calculate_at_the_same_time() -> None:
    # Python 3.11's own parser fails if the garbage collector lets another thread parse in its midst.
    def let_others_run(phase: str, info: dict[str, int]) -> None:
        time.sleep(1e-5)

    expressions = [f"({number}+1)*2-({'(' * (number % 9)}3-2{')' * (number % 9)})" for number in range(300)]
    threshold = gc.get_threshold()
    gc.callbacks.append(let_others_run)
    gc.set_threshold(7)
    try:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: [calculate(one) for one in expressions], range(4)))
    finally:
        gc.callbacks.remove(let_others_run)
        gc.set_threshold(*threshold)
    assert answers == [[str((number + 1) * 2 - 1) for number in range(300)]] * 4
