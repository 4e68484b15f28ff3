"""Problems made on the spot, of a kind in which a program helps: the data there is before anything is downloaded.

Problem i of a split depends on the split and on i alone (and on the level and the kinds, if they are chosen). The kinds
and their answers are in kinds.py, the sentences in wording.txt.

A hash of a problem's kind and numbers, in any order, decides which splits may ask it: six tenths of all numbers are for
training, two for development, two for tests.

Left out on purpose: proofs, geometry, and what needs an idea before it needs a program.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from agent_gym.data import DistinctRows
from agent_gym.envs.retool.embedded.kinds import KINDS, LEVELS
from agent_gym.errors import ConfigError

SMALLEST = 10  # a whole answer has two digits at least, so that it is not guessed
# Split to the numbers that it may have, and to the split of wording.txt whose sentences it uses.
SPLITS = {
    "train": ("train", "train"),
    "validation": ("dev", "validation"),
    "test": ("test", "test"),
    "unseen_numbers_dev": ("dev", "train"),
    "unseen_numbers": ("test", "train"),
}
SIZES = {split: 20_000 if split == "train" else 1_000 for split in SPLITS}
_SALT = 2728  # such that kinds with few numbers have some of them in each split
WORDED = ("train", "validation", "test")  # the splits that wording.txt names
_NUMBERS = ("train",) * 6 + ("dev",) * 2 + ("test",) * 2

WORDINGS: dict[str, dict[str, tuple[str, ...]]] = {}
for _block in files(__package__).joinpath("wording.txt").read_text("utf-8").strip().split("\n\n")[1:]:
    _kind, *_lines = _block.replace("\n" + " " * 12, " ").splitlines()
    _marked = [line.split(maxsplit=1) for line in _lines]
    WORDINGS[_kind] = {split: tuple(text for at, text in _marked if at == split) for split in WORDED}


class GeneratedProblems(DistinctRows):
    """The generated problems of one split: rows with problem, answer, program, kind and level.

    In train the problems of kinds with few numbers come back; in the other splits no problem occurs twice.

    Args:
        split: a key of `SPLITS`.
        size: how many there are at most. Problem i is the same at any size.
        level, kinds: 1 to 3, and which of `KINDS` occur; None for all of them, mixed.

    Raises:
        ConfigError: on an unknown split, level or kind, or a size below one.
    """

    def __init__(self, split: str, size: int, level: int | None = None, kinds: Sequence[str] | None = None) -> None:
        super().__init__(size, key=None if split == "train" else "problem")
        if split not in SPLITS:
            raise ConfigError(f"unknown split {split!r}: generated problems have {', '.join(SPLITS)}")
        if level is not None and level not in LEVELS:
            raise ConfigError(f"level is {level!r}; allowed: {', '.join(map(str, LEVELS))}, or None for all")
        self.split, self.level, self.kinds = split, level, check_kinds(kinds)

    def draw(self, index: int, attempt: int) -> dict[str, Any]:
        return dict(_problem(self.split, self.level, self.kinds, index, attempt))


def check_kinds(kinds: Sequence[str] | None) -> tuple[str, ...]:
    """Return the kinds in the order of `KINDS`, all for None; raise `ConfigError` for none or unknown ones."""
    if kinds is None:
        return tuple(KINDS)
    if isinstance(kinds, str) or not kinds or not set(kinds) <= set(KINDS):
        raise ConfigError(f"kinds is {kinds!r}; allowed: some of {', '.join(KINDS)}, for example ('coins', 'apart')")
    return tuple(kind for kind in KINDS if kind in kinds)


# The episodes of a group and the epochs after it ask for the same problems.
@functools.lru_cache(maxsize=8192)
def _problem(split: str, level: int | None, kinds: tuple[str, ...], index: int, attempt: int) -> dict[str, Any]:
    # A string seed goes through SHA-512, so that neighbouring problems share nothing and PYTHONHASHSEED is no matter.
    rng = random.Random(f"{split}/{level or 'all'}/{index}" + (f"/{attempt}" if attempt else ""))
    kind = rng.choice(kinds)
    chosen = level or rng.choice(LEVELS)
    numbers, worded = SPLITS[split]
    wording = rng.choice(WORDINGS[kind][worded])
    while True:
        draft = KINDS[kind](rng, chosen)
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
        "level": chosen,
    }
