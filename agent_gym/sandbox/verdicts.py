"""A verdict by tests that run in one process with the code they judge, which may forge whatever that process reports.

Such code can read the tests, replace pytest, or write the report: nothing in its process keeps a secret from it. So it
is asked for something that it cannot know. Each judging test has variants with another expected value or the opposite
assertion, each of which failed on the right code when the task was built. Several runs, in sandboxes that share
nothing, have each test as it is or as a variant, drawn by lot outside of them. A run counts if the tests as they are
pass and the variants fail. To forge that, code has to tell one from the other, which only the right
behaviour does.

Not held: code that guesses from the source of a test whether a person would have written it, and code that is right
only for the inputs of the tests.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from agent_gym.sandbox.suites import Outcomes, Suite, run_suite

RUNS = 4
_KEPT_FUNCTIONS = 6  # with tests that passed before, and variants
_BITS = 12  # that a forger has to guess


@dataclass(frozen=True)
class Variant:
    """A change of a test file after which some tests fail on the right code."""

    file: str
    begin: int  # bytes
    end: int
    text: str
    ids: tuple[str, ...]  # the tests that fail by it
    touched: tuple[str, ...]  # all of the function that is changed: variants of one function exclude each other


@dataclass(frozen=True)
class Hidden:
    """The tests that decide about a task."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    variants: tuple[Variant, ...]
    seconds: float  # of CPU time, that a run may take

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Hidden:
        """Read `to_json`; KeyError, TypeError or ValueError for anything else."""
        variants = tuple(
            Variant(**{**one, "ids": tuple(one["ids"]), "touched": tuple(one["touched"])}) for one in read["variants"]
        )
        failing, passing = (tuple(map(str, read[name])) for name in ("fail_to_pass", "pass_to_pass"))
        return cls(failing, passing, variants, float(read["seconds"]))


@dataclass(frozen=True)
class SuiteVerdict:
    """The result of all runs."""

    solved: bool
    fail_to_pass: float  # the share of these tests that pass, and whose variants fail
    pass_to_pass: float
    forged: bool  # whether a test passed as it is and as a variant: right code never does that
    seconds: float  # of CPU time


def changed(tree: Mapping[str, bytes], variants: Sequence[Variant]) -> dict[str, bytes]:
    """Return a tree with variants in it."""
    made = dict(tree)
    for one in sorted(variants, key=lambda one: -one.begin):
        content = made[one.file]
        made[one.file] = content[: one.begin] + one.text.encode() + content[one.end :]
    return made


def judge(suite: Suite, hidden: Hidden, *, runs: int = RUNS, lots: random.Random | None = None) -> SuiteVerdict:
    """Run the tests of a task, and the variants of some, and decide.

    Args:
        suite: the code to be judged, with the tests.
        hidden: the task's tests.
        runs: how many runs there are at least, two or more.
        lots: which variants a run has; by default nobody can know them before.

    Raises:
        SandboxError: if the sandbox failed, and not the tests.
    """
    drawn = _draw(hidden, runs, lots or secrets.SystemRandom())
    runs = len(drawn)
    judging = set(hidden.fail_to_pass)
    kept = {name for variants in drawn for one in variants for name in one.touched} - judging

    def run_lot(number: int) -> tuple[Outcomes, set[str], set[str]]:
        failing = {name for one in drawn[number] for name in one.ids}
        touched = {name for one in drawn[number] for name in one.touched}
        wanted = judging | kept | (set(hidden.pass_to_pass) if not number else set())
        passing = wanted - touched
        tree = changed(suite.tree, drawn[number])
        return run_suite(replace(suite, tree=tree), passing | failing, seconds=hidden.seconds), passing, failing

    played: list[tuple[Outcomes, set[str], set[str]]] = []
    held, lost = True, set[str]()
    with ThreadPoolExecutor(2) as pool:
        while held and not lost and len(played) < runs:
            played += pool.map(run_lot, range(len(played), min(len(played) + 2, runs)))
            held = all(outcomes.by_id.get(name) == "failed" for outcomes, _, failing in played for name in failing)
            lost = {name for outcomes, passing, _ in played for name in passing - outcomes.passed()}
    as_variants = {name for outcomes, _, failing in played for name in failing & outcomes.passed()}
    forged = any(not as_variants.isdisjoint(passing & outcomes.passed()) for outcomes, passing, _ in played)

    def share(names: tuple[str, ...]) -> float:
        return 1 - len((lost | as_variants).intersection(names)) / max(1, len(names))

    solved = held and not lost
    seconds = sum(outcomes.seconds for outcomes, _, _ in played)
    return SuiteVerdict(solved, share(hidden.fail_to_pass), share(hidden.pass_to_pass), forged, seconds)


def _draw(hidden: Hidden, least: int, lots: random.Random) -> list[list[Variant]]:
    """Draw the variants of each run: each function is a variant in one of the first two runs, and itself in the other.

    There are so many runs that a guess, for each function in each run, is right in 1 of 2^12 at most.
    """
    of: dict[tuple[str, ...], list[Variant]] = {}
    for one in hidden.variants:
        of.setdefault(one.touched, []).append(one)
    judging = {touched for touched in of if not set(hidden.fail_to_pass).isdisjoint(touched)}
    others = sorted(of.keys() - judging)
    functions = [*sorted(judging), *lots.sample(others, min(_KEPT_FUNCTIONS, len(others)))]
    runs = max(least, 1 + math.ceil(_BITS / max(1, len(functions)))) if functions else least
    drawn: list[list[Variant]] = [[] for _ in range(runs)]
    for function in functions:
        first = lots.random() < 0.5
        sides = [first, not first, *(lots.random() < 0.5 for _ in range(runs - 2))]
        for variants, side in zip(drawn, sides, strict=True):
            if side:
                variants.append(lots.choice(of[function]))
    return drawn
