"""Layouts of the maze: a square grid with walls, a start and a goal that can be reached.

A task is decided by its split and number alone. Which split a layout belongs to is decided by the layout itself, so
that none of those that are held out ever occurs in training, however many are drawn.
"""

from __future__ import annotations

import functools
import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent_gym.errors import ConfigError

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_SPLITS = {"train": range(2, 10), "validation": (0,), "test": (1,)}
"""The tenths of all layouts that belong to a split."""
_MOST_DRAWS = 100_000  # one in 400 will do where it takes longest to find one, at size 12 and longest 1

Cell = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """A maze.

    Attributes:
        size: cells along each side.
        walls: cells that cannot be entered.
        start: where the policy begins.
        goal: where it has to go.
    """

    size: int
    walls: frozenset[Cell]
    start: Cell
    goal: Cell

    def step(self, cell: Cell, move: str) -> Cell:
        """Return where a move leads; the same cell if a wall or the border is there."""
        row, column = cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]
        free = 0 <= row < self.size and 0 <= column < self.size and (row, column) not in self.walls
        return (row, column) if free else cell

    @functools.cached_property
    def distances(self) -> dict[Cell, int]:
        """Moves that each cell is away from the goal, for all cells from which it can be reached."""
        found, queue = {self.goal: 0}, deque([self.goal])
        while queue:
            cell = queue.popleft()
            for move in MOVES:
                near = self.step(cell, move)
                if near not in found:
                    found[near] = found[cell] + 1
                    queue.append(near)
        return found


class Layouts(Sequence[Any]):
    """The layouts of a split, made when they are asked for.

    Args:
        split: "train", "validation" or "test".
        length: how many there are.
        size: cells along each side.
        longest: most moves from start to goal.
    """

    def __init__(self, split: str, length: int, size: int, longest: int) -> None:
        """Remember what decides a layout."""
        self._split, self._length, self._size, self._longest = split, length, size, longest

    def __len__(self) -> int:
        """How many."""
        return self._length

    def __getitem__(self, index: Any) -> Any:
        """Draw layouts until one belongs to the split and its goal is neither out of reach nor too far away.

        Raises:
            ConfigError: if there seems to be none.
        """
        if not 0 <= index < self._length:
            raise IndexError(index)
        rng = np.random.default_rng([list(_SPLITS).index(self._split), self._size, self._longest, index])
        for _ in range(_MOST_DRAWS):
            layout = _draw(rng, self._size)
            if _tenth(layout) in _SPLITS[self._split]:
                if 1 <= layout.distances.get(layout.start, 0) <= self._longest:
                    return layout
        raise ConfigError(
            f"no maze of size {self._size} with at most {self._longest} moves belongs to split {self._split!r}; "
            "take a larger size or longest"
        )


def _draw(rng: np.random.Generator, size: int) -> Layout:
    cells = [(int(i) // size, int(i) % size) for i in rng.permutation(size * size)]
    walls = int(rng.integers(0, size * size // 4 + 1))
    return Layout(size, frozenset(cells[2 : 2 + walls]), cells[0], cells[1])


def _tenth(layout: Layout) -> int:
    said = repr((layout.size, sorted(layout.walls), layout.start, layout.goal))
    return hashlib.blake2b(said.encode(), digest_size=4).digest()[0] % 10
