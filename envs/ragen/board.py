"""The rules of Sokoban, in RAGEN's signs, and the search for a shortest solution."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from agent_gym.errors import ConfigError, shown

MOVES = ("Up", "Down", "Left", "Right")
WALL, SIGNS = "#", "_OX√PS"
"""Of the other cells: floor, target, box, box on target, player, player on target."""


@dataclass(frozen=True)
class Board:
    """A position: `width` cells a row, and the numbers of cells, row by row, with a wall around."""

    width: int
    walls: frozenset[int]
    targets: frozenset[int]
    boxes: frozenset[int]
    player: int

    @classmethod
    def read(cls, given: Any) -> Board:
        """Read rows of signs; `ConfigError` for anything but one player in walls, and a target for each box."""
        rows = [*map(str, given)] if isinstance(given, list | tuple) else []
        text, width = "".join(rows), len(rows[0]) if rows else 0
        walls, targets, boxes, players = (
            frozenset(at for at, sign in enumerate(text) if sign in signs) for signs in (WALL, "O√S", "X√", "PS")
        )
        edge = {at for at in range(len(text)) if at < width or at >= len(text) - width or at % width in (0, width - 1)}
        whole = {*map(len, rows)} == {width} and not {*text} - {*WALL, *SIGNS} and edge <= walls
        if not whole or len(players) != 1 or len(boxes) != len(targets) or boxes == targets:
            example = {"board": ["#####", "#P_O#", "#_X_#", "#___#", "#####"]}
            raise ConfigError(f"a task has walls around one player, and a target a box: {example}, got {shown(given)}")
        return cls(width, walls, targets, boxes, min(players))

    def rows(self) -> list[str]:
        """Return the rows, in RAGEN's signs."""
        size = max(self.walls) + 1
        signs = [SIGNS[(at in self.targets) + 2 * (at in self.boxes) + 4 * (at == self.player)] for at in range(size)]
        text = "".join(WALL if at in self.walls else sign for at, sign in enumerate(signs))
        return [text[at : at + self.width] for at in range(0, size, self.width)]

    def moved(self, move: str) -> Board:
        """Return the position after a move; the same one where a wall or a box that cannot be pushed is in the way."""
        step = dict(zip(MOVES, (-self.width, self.width, -1, 1), strict=True))[move]
        to, beyond = self.player + step, self.player + 2 * step
        if to in self.walls or (to in self.boxes and beyond in self.walls | self.boxes):
            return self
        return replace(self, boxes=self.boxes - {to} | {beyond} if to in self.boxes else self.boxes, player=to)

    def solution(self, longest: int) -> list[str] | None:
        """Return a shortest way to the solved position by breadth-first search, or None if it has more moves."""
        ways: dict[Board, list[str]] = {self: []}
        queue = deque([self])
        while queue:
            board = queue.popleft()
            way = ways[board]
            if board.boxes == board.targets:
                return way
            for move in MOVES if len(way) < longest else ():
                after = board.moved(move)
                if after not in ways:
                    ways[after] = [*way, move]
                    queue.append(after)
        return None
