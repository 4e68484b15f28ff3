"""HotpotQA's official metrics, counted by hand."""

from __future__ import annotations

import pytest

from agent_gym.envs.hotpotqa.scoring import answer_scores, evaluate, fact_scores, joint_scores


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


def test_what_was_not_predicted_counts_as_nothing() -> None:
    gold = [{"_id": n, "answer": "Paris", "supporting_facts": [["A", 0]]} for n in "abcd"]
    found = evaluate(
        {"answer": {"a": "paris", "b": "Paris", "x": "Paris"}, "sp": {"a": [["A", 0]], "c": [["B", 0]]}}, gold
    )
    assert [found[name] for name in ("em", "f1", "sp_em", "joint_em", "joint_f1")] == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert set(evaluate({"answer": {}, "sp": {}}, []).values()) == {0.0}
