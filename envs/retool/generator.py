"""Problems made on the spot, of a kind in which a program helps: the data there is before anything is downloaded.

Problem i of a split depends on the split and on i alone (and on the level, if one is chosen), whatever the process or
the platform. The kinds and their answers are in arithmetic.py and counting.py, the sentences, and which split may use
which, in wording.py.

Left out on purpose: proofs, geometry, and whatever needs an idea before it needs a program. These problems are for
learning to use an interpreter; how well a policy does at mathematics only real problems can tell.
"""

from __future__ import annotations

import functools
import random
from typing import Any

from agent_gym.data import GeneratedRows
from agent_gym.envs.retool import arithmetic, counting
from agent_gym.envs.retool.kind import LEVELS
from agent_gym.envs.retool.wording import SPLITS, WORDINGS
from agent_gym.errors import ConfigError

KINDS = {**arithmetic.KINDS, **counting.KINDS}
SMALLEST = 10  # a whole answer has two digits at least, so that it is not guessed


class GeneratedProblems(GeneratedRows):
    """The generated problems of one split: rows with problem, answer, program, kind and level.

    Args:
        split: `train`, `validation` or `test`. No wording occurs in two of them.
        size: how many there are. Problem i is the same at any size.
        level: 1 to 3, or None for all of them, mixed.

    Raises:
        ConfigError: on an unknown split or level, or a size below one.
    """

    def __init__(self, split: str, size: int, level: int | None = None) -> None:
        super().__init__(size)
        if split not in SPLITS:
            raise ConfigError(f"unknown split {split!r}: generated problems have {', '.join(SPLITS)}")
        if level is not None and level not in LEVELS:
            raise ConfigError(f"level is {level!r}; allowed: {', '.join(map(str, LEVELS))}, or None for all")
        self.split, self.level = split, level

    def make(self, index: int) -> dict[str, Any]:
        """Make problem `index`."""
        return dict(_problem(self.split, self.level, index))


# The episodes of a group and the epochs after it ask for the same problems.
@functools.lru_cache(maxsize=8192)
def _problem(split: str, level: int | None, index: int) -> dict[str, Any]:
    # A string seed goes through SHA-512, so that neighbouring problems share nothing and PYTHONHASHSEED is no matter.
    rng = random.Random(f"{split}/{level or 'all'}/{index}")
    kind = rng.choice(list(KINDS))
    chosen = level or rng.choice(LEVELS)
    wording = rng.choice(WORDINGS[kind][split])
    draft = KINDS[kind](rng, chosen)
    while draft.gold.denominator == 1 and -SMALLEST < draft.gold < SMALLEST:
        draft = KINDS[kind](rng, chosen)
    return {
        "problem": wording.format(**draft.values),
        "answer": str(draft.gold),
        "program": draft.program,
        "kind": kind,
        "level": chosen,
    }
