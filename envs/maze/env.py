"""A maze as an environment for models that see: an image at every turn, a word back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from agent_gym.env import Reply, TextEnv
from agent_gym.envs.maze.generator import MOVES, Cell, Layout, Layouts
from agent_gym.errors import ConfigError, whole_number
from agent_gym.images import Content, Image, parts

SIZES = {"train": 20_000, "validation": 500, "test": 500}
FLOOR, WALL, GOAL, PLAYER = (240, 240, 240), (40, 40, 40), (40, 170, 70), (40, 90, 220)

_MOVE = re.compile(r"\b(" + "|".join(MOVES) + r")\b", re.IGNORECASE)


class VisualMazeEnv(TextEnv):
    """A maze that is shown and never told.

    ## Description
    Each episode is one layout of a square grid. The policy is the blue square, says one move per turn, and has to get
    to the green square. Where the squares and the walls are it can only see: no text says it.

    What a policy reaches that sees nothing, on the first 500 test tasks in 10 turns (`python benchmarks/maze.py`):
    random moves 20.2%, a fixed spiral around the start 28.4%, a depth-first search 8.2%, which with `feedback=True`
    reads where walls are and solves 35.4%. These shares grow with the turns: keep `max_turns` close to `longest`.

    ## Observation
    A sentence and an image of the maze as it is now, by `reset` and after each move; in the observation's text
    "<image>" stands for it, and `info["messages"]` has the image itself (docs/vision.md). Floor is light, walls are
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
        size: int = 5,
        longest: int = 6,
        cell_pixels: int = 28,
        feedback: bool = False,
        max_turns: int = 10,
        **kwargs: Any,
    ) -> None:
        """Check the settings."""
        # Four cells have too few layouts to hold any out.
        size = whole_number("size", size, 3, 12)
        longest = whole_number("longest", longest, 1, 144)
        self._pixels = whole_number("cell_pixels", cell_pixels, 1, 112)
        self._feedback = feedback
        tasks = {split: Layouts(split, length, size, longest) for split, length in SIZES.items()}
        super().__init__(tasks, max_turns=max_turns, **kwargs)
        self._layout, self._cell = Layout(1, frozenset(), (0, 0), (0, 0)), (0, 0)

    def begin(self, task: Any) -> Content:
        """Show the maze."""
        if not isinstance(task, Layout):
            raise ConfigError(f"a task of the maze is a Layout, got {task!r:.200}")
        self._layout, self._cell = task, task.start
        return parts(f"{self.question}\n", draw(task, task.start, self._pixels))

    def respond(self, action: str) -> Reply:
        """Move, and show the maze again unless the goal is reached."""
        said = _MOVE.findall(action)
        if not said:
            return self._shown("Say up, down, left or right.", bump=True, error="no move")
        before, self._cell = self._cell, self._layout.step(self._cell, said[-1].lower())
        if self._cell == self._layout.goal:
            return Reply(terms={"goal": 1.0, "bump": 0.0}, terminated=True, success=True)
        if self._cell == before:
            return self._shown("There is a wall." if self._feedback else "", bump=True)
        return self._shown("", bump=False)

    def _shown(self, text: str, *, bump: bool, error: str | None = None) -> Reply:
        image = draw(self._layout, self._cell, self._pixels)
        terms = {"goal": 0.0, "bump": -float(bump)}
        return Reply(parts(*([f"{text}\n"] if text else []), image), terms=terms, error=error)

    def expert_action(self) -> str:
        """Say the first move of a shortest way."""
        distances = self._layout.distances
        move = min(MOVES, key=lambda move: distances[self._layout.step(self._cell, move)])
        return f"Go {move}."

    def random_action(self, rng: np.random.Generator) -> str:
        """Say any move."""
        return f"Go {list(MOVES)[int(rng.integers(len(MOVES)))]}."


def draw(layout: Layout, cell: Cell, pixels: int) -> Image:
    """Draw a maze with somebody in it.

    Args:
        layout: the maze.
        cell: where the policy is.
        pixels: along each side of a cell.

    Returns:
        An image of `size * pixels` squared; goal and policy leave a margin of floor around them, where there is room.
    """
    small = np.full((layout.size, layout.size, 3), FLOOR, np.uint8)
    for wall in layout.walls:
        small[wall] = WALL
    canvas = small.repeat(pixels, axis=0).repeat(pixels, axis=1)
    margin = pixels // 8
    for (row, column), color in ((layout.goal, GOAL), (cell, PLAYER)):
        top, left = row * pixels + margin, column * pixels + margin
        canvas[top : top + pixels - 2 * margin, left : left + pixels - 2 * margin] = color
    return Image(canvas)
