"""The reward terms, as tables."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from agent_gym.rewards import (
    answer_format,
    exact_match,
    f1_score,
    final_answer,
    normalize_answer,
    number_match,
    parse_number,
    sub_exact_match,
    tagged_answer,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer>72</answer>", "72"),
        ("<answer>1 <answer>2</answer>", "2"),  # a tag left open is not part of an answer
        ("<answer></answer>", ""),
        ("#### 72", "72"),
        ("<answer>5</answer> #### 6", "5"),  # the tag wins
        ("<answer>72", None),
        ("", None),
    ],
)
def test_final_answer(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer
    assert tagged_answer(text) == (answer if "</answer>" in text else None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", "72"),
        ("$1,234,567.50", "1234567.5"),
        ("-$3", "-3"),
        ("\u22123", "-3"),
        ("20%", "20"),
        ("- 5", "-5"),
        ("\u2212 5", "-5"),
        ("-\\$5", "-5"),
        ("- $ 5", "-5"),
        *[(text, "-5") for text in ("\u20135", "\u20115", "x = \u2013 5")],  # dashes that models write for a minus
        *[(text, "1234567") for text in ("1{,}234,\\!567", "\\$1\\,234\\,567", "1\u202f234\u202f567")],
        ("**Answer** \u2013 18", "18"),
        ("5 m\u00b2", "5"),
        ("x = - 5", "-5"),
        ("The answer is - 5", "-5"),
        ("Total - 5", "5"),
        ("5 million", "5000000"),
        ("$1.5 Billion", "1500000000"),
        ("-2 hundred thousand dollars", "-200000"),
        ("5 millionaires", "5"),
        ("5 dozen", "5"),  # a unit, of which "how many dozens?" asks
        *[(text, "18") for text in ("**Answer** - 18", "Total ($) - 18", "(A) - 18", "Total:\n- $18", "Total  - 18")],
        ("5 hundred-dollar bills", "5"),
        ("GPT-4", "4"),
        ("5 thou\u017fand", "5"),  # a letter that is an s to a pattern without case
    ],
)
def test_numbers_that_are_read(text: str, value: str) -> None:
    assert number_match(text, value) == 1.0
    assert parse_number(text) == parse_number(value) == Fraction(value)


def test_a_word_of_scale_may_be_the_unit_that_was_asked_for() -> None:
    assert number_match("$5 million", "5") == number_match("$5 million", "5000000") == 1.0
    assert number_match("5 million", "50") == number_match("5", "5000000") == 0.0


@pytest.mark.parametrize(
    "text",
    ["", "seven", "10 - 5", "3-4", "3 or 4", "1/2", "1,2", "12,3456", "²", "7" * 257, "1e3"]
    + ["5\u00b2", "5\u00bd", "5 \u00bd", "5\u4e07"],  # squared, a half more, ten thousand times
)
def test_texts_without_exactly_one_number(text: str) -> None:
    assert parse_number(text) is None
    assert number_match(text, text) == 0.0, "two unreadable answers are not the same number"


def test_number_match() -> None:
    assert number_match("72", "72.00") == 1.0
    assert number_match("0.1", "0.10") == 1.0
    assert number_match("72.0000001", "72") == 0.0  # exact, not close
    assert number_match("7" * 40, "7" * 39 + "8") == 0.0
    assert number_match(None, "72") == 0.0
    assert number_match("3", "-3") == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<answer>72</answer>", 1.0),
        ("it is <answer>72</answer> \n", 1.0),
        ("<answer></answer>", 0.0),
        ("<answer>1</answer><answer>2</answer>", 0.0),
        ("<answer>72", 0.0),
        ("<think>#### 7? In <answer></answer>.</think>\n<answer>72</answer>", 1.0),
        ("<think><answer>72</answer></think> It is 72.", 0.0),
        ("", 0.0),
    ],
)
def test_answer_format(text: str, value: float) -> None:
    assert answer_format(text) == value


@pytest.mark.parametrize("piece", ["<answer>", "</answer>", "<answer></answer>", "#", "<answer>" + "7" * 100, "<"])
def test_a_megabyte_takes_no_time(piece: str) -> None:
    text = piece * ((1 << 20) // len(piece))
    started = time.process_time()
    final_answer(text)
    answer_format(text)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("the-atre", "theatre"),  # punctuation goes before articles do
        ("“The”", "“ ”"),  # only ASCII punctuation goes
    ],
)
def test_normalize_answer(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


def test_what_tells_the_matches_apart() -> None:
    assert exact_match("The Beatles", "Beatles") == 1.0
    assert exact_match("the band Beatles", "Beatles") == 0.0
    assert sub_exact_match("the band Beatles", "Beatles") == 1.0
    assert sub_exact_match("unknown", "no") == 1.0  # what it is known for
    assert sub_exact_match("anything", "the") == 0.0 and sub_exact_match("", "the") == 1.0
    assert f1_score("the band Beatles", "Beatles") == pytest.approx((2 / 3, 1 / 2, 1.0))
    assert f1_score("unknown", "no") == (0.0, 0.0, 0.0)
    for match in (exact_match, sub_exact_match):
        assert match(None, "") == 0.0
    assert f1_score(None, "") == (0.0, 0.0, 0.0)
