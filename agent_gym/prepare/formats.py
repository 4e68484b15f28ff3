"""Rows as their sources have them, brought into the columns that the environments read.

One function and one set of columns per kind. They raise KeyError, TypeError or ValueError for rows of another kind;
whoever calls them adds the file and the line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_gym.prepare.recipe import Row

WORD_PROBLEM = {"question": "text", "answer": "text"}
MATH_PROBLEM = {"problem": "text", "answer": "text"}

# The columns of HotpotQA on the hub. The official files have pairs instead, of a text and a number or a list, and a
# column of parquet has one type.
MULTI_HOP = {
    "id": "text",
    "question": "text",
    "answer": "text",
    "type": "text?",
    "level": "text?",
    "supporting_facts": {"title": ["text"], "sent_id": ["number"]},
    "context": {"title": ["text"], "sentences": [["text"]]},
}

# MuSiQue's own; the environment turns its paragraphs into HotpotQA's form.
MUSIQUE = {
    "id": "text",
    "question": "text",
    "answer": "text",
    "answer_aliases": ["text"],
    "answerable": "flag",
    "paragraphs": [{"idx": "number", "title": "text", "paragraph_text": "text", "is_supporting": "flag"}],
    "question_decomposition": [{"question": "text", "answer": "text", "paragraph_support_idx": "number?"}],
}

# What DAPO-Math-17k wraps around each problem. The environment has a prompt of its own.
_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'


def word_problem(row: Row) -> dict[str, Any]:
    """Read a row of GSM8K (arXiv:2110.14168)."""
    return {"question": row["question"], "answer": row["answer"]}


def math_problem(row: Row) -> dict[str, Any]:
    """Read a row of DAPO-Math-17k (arXiv:2503.14476), in verl's columns, or one with problem and answer."""
    if "problem" in row:
        problem, answer = row["problem"], row["answer"]
    else:
        problem = row["prompt"][-1]["content"].removeprefix(_BEFORE).removesuffix(_AFTER)
        answer = row["reward_model"]["ground_truth"]
    whole = isinstance(answer, int) and not isinstance(answer, bool)
    return {"problem": problem, "answer": str(answer) if whole else answer}


def multi_hop(row: Row) -> dict[str, Any]:
    """Read a row of HotpotQA (arXiv:1809.09600) or 2WikiMultihopQA (arXiv:2011.01060), official or the hub's."""
    return {
        "id": str(row.get("id") or row.get("_id") or ""),
        "question": row["question"],
        "answer": row["answer"],
        "type": row.get("type"),
        "level": row.get("level"),
        "supporting_facts": _columns(row["supporting_facts"], "sent_id"),
        "context": _columns(row["context"], "sentences"),
    }


def musique(row: Row) -> dict[str, Any]:
    """Read a row of MuSiQue (arXiv:2108.00573)."""
    return {
        "id": str(row.get("id", "")),
        "question": row["question"],
        "answer": row["answer"],
        "answer_aliases": list(row.get("answer_aliases") or ()),
        "answerable": row.get("answerable", True),
        "paragraphs": [
            {name: paragraph[name] for name in ("idx", "title", "paragraph_text", "is_supporting")}
            for paragraph in row["paragraphs"]
        ],
        "question_decomposition": [
            {
                "question": step["question"],
                "answer": step["answer"],
                "paragraph_support_idx": step.get("paragraph_support_idx"),
            }
            for step in row.get("question_decomposition") or ()
        ],
    }


def with_context(row: Row) -> Row:
    """Give a row of any kind the column `context`, from which a corpus takes its paragraphs."""
    if "paragraphs" not in row:
        return row
    return {"context": [[paragraph["title"], [paragraph["paragraph_text"]]] for paragraph in row["paragraphs"]]}


def _columns(value: Any, second: str) -> dict[str, list[Any]]:
    """Make two columns of pairs; some copies hold either form as a JSON text."""
    value = json.loads(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return {"title": list(value["title"]), second: list(value[second])}
    pairs = [(first, rest) for first, rest in value]
    return {"title": [first for first, _ in pairs], second: [rest for _, rest in pairs]}
