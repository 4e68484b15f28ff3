"""Problems made on the spot, of a kind in which a program helps: the data there is before anything is downloaded.

Problem i of a split depends on the split and on i alone (and on the level and the kinds, if they are chosen), whatever
the process or the platform. The kinds and their answers are in arithmetic.py and counting.py, the sentences, and which
split may use which, in wording.py.

Left out on purpose: proofs, geometry, and whatever needs an idea before it needs a program. These problems are for
learning to use an interpreter; how well a policy does at mathematics only real problems can tell.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

from agent_gym.data import GeneratedRows
from agent_gym.envs.retool import arithmetic, counting
from agent_gym.envs.retool.kind import LEVELS, Draft
from agent_gym.envs.retool.wording import WORDINGS
from agent_gym.errors import ConfigError

KINDS = {**arithmetic.KINDS, **counting.KINDS}
SMALLEST = 10  # a whole answer has two digits at least, so that it is not guessed
SPLITS = {
    "train": "train",
    "validation": "validation",
    "test": "test",
    "unseen_numbers_dev": "train",
    "unseen_numbers": "train",
}
"""Split to the split of wording.py whose sentences it uses."""
SIZES = {"train": 20_000, **dict.fromkeys(("validation", "test", "unseen_numbers_dev", "unseen_numbers"), 1_000)}
"""Split to the size that the environment gives it; what is seen is what the first 20,000 problems of train have."""
_TRIES = 1_000


class GeneratedProblems(GeneratedRows):
    """The generated problems of one split: rows with problem, answer, program, kind and level.

    Args:
        split: `train`, `validation` or `test`, of which no two share a wording, or `unseen_numbers`, which has the
            sentences of training with numbers that no training problem of the kind has, or `unseen_numbers_dev`,
            another draw of the same.
        size: how many there are. Problem i is the same at any size.
        level: 1 to 3, or None for all of them, mixed.
        kinds: which of `KINDS` occur, or None for all of them.

    Raises:
        ConfigError: on an unknown split, level or kind, or a size below one.
    """

    def __init__(self, split: str, size: int, level: int | None = None, kinds: Sequence[str] | None = None) -> None:
        super().__init__(size)
        if split not in SPLITS:
            raise ConfigError(f"unknown split {split!r}: generated problems have {', '.join(SPLITS)}")
        if level is not None and level not in LEVELS:
            raise ConfigError(f"level is {level!r}; allowed: {', '.join(map(str, LEVELS))}, or None for all")
        self.split, self.level, self.kinds = split, level, check_kinds(kinds)

    def make(self, index: int) -> dict[str, Any]:
        """Make problem `index`."""
        return dict(_problem(self.split, self.level, self.kinds, index))


def check_kinds(kinds: Sequence[str] | None) -> tuple[str, ...]:
    """Return the kinds in the order of `KINDS`; None means all of them.

    Raises:
        ConfigError: if there are none, or unknown ones.
    """
    if kinds is None:
        return tuple(KINDS)
    if isinstance(kinds, str) or not kinds or not set(kinds) <= set(KINDS):
        raise ConfigError(f"kinds is {kinds!r}; allowed: some of {', '.join(KINDS)}, for example ('coins', 'apart')")
    return tuple(kind for kind in KINDS if kind in kinds)


# The episodes of a group and the epochs after it ask for the same problems.
@functools.lru_cache(maxsize=8192)
def _problem(split: str, level: int | None, kinds: tuple[str, ...], index: int) -> dict[str, Any]:
    # A string seed goes through SHA-512, so that neighbouring problems share nothing and PYTHONHASHSEED is no matter.
    rng = random.Random(f"{split}/{level or 'all'}/{index}")
    kind, chosen, wording, draft = _draw(rng, split, level, kinds)
    if split.startswith("unseen_numbers"):
        seen, tries = _seen(level, kinds), 0
        while (kind, *draft.values.values()) in seen:
            kind, chosen, wording, draft = _draw(rng, split, level, kinds)
            tries += 1
            if tries == _TRIES:
                raise ConfigError(
                    f"split {split!r}: training has all numbers of the kinds {', '.join(kinds)} at the level {level}; "
                    "choose further kinds, or another level"
                )
    return {
        "problem": wording.format(**draft.values),
        "answer": str(draft.gold),
        "program": draft.program,
        "kind": kind,
        "level": chosen,
    }


def _draw(rng: random.Random, split: str, level: int | None, kinds: tuple[str, ...]) -> tuple[str, int, str, Draft]:
    kind = rng.choice(kinds)
    chosen = level or rng.choice(LEVELS)
    wording = rng.choice(WORDINGS[kind][SPLITS[split]])
    draft = KINDS[kind](rng, chosen)
    while draft.gold.denominator == 1 and -SMALLEST < draft.gold < SMALLEST:
        draft = KINDS[kind](rng, chosen)
    return kind, chosen, wording, draft


@functools.lru_cache(maxsize=4)
def _seen(level: int | None, kinds: tuple[str, ...]) -> frozenset[tuple[Any, ...]]:
    """Find the numbers of all training problems."""
    seen = set()
    for index in range(SIZES["train"]):
        kind, _, _, draft = _draw(random.Random(f"train/{level or 'all'}/{index}"), "train", level, kinds)
        seen.add((kind, *draft.values.values()))
    return frozenset(seen)
