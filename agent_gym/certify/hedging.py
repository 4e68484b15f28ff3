"""Whether the right answer among others counts: who may list guesses need not know which of them is right.

No script can do this by itself where answers are many, so that it is no attack of the battery. A policy that has found
a page with the answer can, and RL leads it there: it repeats all that it has read.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent_gym.certify.record import Subject, outcome
from agent_gym.testing import expert_turns, policy_texts

_OTHERS = 10


def hedging(subject: Subject, split: str, tasks: Iterable[int]) -> float | None:
    """Return in which share of tasks the right answer among others counts, by the best way to write them.

    None where there are no answers to list: the expert's last turns are alike, or no gold answer is named.
    """
    solved: list[list[bool]] = []
    for index in tasks:
        if episodes := _hedged(subject, (split, index)):
            solved.append([outcome(subject.play(subject.env, turns, (split, index)))[1] for turns in episodes])
    return max(sum(way) / len(way) for way in zip(*solved, strict=True)) if solved else None


def _hedged(subject: Subject, task: tuple[str, int]) -> list[list[str]]:
    """Return episodes that end with the right answer among others, one for each way to write them."""
    start, end, answers = subject.stated
    if subject.has_expert:
        *before, last = policy_texts(subject.play(subject.env, expert_turns(subject.env), task))
        right = last[len(start) : len(last) - len(end)] if last.startswith(start) and last.endswith(end) else ""
    else:
        before, right = [], str(subject.gold(*task) or "")
    others = [one for one in answers if one and one not in right and right not in one][:_OTHERS]
    if not right or not others:
        return []
    several = [*others[: len(others) // 2], right, *others[len(others) // 2 :]]
    texts = [a + joint.join(several) + b for a, b in subject.forms for joint in (", ", " ")]
    return [[*before, text] for text in [*texts, "\n".join(start + one + end for one in several)]]
