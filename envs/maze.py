"""A maze as an environment for models that see: an image at every turn, a word back.

A task is a layout: a square grid with walls, a start and a goal that can be reached. It depends on its split and number
alone. A hash of the layout decides its split, so that no layout of validation or test ever occurs in training.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from agent_gym.data import SplitRows
from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, at_difficulty, quoted, whole_number
from agent_gym.images import Content, Image, parts

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
LADDER: tuple[Mapping[str, int], ...] = (
    {"size": 5, "longest": 6, "max_turns": 10},
    {"size": 3, "longest": 3, "max_turns": 4},
    {"size": 4, "longest": 5, "max_turns": 7},
    {"size": 5, "longest": 8, "max_turns": 10},
    {"size": 7, "longest": 14, "max_turns": 16},
    {"size": 10, "longest": 24, "max_turns": 26},
)
"""The default, then by difficulty."""
FLOOR, WALL, GOAL, PLAYER = (240, 240, 240), (40, 40, 40), (40, 170, 70), (40, 90, 220)
_SPLITS = {"train": range(2, 10), "validation": (0,), "test": (1,)}
"""The tenths of all layouts that belong to a split."""
_BLINDNESS = 0.7
"""How likely the expert in style "blind" does not look."""
_MOST_DRAWS = 100_000  # one in 400 fits where it takes longest to find one, at size 12 and longest 1
_MOVE = re.compile(r"\b(" + "|".join(MOVES) + r")\b", re.IGNORECASE)

Cell = tuple[int, int]


class VisualMazeEnv(TextEnv):
    """A maze that the policy sees in images.

    ## Description
    Each episode is one layout of a square grid. The policy is the blue square, says one move per turn, and has to get
    to the green square. Only the image shows the squares and the walls; no text does.

    The score of a policy that sees nothing, on the first 500 test tasks in 10 turns (`python benchmarks/maze.py`):
    random moves 20.2%, a fixed spiral around the start 28.4%, a depth-first search 8.2%, which with `feedback=True`
    reads where walls are and solves 35.4%. These shares grow with the turns: keep `max_turns` close to `longest`.

    ## Observation
    A sentence and an image of the maze as it is now, by `reset` and after each move; in the observation's text
    "<image>" is in its place, and `info["messages"]` has the image itself (docs/vision.md). Floor is light, walls are
    dark. The move that reaches the goal is answered by nothing. A move into a wall shows the same image again.

    ## Action
    Free text; the last of the words up, down, left and right is the move.

    ## Reward
    - `goal` (weight 1): 1 for reaching the green square.
    - `bump` (weight 0, off): -1 for a turn without a move or one into a wall. It is a process term.

    ## Episode end
    `terminated` at the goal, `truncated` after `max_turns` turns. `is_success` is `goal`.

    ## Arguments
    - `size`: cells along each side, 3 to 12.
    - `longest`: most moves between start and goal, 1 to 144.
    - `difficulty`: 1 to 5 sets size, longest and max_turns (`LADDER`).
    - `feedback`: whether "There is a wall." says so where a move did not succeed. False (default) leaves it to the eye.
    - `cell_pixels`: pixels along each side of a cell. With 28 a cell is a token of Qwen2-VL.
    - everything `TextEnv` takes: split, system_prompt, max_turns, reward_weights, tokenizer, render_mode. The tokenizer
      is the processor of a model that reads images.

    ## Ids
    `AgentR1/VisualMaze-v0` (5 x 5 cells, at most 6 moves, 10 turns).

    ## Data
    A seeded generator: 20,000 train, 500 validation and 500 test layouts. A hash of the layout decides its split, so
    that no layout of one occurs in another. In validation and test none occurs twice; of small mazes there are fewer.
    Drawn with numpy.

    ## References
    None: a task of this project, for trying vision-language models.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"goal": 1.0, "bump": 0.0}
    process_terms: ClassVar[frozenset[str]] = frozenset({"bump"})
    shows_images = True
    question: ClassVar[str] = "You are the blue square. Go to the green one. Say up, down, left or right."

    def __init__(
        self,
        *,
        size: int | None = None,
        longest: int | None = None,
        difficulty: int | None = None,
        cell_pixels: int = 28,
        feedback: bool = False,
        max_turns: int | None = None,
        **kwargs: Any,
    ) -> None:
        # Four cells have too few layouts to hold any out.
        rung = at_difficulty(difficulty, LADDER, size=size, longest=longest, max_turns=max_turns)
        size = whole_number("size", rung["size"], 3, 12)
        longest = whole_number("longest", rung["longest"], 1, 144)
        self._pixels = whole_number("cell_pixels", cell_pixels, 1, 112)
        self._feedback = feedback
        super().__init__(Layouts.splits(cells=size, longest=longest), max_turns=rung["max_turns"], **kwargs)

    def gold(self, task: Any) -> dict[str, Any]:
        return {"walls": sorted(map(list, task.walls)), "start": [*task.start], "goal": [*task.goal]}

    def begin(self, task: Any) -> Content:
        if not isinstance(task, MazeLayout):
            raise ConfigError(f"a task of the maze is a Layout, got {quoted(task, 200)}")
        self._layout, self._cell, self._blind = task, task.start, False
        return parts(f"{self.question}\n", draw(task, task.start, self._pixels))

    def respond(self, action: str) -> Reply:
        moves, before, text = _MOVE.findall(action), self._cell, ""
        if moves:
            self._cell = self._layout.step(self._cell, moves[-1].lower())
        if self._cell == self._layout.goal:
            return Reply(terms={"goal": 1.0, "bump": 0.0}, terminated=True, success=True)
        if not moves:
            text = "Say up, down, left or right.\n"
        elif self._cell == before and self._feedback:
            text = "There is a wall.\n"
        image = draw(self._layout, self._cell, self._pixels)
        terms = {"goal": 0.0, "bump": -float(self._cell == before)}
        seen = parts(text, image) if text else parts(image)
        return Reply(seen, terms=terms, error=None if moves else "no move")

    def expert_action(self, style: str = "default") -> str:
        """Go a shortest way. In style "blind" seven of ten episodes go round in a square and look at no image."""
        self.check_style(style, ("default", "blind"))
        if self.turn == 0:
            self._blind = style == "blind" and bool(self.np_random.random() < _BLINDNESS)
        if self._blind:
            return f"Go {('up', 'right', 'down', 'left')[self.turn % 4]}."
        distances = self._layout.distances
        move = min(MOVES, key=lambda move: distances[self._layout.step(self._cell, move)])
        return f"Go {move}."

    def random_action(self, rng: np.random.Generator) -> str:
        return f"Go {list(MOVES)[int(rng.integers(len(MOVES)))]}."


def draw(layout: MazeLayout, cell: Cell, pixels: int) -> Image:
    """Draw a maze with the policy in a cell: an image of `size * pixels` squared."""
    small = np.full((layout.size, layout.size, 3), FLOOR, np.uint8)
    for wall in layout.walls:
        small[wall] = WALL
    canvas = small.repeat(pixels, axis=0).repeat(pixels, axis=1)
    margin = pixels // 8
    for (row, column), color in ((layout.goal, GOAL), (cell, PLAYER)):
        top, left = row * pixels + margin, column * pixels + margin
        canvas[top : top + pixels - 2 * margin, left : left + pixels - 2 * margin] = color
    return Image(canvas)


@dataclass(frozen=True)
class MazeLayout:
    """A maze of `size` cells along each side, with the cells that cannot be entered."""

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


class Layouts(SplitRows):
    """The layouts of a split, with `cells` along each side and at most `longest` moves from start to goal."""

    SIZES = {"train": 20_000, "validation": 500, "test": 500}
    KEY = ""

    def __init__(self, split: str, size: int | None = None, *, cells: int, longest: int) -> None:
        super().__init__(split, size)
        self.cells, self.longest = cells, longest

    def drafts(self, index: int) -> Iterator[Any]:
        size, longest = self.cells, self.longest
        rng = np.random.default_rng([list(_SPLITS).index(self.split), size, longest, index])
        draws = 0
        while draws < _MOST_DRAWS:
            draws += 1
            order, walls = rng.permutation(size * size), int(rng.integers(0, size * size // 4 + 1))
            start, goal = (divmod(int(cell), size) for cell in order[:2])
            if abs(start[0] - goal[0]) + abs(start[1] - goal[1]) > longest:
                continue
            layout = MazeLayout(size, frozenset(divmod(int(cell), size) for cell in order[2 : 2 + walls]), start, goal)
            words = repr((layout.size, sorted(layout.walls), layout.start, layout.goal))
            tenth = hashlib.blake2b(words.encode(), digest_size=4).digest()[0] % 10
            if tenth in _SPLITS[self.split] and 1 <= layout.distances.get(layout.start, 0) <= longest:
                yield layout
                draws = 0
        raise ConfigError(
            f"no maze of size {size} with at most {longest} moves belongs to split {self.split!r}; take a larger size "
            "or longest"
        )
