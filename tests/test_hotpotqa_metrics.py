"""HotpotQA's metrics against a second implementation, written as plainly as the definition, and against hand counts."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym.envs.hotpotqa.scoring import METRICS, answer_scores, evaluate, fact_scores, joint_scores
from agent_gym.rewards import exact_match, f1_score, normalize_answer, sub_exact_match

WORDS = [
    "the",
    "a",
    "an",
    "Beatles",
    "beatles",
    "yes",
    "no",
    "noanswer",
    "No",
    "1970s",
    "U.S.",
    "O'Neil",
    "é",
    "--",
    "",
]
ANSWERS = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join) | st.text(max_size=20)
FACTS = st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 2)).map(list), max_size=4)


def naive_normalize(text: str) -> str:
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    words, word = [], ""
    for c in kept + " ":
        # An article is only one between word boundaries, and letters, digits and _ are what has none between them.
        if c.isalnum() or c == "_":
            word += c
            continue
        words.append("" if word in ("a", "an", "the") else word)
        words.append(c)
        word = ""
    return " ".join("".join(w or " " for w in words).split())


def naive_answer(prediction: str, gold: str) -> tuple[float, ...]:
    p, g = naive_normalize(prediction), naive_normalize(gold)
    em = 1.0 if p == g else 0.0
    if p != g and (p in ("yes", "no", "noanswer") or g in ("yes", "no", "noanswer")):
        return em, 0.0, 0.0, 0.0
    rest, same = g.split(), 0
    for word in p.split():
        if word in rest:
            rest.remove(word)
            same += 1
    if same == 0:
        return em, 0.0, 0.0, 0.0
    precision, recall = same / len(p.split()), same / len(g.split())
    return em, 2 * precision * recall / (precision + recall), precision, recall


def naive_facts(prediction: list[Any], gold: list[Any]) -> tuple[float, ...]:
    p, g = [], []
    for facts, into in ((prediction, p), (gold, g)):
        for fact in facts:
            if tuple(fact) not in into:
                into.append(tuple(fact))
    tp, fp, fn = sum(f in g for f in p), sum(f not in g for f in p), sum(f not in p for f in g)
    precision = tp / (tp + fp) if tp + fp else 0.0
    recall = tp / (tp + fn) if tp + fn else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return float(fp + fn == 0), f1, precision, recall


@given(ANSWERS, ANSWERS)
def test_answer_scores_are_those_of_the_definition(prediction: str, gold: str) -> None:
    assert answer_scores(prediction, gold) == pytest.approx(naive_answer(prediction, gold))


@given(FACTS, FACTS)
def test_fact_scores_are_those_of_the_definition(prediction: list[Any], gold: list[Any]) -> None:
    assert fact_scores(prediction, gold) == pytest.approx(naive_facts(prediction, gold))


@given(st.lists(st.tuples(ANSWERS, ANSWERS, FACTS, FACTS, st.booleans(), st.booleans()), max_size=5))
def test_evaluation_averages_what_was_predicted_over_all_questions(rows: list[Any]) -> None:
    gold = [{"_id": i, "answer": row[1], "supporting_facts": row[3]} for i, row in enumerate(rows)]
    prediction = {
        "answer": {i: row[0] for i, row in enumerate(rows) if row[4]},
        "sp": {i: row[2] for i, row in enumerate(rows) if row[5]},
    }
    expected = dict.fromkeys(METRICS, 0.0)
    for said, answer, named, facts, has_answer, has_facts in rows:
        a, f = naive_answer(said, answer), naive_facts(named, facts)
        precision, recall = a[2] * f[2], a[3] * f[3]
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        joint = (a[0] * f[0], f1, precision, recall)
        for prefix, values, counts in (
            ("", a, has_answer),
            ("sp_", f, has_facts),
            ("joint_", joint, has_answer * has_facts),
        ):
            for part, value in zip(("em", "f1", "prec", "recall"), values, strict=True):
                expected[prefix + part] += value * counts / len(rows)
    assert evaluate(prediction, gold) == pytest.approx(expected)


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
def test_answers_by_hand(prediction: str, gold: str, em: float, f1: float) -> None:
    assert answer_scores(prediction, gold)[:2] == (em, pytest.approx(f1))


def test_facts_and_joint_by_hand() -> None:
    facts = fact_scores([["A", 0], ["B", 1], ["B", 1], ["C", 2]], [["A", 0], ["B", 1]])
    assert facts == pytest.approx((0.0, 0.8, 2 / 3, 1.0))
    assert fact_scores([], [["A", 0]]) == (0.0, 0.0, 0.0, 0.0)
    assert fact_scores([["A", 0]], [["A", 0]]) == (1.0, 1.0, 1.0, 1.0)
    answer = answer_scores("Greenwich Village, New York City", "Greenwich Village")
    precision, recall = 2 / 5 * 2 / 3, 1.0
    assert joint_scores(answer, facts) == pytest.approx((0, 2 * precision / (precision + recall), precision, recall))


@given(ANSWERS, ANSWERS)
def test_what_holds_for_any_answers(prediction: str, gold: str) -> None:
    em, (f1, precision, recall) = exact_match(prediction, gold), f1_score(prediction, gold)
    assert 0 <= f1 <= 1 and min(precision, recall) <= f1 + 1e-12 and f1 <= max(precision, recall) + 1e-12
    assert f1_score(gold, prediction) == (f1, recall, precision)
    assert em <= sub_exact_match(prediction, gold)
    assert f1 == 1.0 or not em or not normalize_answer(gold)
    assert normalize_answer(normalize_answer(gold)) == normalize_answer(gold)
