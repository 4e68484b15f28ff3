"""Sokoban as an environment: push every box onto a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from agent_gym.envs.ragen.base import RagenEnv, Terms
from agent_gym.envs.ragen.board import MOVES, Board
from agent_gym.envs.ragen.embedded.boards import Boards
from agent_gym.envs.ragen.protocols import SOKOBAN
from agent_gym.errors import at_difficulty, whole_number
from agent_gym.protocols import takes_protocol

LADDER: tuple[Mapping[str, int], ...] = (
    {"size": 6, "boxes": 1, "longest": 10, "max_turns": 4},
    {"size": 5, "boxes": 1, "longest": 4, "max_turns": 2},
    {"size": 6, "boxes": 1, "longest": 8, "max_turns": 3},
    {"size": 6, "boxes": 2, "longest": 12, "max_turns": 5},
    {"size": 7, "boxes": 2, "longest": 18, "max_turns": 7},
    {"size": 8, "boxes": 3, "longest": 24, "max_turns": 9},
)  # the default, then by difficulty
CARELESS = 0.3  # how likely a turn of the expert in style "careless" has moves drawn at random


class SokobanEnv(RagenEnv):
    """Push every box onto a target.

    ## Description
    Each episode is one board with a wall around it. The player moves, and pushes a box in front of it if the cell
    beyond is free. Boxes cannot be pulled, so that a wrong push may end all hope.

    ## Observation
    The board as rows of RAGEN's signs: # wall, _ empty, O target, √ box on target, X box, P player, S player on target.
    A turn is answered by the board after it, after a line about moves that were left out; the move that solves the
    board by nothing.

    ## Action
    Moves in `<answer>Up || Right</answer>`, carried out in order until the board is solved. A move against a wall does
    nothing. A thought before it ends with `</think>`.

    ## Reward
    - `solved` (weight 1): all boxes are on targets.
    - `pushed` (0): 1 for each push onto a target, -1 for each push off one. A process term.
    - `moves` (0): -1 for each move. A process term.
    - `invalid` (0): -1 for a turn without moves, or with anything else among them. A process term.

    ## Episode end
    `terminated` when the board is solved, `truncated` after `max_turns` turns or `max_actions` moves. `is_success` is
    `solved`.

    ## Arguments
    - `size`: cells of a side, with the wall, 5 to 10 (6). `boxes`: 1 to 4 (1).
    - `longest`: the most moves of a shortest solution, 4 to 40 (10); the fewest are half as many.
    - `max_turns`: 4. `actions_per_turn`: moves of a turn that count (4). `max_actions`: of an episode (None: all).
    - `difficulty`: 1 to 5 sets size, boxes, longest and max_turns (`LADDER`).
    - `protocol`: "ragen" plays as RAGEN does (docs/protocols.md): 5 turns of 2 moves, its messages, and its reward of
      10 for the board, 1 for a box, -0.1 for a move and -0.1 for an invalid turn.
    - everything `TextEnv` takes: split, system_prompt, reward_weights, tokenizer, render_mode.

    A task that is handed in is a dict with the rows of a `board`.

    ## Data
    A search plays backwards from the solved board, so that each board can be solved in a known number of moves. A hash
    of the board decides its split. Validation and test have 200 boards each, train 20,000.

    ## References
    RAGEN (arXiv:2504.20073); the signs of mll-lab-nu/RAGEN, the rewards of gym-sokoban 0.0.6.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"solved": 1.0, "pushed": 0.0, "moves": 0.0, "invalid": 0.0}
    process_terms: ClassVar[frozenset[str]] = frozenset({"pushed", "moves", "invalid"})
    names, example = MOVES, "Up || Right"

    @takes_protocol(SOKOBAN)
    def __init__(
        self,
        *,
        protocol: str | None = None,
        size: int | None = None,
        boxes: int | None = None,
        longest: int | None = None,
        max_turns: int | None = None,
        difficulty: int | None = None,
        actions_per_turn: int = 4,
        system_prompt: str | None = None,
        **kwargs: Any,
    ) -> None:
        rung = at_difficulty(difficulty, LADDER, size=size, boxes=boxes, longest=longest, max_turns=max_turns)
        tasks = Boards.splits(
            side=whole_number("size", rung["size"], 5, 10),
            boxes=whole_number("boxes", rung["boxes"], 1, 4),
            longest=whole_number("longest", rung["longest"], 4, 40),
        )
        prompt = (
            "Push every box onto a target. You are P, X is a box, O a target, √ a box on a target, S you on a target, "
            "# a wall. You push the box in front of you, and cannot pull. Answer with up to "
            f"{actions_per_turn} of the moves {', '.join(MOVES)}, as in <answer>{self.example}</answer>."
        )
        kwargs |= {"max_turns": rung["max_turns"], "system_prompt": prompt if system_prompt is None else system_prompt}
        known = SOKOBAN[protocol] if protocol else None
        super().__init__(tasks, protocol=known, actions_per_turn=actions_per_turn, **kwargs)

    def gold(self, task: Any) -> dict[str, Any]:
        return {"board": list(task["board"])}

    def start(self, task: Any) -> None:
        self.board = Board.read(task.get("board") if isinstance(task, Mapping) else task)

    def view(self) -> str:
        return "\n".join(self.board.rows())

    def act(self, action: str) -> tuple[Terms, bool | None]:
        before, self.board = self.board, self.board.moved(action)
        pushed = len(self.board.boxes & self.board.targets) - len(before.boxes & before.targets)
        solved = self.board.boxes == self.board.targets
        return {"solved": float(solved), "pushed": float(pushed), "moves": -1.0}, solved or None

    def expert_action(self, style: str = "default") -> str:
        """Play a shortest solution. In style "careless" three of ten turns are drawn at random."""
        self.check_style(style, ("default", "careless"))
        if style == "careless" and self.np_random.random() < CARELESS:
            return self.random_action(self.np_random)
        return self.write((self.board.solution(self.actions_left) or [MOVES[0]])[: self.actions_per_turn])
