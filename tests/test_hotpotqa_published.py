"""The published reward formulas, by hand: each table row is worked out from the papers' code and not from ours."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym.envs.hotpotqa.scoring import REWARDS, TERMS, floor, graded_answer, response_em, turn_format
from agent_gym.rewards import exact_match

CALL = '<think>where?</think>\n<tool_call>{"name": "search"}</tool_call>'
GOOD = "<think>so</think> <answer>Paris</answer>"


def agent_r1(turns: list[str], gold: str = "Paris") -> float:
    return sum(weight * TERMS[term](turns, [gold]) for term, weight in REWARDS["agent_r1"].items())


@pytest.mark.parametrize(
    ("turns", "reward"),
    [
        ([GOOD], -1 + 0.5 + 1),  # no call: half of the format
        ([CALL, GOOD], -1 + 1 + 1),
        ([CALL, CALL, CALL, GOOD], -1 + 1 + 1),  # the format saturates
        ([CALL, CALL, "Paris"], -1 + 1 + 0.2),  # and cannot be lost again; the answer is only somewhere in the turn
        ([CALL, CALL, "London"], -1 + 1),
        ([CALL, CALL], -1 + 0.5),  # out of turns: the last block is a call and no answer
        ([CALL, CALL, CALL], -1 + 1),
        ([CALL], -1),
        ([CALL.replace("where", "Paris")], -1),  # the gold answer, but no format that would let it count
        (["<answer>Paris</answer>"], -1),  # no thought: no format, and the right answer is worth nothing
        ([CALL, "<answer>Paris</answer>"], -1 + 0.5 + 1),
        ([CALL + CALL, GOOD], -1 + 0.5 + 1),  # two calls in one turn are no well-formed turn
        (["Hm. " + CALL, GOOD], -1 + 0.5 + 1),
        ([CALL + "!", GOOD], -1 + 0.5 + 1),
        ([CALL, GOOD + " and that is it"], -1 + 0.5 + 1),
        ([CALL, GOOD.replace("Paris", "It is Paris, France")], -1 + 1 + 1),  # a substring is enough
        ([CALL, GOOD.replace("Paris", "London") + "<answer>Paris</answer>"], -1 + 1 + 0.2),  # the first answer counts
        ([CALL, "<think>Paris or London</think><answer>London</answer>"], -1 + 1 + 0.2),
        ([CALL, "<think>so</think><answer>London</answer>"], -1 + 1),
    ],
)
def test_agent_r1_by_hand(turns: list[str], reward: float) -> None:
    assert agent_r1(turns) == pytest.approx(reward)


def test_agent_r1_takes_unknown_for_no() -> None:
    assert agent_r1([CALL, "<think>.</think><answer>unknown</answer>"], "no") == 1.0


@pytest.mark.parametrize(
    ("last", "em"),
    [
        ("<answer>The Paris!</answer>", 1),
        ("<answer>London</answer> <answer>Paris</answer>", 1),
        ("<answer>Paris</answer> <answer>London</answer>", 0),
        ("Paris", 1),  # without a tag the whole turn is the answer
        ("It is Paris", 0),
        ("<ANSWER>Paris</Answer>", 1),
        ("<answer>Paris", 0),
        ("<answer>London <answer>Paris</answer>", 0),  # reads from the first opening tag on
        ("", 0),
    ],
)
def test_steppo_by_hand(last: str, em: float) -> None:
    assert response_em(["<answer>Paris</answer>", last], ["Paris"]) == em
    assert response_em([last], ["Rome", "Paris"]) == em


TEXT = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "Paris", " ", "\n", "x"]
    ),
    max_size=9,
).map("".join)


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_linear_scans_are_the_papers_regular_expressions(turns: list[str]) -> None:
    score = 0.0
    for turn in turns[:-1]:
        once = all(turn.count(tag) == 1 for tag in ("<think>", "</think>", "<tool_call>", "</tool_call>"))
        score += 0.5 * (
            once and bool(re.search(r"^<think>(.*?)</think>(.*?)<tool_call>(.*?)</tool_call>$", turn, re.S))
        )
    score += 0.5 * bool(re.search(r"^<think>(.*?)</think>(.*?)<answer>(.*?)</answer>$", turns[-1], re.S))
    score = min(score, 1.0)
    first = re.search(r"<answer>(.*?)</answer>", turns[-1], re.S)
    answer = 1.0 if first and "paris" in first[1].lower() else 0.2 * ("paris" in turns[-1].lower())
    assert turn_format(turns, ["Paris"]) == score
    assert graded_answer(turns, ["Paris"]) == (answer if score >= 0.5 else 0.0)
    assert floor(turns, ["Paris"]) == -1.0
    found = re.findall(r"<answer>(.*?)</answer>", turns[-1], re.S)
    assert response_em(turns, ["Paris"]) == exact_match((found[-1] if found else turns[-1]).strip(), "Paris")
