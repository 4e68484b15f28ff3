"""Layouts of the maze: a square grid with walls, a start and a goal that can be reached.

A task is decided by its split and number alone. Which split a layout belongs to is decided by the layout itself, so
that none of those that are held out ever occurs in training, however many are drawn.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent_gym.errors import ConfigError

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_SPLITS = {"train": range(2, 10), "validation": (0,), "test": (1,)}
"""The tenths of all layouts that belong to a split."""
_MOST_DRAWS = 100_000  # one in 400 will do where it takes longest to find one, at size 12 and longest 1
_MOST_REPEATS = 200

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
    """The layouts of a split: of train made when they are asked for, of the others all at once and each of them once.

    Args:
        split: "train", "validation" or "test".
        length: how many there are, outside of train at most: of small mazes there are fewer.
        size: cells along each side.
        longest: most moves from start to goal.
    """

    def __init__(self, split: str, length: int, size: int, longest: int) -> None:
        """Remember what decides a layout."""
        self._given = split, length, size, longest

    def __len__(self) -> int:
        """How many."""
        return self._given[1] if self._given[0] == "train" else len(_distinct(*self._given))

    def __getitem__(self, index: Any) -> Any:
        """Return a layout.

        Raises:
            ConfigError: if there seems to be none of this size and length.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        split, _, size, longest = self._given
        return next(_layouts(split, size, longest, index)) if split == "train" else _distinct(*self._given)[index]


_DRAWING = threading.Lock()  # or the threads of a rollout would all draw the same


def _distinct(split: str, length: int, size: int, longest: int) -> tuple[Layout, ...]:
    with _DRAWING:
        return _drawn(split, length, size, longest)


@functools.lru_cache(maxsize=16)
def _drawn(split: str, length: int, size: int, longest: int) -> tuple[Layout, ...]:
    """Draw each layout until it is new; where it never is, there are no more."""
    found: dict[Layout, None] = {}
    for index in range(length):
        tries = itertools.islice(_layouts(split, size, longest, index), _MOST_REPEATS)
        layout = next((layout for layout in tries if layout not in found), None)
        if layout is None:
            break
        found[layout] = None
    return tuple(found)


def _layouts(split: str, size: int, longest: int, index: int) -> Iterator[Layout]:
    """Draw layouts that belong to the split and whose goal is neither out of reach nor too far away."""
    rng = np.random.default_rng([list(_SPLITS).index(split), size, longest, index])
    draws = 0
    while draws < _MOST_DRAWS:
        layout = _draw(rng, size, longest)
        draws += 1
        if layout and _tenth(layout) in _SPLITS[split] and 1 <= layout.distances.get(layout.start, 0) <= longest:
            yield layout
            draws = 0
    raise ConfigError(
        f"no maze of size {size} with at most {longest} moves belongs to split {split!r}; take a larger size or longest"
    )


def _draw(rng: np.random.Generator, size: int, longest: int) -> Layout | None:
    """Draw a layout; None where the goal would be too far away even without walls."""
    order, walls = rng.permutation(size * size), int(rng.integers(0, size * size // 4 + 1))
    start, goal = (divmod(int(cell), size) for cell in order[:2])
    if abs(start[0] - goal[0]) + abs(start[1] - goal[1]) > longest:
        return None
    return Layout(size, frozenset(divmod(int(cell), size) for cell in order[2 : 2 + walls]), start, goal)


def _tenth(layout: Layout) -> int:
    said = repr((layout.size, sorted(layout.walls), layout.start, layout.goal))
    return hashlib.blake2b(said.encode(), digest_size=4).digest()[0] % 10
