"""What an answer of HotpotQA is worth, by hand: the official metrics, and the published rewards of papers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym.envs.hotpotqa.scoring import REWARDS, TERMS, evaluate, graded_answer, response_em, turn_format
from agent_gym.rewards import exact_match


@pytest.mark.parametrize(
    ("prediction", "gold", "em", "f1"),
    [
        ("The Beatles!", "beatles", 1, 1),
        ("Chief of Protocol", "the chief of the protocol", 1, 1),
        ("U.S.", "US", 1, 1),
        ("Greenwich Village, New York City", "Greenwich Village", 0, 2 * (2 / 5) / (2 / 5 + 1)),
        ("1986 to 2013", "from 1986 to 2013", 0, 2 * (3 / 4) / (1 + 3 / 4)),
        ("yes", "yes", 1, 1),
        ("yes", "no", 0, 0),
        ("yes it is", "yes", 0, 0),  # a closed answer shares no words with a longer one
        ("no", "no man", 0, 0),
        ("noanswer", "no answer", 0, 0),
        ("", "the", 1, 0),  # nothing is left of either, and nothing shares no words
        ("New New York", "New York", 0, 0.8),
        ("a-b", "ab", 1, 1),
        ("theatre", "the atre", 0, 0),
    ],
)
def test_official_answers(prediction: str, gold: str, em: float, f1: float) -> None:
    found = evaluate({"answer": {"a": prediction}, "sp": {}}, [{"_id": "a", "answer": gold, "supporting_facts": []}])
    assert (found["em"], found["f1"], found["joint_em"]) == (em, pytest.approx(f1), 0)


def test_official_facts_joint_scores_and_means() -> None:
    gold = {"answer": "Greenwich Village", "supporting_facts": [["A", 0], ["B", 1]]}
    rows = [{"_id": n, **gold} for n in "abcd"]
    answers = {"a": "Greenwich Village, New York City", "b": "greenwich village", "x": "Greenwich Village"}
    found = evaluate({"answer": answers, "sp": {"a": [["A", 0], ["B", 1], ["B", 1], ["C", 2]], "c": []}}, rows)
    precision, recall = 2 / 5 * 2 / 3, 1.0
    joint = 0, 2 * precision / (precision + recall), precision, recall
    # What was not predicted counts as nothing.
    assert [found[f"sp_{part}"] * 4 for part in ("em", "f1", "prec", "recall")] == pytest.approx([0, 0.8, 2 / 3, 1.0])
    assert [found[f"joint_{part}"] * 4 for part in ("em", "f1", "prec", "recall")] == pytest.approx(joint)
    assert (found["em"], found["recall"]) == (0.25, 0.5)
    right = evaluate({"answer": {"a": "Greenwich Village"}, "sp": {"a": gold["supporting_facts"]}}, rows[:1])
    assert set(right.values()) == {1.0} and set(evaluate({"answer": {}, "sp": {}}, []).values()) == {0.0}


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
        ([CALL.replace("where", "Paris")], -1),  # the gold answer, but no format that would let it count
        (["<answer>Paris</answer>"], -1),  # no thought: no format, and the right answer is worth nothing
        ([CALL, "<answer>Paris</answer>"], -1 + 0.5 + 1),
        ([CALL + CALL, GOOD], -1 + 0.5 + 1),  # two calls in one turn are no well-formed turn
        (["Hm. " + CALL, GOOD], -1 + 0.5 + 1),
        ([CALL + "!", GOOD], -1 + 0.5 + 1),
        ([CALL, GOOD.replace("Paris", "It is Paris, France")], -1 + 1 + 1),  # a substring is enough
        ([CALL, GOOD.replace("Paris", "London") + "<answer>Paris</answer>"], -1 + 1 + 0.2),  # the first answer counts
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
    assert response_em(["<answer>Paris</answer>", last], ["Rome", "Paris"]) == em


TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "Paris", " ", "\n", "x"]


@given(st.lists(st.lists(st.sampled_from(TAGS), max_size=9).map("".join), min_size=1, max_size=4))
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
    found = re.findall(r"<answer>(.*?)</answer>", turns[-1], re.S)
    assert response_em(turns, ["Paris"]) == exact_match((found[-1] if found else turns[-1]).strip(), "Paris")
