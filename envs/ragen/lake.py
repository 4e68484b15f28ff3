"""The dynamics of FrozenLake, which are Gymnasium's, and the best player's chances by value iteration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_gym.errors import ConfigError, shown

MOVES = ("Left", "Down", "Right", "Up")
"""In Gymnasium's order: a slip goes to the one before or after."""
TURNS = [(move,) for move in range(4)] + [(first, second) for first in range(4) for second in range(4)]
"""The turns of the best player: one move or two."""


@dataclass(frozen=True)
class Lake:
    """A map in Gymnasium's letters, S start, F ice, H hole, G goal, as one text of rows of `width` cells.

    A move goes where it was meant to with `success_rate`, 1 for ice that is not slippery. The two perpendicular
    directions share the rest.
    """

    cells: str
    width: int
    success_rate: float

    @classmethod
    def read(cls, rows: Any, success_rate: float) -> Lake:
        """Check the rows of a map; `ConfigError` unless they have one start."""
        lines = [*map(str, rows)] if isinstance(rows, list | tuple) else []
        cells = "".join(lines)
        if len({*map(len, lines)}) != 1 or {*cells} - {*"SFHG"} or cells.count("S") != 1:
            raise ConfigError(f"a task has a map of S, F, H, G, one S: {{'map': ['SFF', 'FFG']}}, got {shown(rows)}")
        return cls(cells, len(lines[0]), success_rate)

    def moved(self, state: int, move: int) -> int:
        """Return the cell to which a move leads that does not slip, or the same one at the edge."""
        row, column = divmod(state, self.width)
        down, right = ((0, -1), (1, 0), (0, 1), (-1, 0))[move % 4]
        inside = 0 <= row + down < len(self.cells) // self.width and 0 <= column + right < self.width
        return state + down * self.width + right if inside else state

    def transitions(self, state: int, move: int) -> list[tuple[float, int]]:
        """Return the chances of a move, each with the cell that it leads to, in Gymnasium's order."""
        slip = (1 - self.success_rate) / 2
        chances = [(slip, -1), (self.success_rate, 0), (slip, 1)] if slip else [(1.0, 0)]
        return [(chance, self.moved(state, move + side)) for chance, side in chances]

    @cached_property
    def turns(self) -> NDArray[np.float64]:
        """The chances of each of `TURNS` from cell to cell: (20, S, S). No move leaves a hole or the goal."""
        count = len(self.cells)
        moves = np.zeros((4, count, count))
        for state in range(count):
            for move in range(4):
                for chance, to in self.transitions(state, move) if self.cells[state] in "SF" else [(1.0, state)]:
                    moves[move, state, to] += chance
        return np.concatenate([moves, (moves[:, None] @ moves[None]).reshape(16, count, count)])

    def values(self, turns: int) -> NDArray[np.float64]:
        """Return how likely the best player reaches the goal, by turns left and cell: (turns + 1, S).

        Value iteration with a horizon (Sutton and Barto, Reinforcement Learning, 2018, section 4.4).
        """
        values = np.zeros((turns + 1, len(self.cells)))
        values[0] = [letter == "G" for letter in self.cells]
        for left in range(turns):
            values[left + 1] = (self.turns @ values[left]).max(axis=0)
        return values

    def best_turn(self, state: int, turns: int) -> tuple[int, ...]:
        """Return the best player's next turn, with so many left: of the turns that are as good, one of a quick way."""
        values = self.values(turns)
        quick = int(np.argmax(values[:, state] > values[-1, state] - 1e-9))
        return TURNS[int(np.argmax((self.turns @ values[max(quick - 1, 0)])[:, state]))]
