"""The kinds of judges: the questions of each about the episodes of a group, and its scores in [0, 1].

rubric      one request per episode     criteria with weights
reasoning   one request per episode     two numbers per turn: does the thought support the action, is it grounded
pairwise    n (n - 1) per group of n    which of two is better, each pair in both orders
ranking     one request per group       a score for each, relative to the others
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar, Protocol

from agent_gym.errors import ConfigError, quoted
from agent_gym.judges.questions import Case, Part, Question

Verdict = Sequence[int]
_SCALE = 10
_RANKS = 100  # finer, since a group may have many members
GOAL = "The assistant does what it was asked to do, correctly and completely."


class JudgeKind(Protocol):
    """Pure functions. `cases` are one episode or, where the kind compares, the different episodes of a group."""

    compares: ClassVar[bool] = False
    per_step: ClassVar[bool] = False

    def questions(self, cases: Sequence[Case]) -> list[Question]: ...

    def scores(self, cases: Sequence[Case], verdicts: Sequence[Verdict]) -> list[list[float]]:
        """Return for each case its score, or one for each of its turns, from the answers to the questions."""


@dataclass(frozen=True)
class Rubric(JudgeKind):
    """The weighted mean of the answers to criteria, each from 0 (not at all) to 10 (fully)."""

    criteria: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        if not self.criteria:
            raise ConfigError("a rubric has no criteria; give a mapping from criteria to weights")
        for text, weight in self.criteria:
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
                raise ConfigError(f"the weight of criterion {quoted(text)} is {weight!r}; it must be a number above 0")

    def questions(self, cases: Sequence[Case]) -> list[Question]:
        (case,) = cases
        criteria = "\n".join(f"{number}. {text}" for number, (text, _) in enumerate(self.criteria, 1))
        task = f"How far does the assistant meet each criterion, from 0 (not at all) to {_SCALE} (fully)?\n{criteria}"
        return [Question((*case.before(), *case.after()), task, len(self.criteria), _SCALE)]

    def scores(self, cases: Sequence[Case], verdicts: Sequence[Verdict]) -> list[list[float]]:
        weights = [weight for _, weight in self.criteria]
        total = sum(weight * number for weight, number in zip(weights, verdicts[0], strict=True))
        return [[total / sum(weights) / _SCALE]]


@dataclass(frozen=True)
class Reasoning(JudgeKind):
    """Whether the thought of each turn supports its action and invents nothing: the product of both, each in [0, 1].

    RAGEN (arXiv:2504.20073) finds that without such a reward thought fades or is hallucinated; it gives no formula, and
    the two questions and their product are ours. An invented thought earns nothing, however well it fits the action.
    """

    per_step: ClassVar[bool] = True

    def questions(self, cases: Sequence[Case]) -> list[Question]:
        (case,) = cases
        task = (
            f"The thought of a turn is what the assistant wrote in it besides its calls of tools and its final answer. "
            f"Judge the thought of each turn by two numbers from 0 to {_SCALE}. The first: does the thought support "
            f"the action, so that the action follows from it? {_SCALE} if it does, 0 if it does not or there is no "
            f"thought. The second: is the thought grounded? {_SCALE} if each fact and each result in it stands in the "
            "task or in an answer of the world before this turn, or follows from them; 0 if it invents one. Give both "
            "numbers of turn 1, then both of turn 2, and so on."
        )
        return [Question((*case.before(), *case.after()), task, 2 * len(case.turns), _SCALE)]

    def scores(self, cases: Sequence[Case], verdicts: Sequence[Verdict]) -> list[list[float]]:
        numbers = verdicts[0]
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [[support * grounded / _SCALE**2 for support, grounded in pairs]]


@dataclass(frozen=True)
class Pairwise(JudgeKind):
    """The share of comparisons with other episodes of the group that an episode wins; a tie is half.

    Each pair is asked about in both orders, since judges prefer a place (Zheng et al., arXiv:2306.05685).
    """

    goal: str = GOAL
    compares: ClassVar[bool] = True

    def questions(self, cases: Sequence[Case]) -> list[Question]:
        task = (
            f"Two assistants were given the same task. Which of them did better? What counts: {self.goal}\nThe number "
            "is 1 if the first did better, 2 if the second did, and 0 if they did equally well."
        )
        return [Question(_compared(order), task, 1, 2) for a, b in combinations(cases, 2) for order in ((a, b), (b, a))]

    def scores(self, cases: Sequence[Case], verdicts: Sequence[Verdict]) -> list[list[float]]:
        points = [0.0] * len(cases)
        pairs = combinations(range(len(cases)), 2)
        for (i, j), forward, backward in zip(pairs, verdicts[::2], verdicts[1::2], strict=True):
            for (number,), first, second in ((forward, i, j), (backward, j, i)):
                points[first] += (0.5, 1.0, 0.0)[number] / 2
                points[second] += (0.5, 0.0, 1.0)[number] / 2
        return [[one / (len(cases) - 1)] for one in points]

    def flips(self, verdicts: Sequence[Verdict]) -> list[bool]:
        """Return for each pair whether the verdict changed with the order."""
        pairs = zip(verdicts[::2], verdicts[1::2], strict=True)
        return [backward != (0, 2, 1)[forward] for (forward,), (backward,) in pairs]


@dataclass(frozen=True)
class Ranking(JudgeKind):
    """A score for each episode of a group, relative to the others, all in one request.

    So does RULER of OpenPipe's ART: to rank attempts at one task is easier than to score one alone, and the information
    that a group shares, such as the opening, is read once.
    """

    goal: str = GOAL
    backwards: bool = False  # the other way round, which shows the influence of the order
    compares: ClassVar[bool] = True

    def questions(self, cases: Sequence[Case]) -> list[Question]:
        task = (
            f"{len(cases)} assistants were given the same task. Give each a score from 0 to {_RANKS}, relative to the "
            f"others: the better, the higher, and the same score only for equally good ones. What counts: {self.goal}"
        )
        return [Question(_compared(cases[::-1] if self.backwards else cases), task, len(cases), _RANKS)]

    def scores(self, cases: Sequence[Case], verdicts: Sequence[Verdict]) -> list[list[float]]:
        numbers = verdicts[0][::-1] if self.backwards else verdicts[0]
        return [[number / _RANKS] for number in numbers]


def _compared(cases: Sequence[Case]) -> tuple[Part, ...]:
    """Write several cases one after the other, and the text before their turns once if it is the same."""
    same = all(case.before() == cases[0].before() for case in cases)
    parts = [*cases[0].before()] if same else []
    for number, case in enumerate(cases, 1):
        name = f"assistant {number}, "
        parts += [] if same else [(name + heading, text) for heading, text in case.before()]
        parts += case.after(name)
    return tuple(parts)
