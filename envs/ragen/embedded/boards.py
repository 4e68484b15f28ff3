"""Boards of Sokoban, made by pulling boxes off the targets, so that each can be solved."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from agent_gym.data import SplitRows
from agent_gym.envs.ragen.board import Board
from agent_gym.envs.ragen.embedded import split_of
from agent_gym.errors import ConfigError

_WALLS = 0.25  # most of the inner cells that are walls
_MOST_DRAWS = 1000
_MOST_POSITIONS = 10_000  # of one draw of walls; with them every generator ends in well under a second


class Boards(SplitRows):
    """The boards of a split, with `side` cells along each side and `longest` moves at most."""

    SIZES = {"train": 20_000, "validation": 200, "test": 200}
    KEY = ""

    def __init__(self, split: str, size: int | None = None, *, side: int, boxes: int, longest: int) -> None:
        super().__init__(split, size)
        self.side, self.boxes, self.longest = side, boxes, longest

    def _mark(self, row: Any) -> Any:
        return tuple(row["board"])

    def drafts(self, index: int) -> Iterator[Any]:
        rng = random.Random(f"sokoban/{self.split}/{self.side}/{self.boxes}/{self.longest}/{index}")
        draws = 0
        while draws < _MOST_DRAWS:
            draws += 1
            solved = _drawn(rng, self.side, self.boxes)
            far = [at for at, moves in _positions(solved, self.longest).items() if moves >= self.longest // 2]
            rng.shuffle(far)
            for boxes, player in far:
                if boxes & solved.targets:
                    continue
                rows = replace(solved, boxes=boxes, player=player).rows()
                if split_of("\n".join(rows)) == self.split:
                    yield {"board": rows}
                    draws = 0
                    break
        raise ConfigError(
            f"no board of size {self.side} with {self.boxes} boxes and at most {self.longest} moves belongs to split "
            f"{self.split!r}; take a larger size or other boxes or longest"
        )


def _drawn(rng: random.Random, side: int, boxes: int) -> Board:
    """Draw walls and targets, with the boxes on them."""
    inner = [row * side + column for row in range(1, side - 1) for column in range(1, side - 1)]
    rng.shuffle(inner)
    count = min(rng.randint(0, int(_WALLS * len(inner))), len(inner) - 2 * boxes - 1)
    targets = frozenset(inner[count : count + boxes])
    return Board(side, frozenset(range(side * side)) - {*inner[count:]}, targets, targets, inner[-1])


def _positions(solved: Board, longest: int) -> dict[tuple[frozenset[int], int], int]:
    """Return boxes and player of positions, with their distances: the moves of a shortest solution.

    A breadth-first search plays backwards: the player steps, and pulls the box behind or leaves it.
    """
    cells = [at for at in range(solved.width**2) if at not in solved.walls | solved.targets]
    distances = {(solved.targets, cell): 0 for cell in cells}
    queue = deque(distances)
    while queue and len(distances) < _MOST_POSITIONS:
        boxes, player = before = queue.popleft()
        distance = distances[before]
        for step in (-solved.width, solved.width, -1, 1) if distance < longest else ():
            to, behind = player + step, player - step
            if to in solved.walls or to in boxes:
                continue
            for after in (boxes, boxes - {behind} | {player} if behind in boxes else boxes):
                if (after, to) not in distances:
                    distances[after, to] = distance + 1
                    queue.append((after, to))
    return distances
