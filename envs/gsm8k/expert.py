"""The GSM8K expert: reads the calculator annotations of a worked answer and plays them as tool calls.

GSM8K marks each computation of a solution, as in `48/2 = <<48/2=24>>24` (arXiv:2110.14168, section 4.2). The left side
of a mark is what a person would have typed into a calculator, so the expert calls the tool with it, one call per turn
while the turns suffice, and then states the gold answer. One row in 12 of the test split (one in 16 of train) ends in
prose, its last computation without a mark; the expert does not invent the missing call.
"""

from __future__ import annotations

import re

_ANNOTATION = re.compile(r"<<([^<>=]+)=([^<>]*)>>")


def annotated_steps(answer: str) -> list[tuple[str, str]]:
    """Return the (expression, value) pairs of a worked answer in order."""
    return [(match[1].strip(), match[2].strip()) for match in _ANNOTATION.finditer(answer)]


def gold_answer(answer: str) -> str:
    """Return what stands after the last `####` of a worked answer, without thousands separators."""
    return answer.rpartition("####")[2].strip().replace(",", "")
