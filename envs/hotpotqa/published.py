"""The rewards of three papers as named terms, next to the clean default.

| `reward=` | formula | of |
|---|---|---|
| `"em"` | EM of the last tagged answer, 0 without one | this library |
| `"search_r1"` | the same | Search-R1 (arXiv:2503.09516), `qa_em.py` |
| `"steppo"` | EM of the last tagged answer, of the whole turn where it has none | StepPO, `reward_fn.py` |
| `"agent_r1"` | `floor` + `turn_format` + `graded_answer` | Agent-R1 (arXiv:2511.14460), `qa_em_and_format.py` |

Agent-R1's lies between -1 and 1. It is kept with its oddities, because a comparison needs them, and they are why it is
not the default. Good form without any search earns -0.5, two well-formed calls earn 0 before anything is answered, and
these cannot be lost again. "Right" means that the gold answer is a substring, so that "unknown" is right where "no" is.
And an episode that runs out of turns is scored like any other, from -1 on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from agent_gym.rewards import exact_match, sub_exact_match

REWARDS: dict[str, Mapping[str, float]] = {
    "em": {"em": 1.0},
    "search_r1": {"em": 1.0},
    "steppo": {"response_em": 1.0},
    "agent_r1": {"floor": 1.0, "turn_format": 1.0, "graded_answer": 1.0},
}
"""Name of a reward to the weights of its terms; all other terms weigh nothing."""

_TAG = re.compile(r"</?answer>", re.IGNORECASE)


def response_em(turns: Sequence[str], golds: Sequence[str]) -> float:
    """StepPO's outcome of an answered episode: EM of the last turn's last `<answer>`, else of all it says.

    Args:
        turns: what the policy said, turn by turn.
        golds: answers that count as right.
    """
    return max(exact_match(_last_answer(turns[-1]), gold) for gold in golds)


def floor(turns: Sequence[str], golds: Sequence[str]) -> float:
    """Agent-R1's floor: every episode starts at -1."""
    return -1.0


def turn_format(turns: Sequence[str], golds: Sequence[str]) -> float:
    """Agent-R1's format score: 0.5 for each well-formed turn, 1 at most.

    A turn on the way is one `<think>` and one `<tool_call>` and nothing around them, the last one a `<think>` and an
    `<answer>`.
    """
    score = 0.5 * sum(
        all(turn.count(tag) == 1 for tag in ("<think>", "</think>", "<tool_call>", "</tool_call>"))
        and _is_frame(turn, "tool_call")
        for turn in turns[:-1]
    )
    return min(score + 0.5 * _is_frame(turns[-1], "answer"), 1.0)


def graded_answer(turns: Sequence[str], golds: Sequence[str]) -> float:
    """Agent-R1's answer score: 1 for a gold answer in the first `<answer>`, 0.2 for one elsewhere in the last turn.

    It only counts with a format score of at least 0.5.
    """
    if turn_format(turns, golds) < 0.5:
        return 0.0
    last = turns[-1]
    _, opened, rest = last.partition("<answer>")
    answer, closed, _ = rest.partition("</answer>")
    if opened and closed and any(sub_exact_match(answer, gold) for gold in golds):
        return 1.0
    return 0.2 * any(sub_exact_match(last, gold) for gold in golds)


TERMS: dict[str, Callable[[Sequence[str], Sequence[str]], float]] = {
    "response_em": response_em,
    "floor": floor,
    "turn_format": turn_format,
    "graded_answer": graded_answer,
}
"""The terms above by name; each is a function of the policy's turns and the gold answers."""

UNANSWERED = ("floor", "turn_format", "graded_answer")
"""Those that also score an episode that ran out of turns."""


def _is_frame(turn: str, tag: str) -> bool:
    """Whether a turn is `<think>...</think>...<tag>...</tag>`, as Agent-R1's patterns have it, but in linear time."""
    end = turn.removesuffix("\n")  # where the `$` of its patterns also matches
    thought = turn.find("</think>", len("<think>"))
    opened = turn.find(f"<{tag}>", thought)
    closed = len(end) - len(f"</{tag}>")
    inside = 0 <= thought < opened and opened + len(f"<{tag}>") <= closed
    return turn.startswith("<think>") and end.endswith(f"</{tag}>") and inside


def _last_answer(text: str) -> str:
    """The content of the last `<answer>...</answer>` in any case, read from the left without overlaps, or the text."""
    start, found = None, text
    for tag in _TAG.finditer(text):
        if tag[0][1] == "/":
            if start is not None:
                found, start = text[start : tag.start()], None
        elif start is None:
            start = tag.end()
    return found.strip()
