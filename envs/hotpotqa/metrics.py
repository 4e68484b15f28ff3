"""HotpotQA's official evaluation: answers, supporting facts, and both jointly (arXiv:1809.09600, section 5.2).

The numbers equal those of the authors' script `hotpot_evaluate_v1.py`, including what one might not expect: a question
without a prediction counts as zero, and a question of which only the answer or only the facts were predicted
counts for that part alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_gym.rewards import exact_match, f1_score

_PARTS = ("em", "f1", "prec", "recall")
METRICS = tuple(prefix + part for prefix in ("", "sp_", "joint_") for part in _PARTS)
Scores = tuple[float, float, float, float]
"""Exact match, F1, precision, recall."""


def answer_scores(prediction: str, gold: str) -> Scores:
    """Score one answer."""
    return exact_match(prediction, gold), *f1_score(prediction, gold)


def fact_scores(prediction: Iterable[Sequence[Any]], gold: Iterable[Sequence[Any]]) -> Scores:
    """Score the supporting facts of one question, given as (title, sentence number) pairs."""
    named, wanted = {tuple(fact) for fact in prediction}, {tuple(fact) for fact in gold}
    right = len(named & wanted)
    precision = right / len(named) if named else 0.0
    recall = right / len(wanted) if wanted else 0.0
    return float(named == wanted), _f1(precision, recall), precision, recall


def joint_scores(answer: Scores, facts: Scores) -> Scores:
    """Combine both: precision and recall are multiplied, so that a right answer for wrong reasons counts for little."""
    precision, recall = answer[2] * facts[2], answer[3] * facts[3]
    return answer[0] * facts[0], _f1(precision, recall), precision, recall


def evaluate(prediction: Mapping[str, Mapping[str, Any]], gold: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Score a set of predictions.

    Args:
        prediction: {"answer": {id: text}, "sp": {id: [[title, sentence], ...]}}, the official format.
        gold: rows with `_id`, `answer` and `supporting_facts`.

    Returns:
        The mean of each of `METRICS` over all gold rows.
    """
    totals = dict.fromkeys(METRICS, 0.0)
    rows = 0
    for row in gold:
        rows += 1
        scores: dict[str, Scores] = {}
        if row["_id"] in prediction["answer"]:
            scores[""] = answer_scores(prediction["answer"][row["_id"]], row["answer"])
        if row["_id"] in prediction["sp"]:
            scores["sp_"] = fact_scores(prediction["sp"][row["_id"]], row["supporting_facts"])
        if len(scores) == 2:
            scores["joint_"] = joint_scores(scores[""], scores["sp_"])
        for prefix, values in scores.items():
            for part, value in zip(_PARTS, values, strict=True):
                totals[prefix + part] += value
    return {name: total / max(1, rows) for name, total in totals.items()}


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
