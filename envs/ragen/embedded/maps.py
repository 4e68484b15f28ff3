"""Maps of FrozenLake on which the goal can be reached."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agent_gym.data import SplitRows
from agent_gym.envs.ragen.embedded import split_of
from agent_gym.envs.ragen.lake import Lake
from agent_gym.errors import ConfigError

CHANCE = 0.6
"""The least chance of the best player."""
_HOLES = 0.3  # most of the cells that are holes
_MOST_DRAWS = 20_000


class Maps(SplitRows):
    """The maps of a split, of `side` squared cells, on which the best player has `CHANCE` in `turns` turns."""

    SIZES = {"train": 20_000, "validation": 200, "test": 200}
    KEY = ""

    def __init__(self, split: str, size: int | None = None, *, side: int, success_rate: float, turns: int) -> None:
        super().__init__(split, size)
        self.side, self.success_rate, self.turns = side, success_rate, turns

    def _mark(self, row: Any) -> Any:
        return tuple(row["map"])

    def drafts(self, index: int) -> Iterator[Any]:
        rng = random.Random(f"frozenlake/{self.split}/{self.side}/{self.success_rate:.6f}/{self.turns}/{index}")
        draws = 0
        while draws < _MOST_DRAWS:
            draws += 1
            rows = _drawn(rng, self.side)
            if split_of("\n".join(rows)) != self.split:
                continue
            lake = Lake.read(rows, self.success_rate)
            if lake.values(self.turns)[-1, lake.cells.index("S")] >= CHANCE:
                yield {"map": list(rows)}
                draws = 0
        raise ConfigError(
            f"no map of size {self.side} belongs to split {self.split!r} on which a goal can be reached with a chance "
            f"of {CHANCE} at success_rate={self.success_rate:g}; take another size, success_rate or difficulty"
        )


def _drawn(rng: random.Random, side: int) -> tuple[str, ...]:
    """Draw holes, and start and goal at least `side` - 1 moves apart."""
    count = side * side
    cells = ["F"] * count
    start, *others = rng.sample(range(count), count)
    far = [at for at in others if abs(at // side - start // side) + abs(at % side - start % side) >= side - 1]
    if not far:
        return _drawn(rng, side)
    others.remove(far[0])
    for hole in others[: rng.randint(1, int(_HOLES * count))]:
        cells[hole] = "H"
    cells[start], cells[far[0]] = "S", "G"
    return tuple("".join(cells[at : at + side]) for at in range(0, count, side))
