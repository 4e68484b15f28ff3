"""Problems made on the spot, of a kind in which a program helps: the data there is before anything is downloaded.

The kinds and their answers are in kinds.py, the sentences in wording.txt. A hash of a problem's kind and numbers, in
any order, decides which splits may ask it: six tenths of all numbers are for training, two for development, two for
tests.

Left out on purpose: proofs, geometry, and problems that need an idea before they need a program.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from typing import Any

from agent_gym.data import SplitRows, read_wordings
from agent_gym.envs.retool.embedded.kinds import KINDS, LEVELS
from agent_gym.errors import one_of, some_of

SMALLEST = 10  # a whole answer has two digits at least, so that it is not guessed
# Split to the numbers that it may have, and to the split of wording.txt whose sentences it uses.
SPLITS = {
    "train": ("train", "train"),
    "validation": ("dev", "validation"),
    "test": ("test", "test"),
    "unseen_numbers_dev": ("dev", "train"),
    "unseen_numbers": ("test", "train"),
}
_SALT = 2728  # such that kinds with few numbers have some of them in each split
_NUMBERS = ("train",) * 6 + ("dev",) * 2 + ("test",) * 2

WORDINGS = read_wordings(__package__)


class RetoolProblems(SplitRows):
    """The generated problems of one split: rows with problem, answer, program, kind and level.

    In train the problems of kinds with few numbers come back.

    Args:
        split, size: see `SplitRows`.
        level, kinds: 1 to 3, and which of `KINDS` occur; None for all of them, mixed. `ConfigError` for others.
    """

    SIZES = {split: 20_000 if split == "train" else 1_000 for split in SPLITS}
    KEY = "problem"

    def __init__(
        self, split: str, size: int | None = None, level: int | None = None, kinds: Sequence[str] | None = None
    ) -> None:
        super().__init__(split, size)
        self.level = one_of("level", level, (*LEVELS, None))
        self.kinds = some_of("kinds", KINDS if kinds is None else kinds, tuple(KINDS))

    def draw(self, index: int, attempt: int) -> dict[str, Any]:
        rng = random.Random(f"{self.split}/{self.level or 'all'}/{index}" + (f"/{attempt}" if attempt else ""))
        kind = rng.choice(self.kinds)
        level = self.level or rng.choice(LEVELS)
        numbers, worded = SPLITS[self.split]
        wording = rng.choice(WORDINGS[kind][worded])
        while True:
            draft = KINDS[kind](rng, level)
            small = draft.gold.denominator == 1 and -SMALLEST < draft.gold < SMALLEST
            # Every kind has numbers of all three at every level.
            used = sorted(re.findall("[0-9]+", " ".join(map(str, draft.values.values()))))
            digest = hashlib.blake2b(f"{_SALT}/{kind}/{' '.join(used)}".encode(), digest_size=8).digest()
            if not small and _NUMBERS[int.from_bytes(digest) % len(_NUMBERS)] == numbers:
                break
        return {
            "problem": wording.format(**draft.values),
            "answer": str(draft.gold),
            "program": draft.program,
            "kind": kind,
            "level": level,
        }
