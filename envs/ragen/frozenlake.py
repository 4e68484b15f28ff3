"""FrozenLake as an environment: cross the ice to the goal, past holes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from agent_gym.envs.ragen.base import RagenEnv, Terms, share
from agent_gym.envs.ragen.embedded.maps import Maps
from agent_gym.envs.ragen.lake import MOVES, Lake
from agent_gym.envs.ragen.protocols import FROZENLAKE
from agent_gym.errors import ConfigError, at_difficulty, shown, whole_number
from agent_gym.protocols import takes_protocol

LADDER: tuple[Mapping[str, Any], ...] = (
    {"size": 4, "is_slippery": True, "max_turns": 30},
    {"size": 3, "is_slippery": False, "max_turns": 4},
    {"size": 4, "is_slippery": False, "max_turns": 6},
    {"size": 4, "is_slippery": True, "max_turns": 30},
    {"size": 5, "is_slippery": True, "max_turns": 40},
    {"size": 7, "is_slippery": True, "max_turns": 60},
)  # the default, then by difficulty
HASTY = 0.5  # how likely the expert in style "hasty" goes by the shortest way, as if the ice were not slippery


class FrozenLakeEnv(RagenEnv):
    """Cross the ice to the goal, past holes.

    ## Description
    Each episode is one map. On slippery ice a move goes where it was meant to with `success_rate`, 1/3 by default, and
    else in one of the two perpendicular directions, as in Gymnasium's `FrozenLake-v1`. A move against the edge stays.

    ## Observation
    The map as rows of RAGEN's signs: P player, _ ice, O hole, G goal. A turn is answered by the map after it, after a
    line about moves that were left out; the move that ends the episode by nothing.

    ## Action
    Moves in `<answer>Right || Down</answer>`, carried out in order until the episode ends. A thought before it ends
    with `</think>`.

    ## Reward
    - `goal` (weight 1): the player is on the goal.
    - `invalid` (0): -1 for a turn without moves, or with anything else among them. A process term.

    ## Episode end
    `terminated` on the goal or in a hole, `truncated` after `max_turns` turns or `max_actions` moves. `is_success` is
    `goal`.

    ## Arguments
    - `size`: cells of a side, 3 to 10 (4). `is_slippery`: True by default. `success_rate`: up to 1 (1/3).
    - `max_turns`: 30. `actions_per_turn`: moves of a turn that count (5). `max_actions`: of an episode (None: all).
    - `difficulty`: 1 to 5 sets size, is_slippery and max_turns (`LADDER`).
    - `protocol`: "ragen" plays as RAGEN does (docs/protocols.md): 5 turns of 2 moves, its messages, a `success_rate` of
      0.8, and -0.1 for an invalid turn.
    - everything `TextEnv` takes: split, system_prompt, reward_weights, tokenizer, render_mode.

    A task that is handed in is a dict with a `map` in Gymnasium's letters: `{"map": ["SFF", "FHF", "FFG"]}`.

    ## Data
    Maps with start, goal and holes at random places. The best player reaches the goal of each with a chance of 0.6 or
    more in 30 turns of one or two moves, by value iteration; the mean is 0.93. A hash of the map decides its split.
    Validation and test have 200 maps each, train 20,000. Small maps are fewer.

    ## References
    RAGEN (arXiv:2504.20073), whose signs these are (mll-lab-nu/RAGEN); Gymnasium's `FrozenLake-v1`, whose transitions
    are compared with these in tests/test_ragen_worlds.py.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"goal": 1.0, "invalid": 0.0}
    names, example = MOVES, "Right || Down"

    @takes_protocol(FROZENLAKE)
    def __init__(
        self,
        *,
        protocol: str | None = None,
        size: int | None = None,
        is_slippery: bool | None = None,
        success_rate: float = 1 / 3,
        max_turns: int | None = None,
        difficulty: int | None = None,
        actions_per_turn: int = 5,
        system_prompt: str | None = None,
        **kwargs: Any,
    ) -> None:
        rung = at_difficulty(difficulty, LADDER, size=size, is_slippery=is_slippery, max_turns=max_turns)
        if not isinstance(rung["is_slippery"], bool):
            raise ConfigError(f"is_slippery is {shown(rung['is_slippery'])}; it must be True or False")
        self.success_rate = share("success_rate", success_rate, 0) if rung["is_slippery"] else 1.0
        tasks = Maps.splits(
            side=whole_number("size", rung["size"], 3, 10),
            success_rate=self.success_rate,
            turns=FROZENLAKE["ragen"].budgets["max_turns"] if protocol else LADDER[difficulty or 0]["max_turns"],
        )
        ice = " The ice is slippery: a move may go to its side." if self.success_rate < 1 else ""
        prompt = (
            f"Go to the goal. You are P, _ is ice, O a hole, G the goal.{ice} Answer with up to {actions_per_turn} of "
            f"the moves {', '.join(MOVES)}, as in <answer>{self.example}</answer>."
        )
        kwargs |= {"max_turns": rung["max_turns"], "system_prompt": prompt if system_prompt is None else system_prompt}
        known = FROZENLAKE[protocol] if protocol else None
        super().__init__(tasks, protocol=known, actions_per_turn=actions_per_turn, **kwargs)

    def gold(self, task: Any) -> dict[str, Any]:
        return {"map": list(task["map"])}

    def start(self, task: Any) -> None:
        self.lake = Lake.read(task.get("map") if isinstance(task, Mapping) else task, self.success_rate)
        self.state = self.lake.cells.index("S")

    def view(self) -> str:
        cells = ["O" if letter == "H" else "G" if letter == "G" else "_" for letter in self.lake.cells]
        cells[self.state] = "P"  # a hole or the goal ends the episode, and no map shows a player there
        rows = range(0, len(cells), self.lake.width)
        return "\n".join("".join(cells[at : at + self.lake.width]) for at in rows)

    def act(self, action: str) -> tuple[Terms, bool | None]:
        chances, cells = zip(*self.lake.transitions(self.state, MOVES.index(action)), strict=True)
        # As Gymnasium draws, so that the same generator gives the same slips.
        self.state = cells[int(np.argmax(np.cumsum(chances) > self.np_random.random()))]
        letter = self.lake.cells[self.state]
        return {"goal": float(letter == "G")}, letter == "G" if letter in "HG" else None

    def expert_action(self, style: str = "default") -> str:
        """Play by value iteration, one or two moves a turn. In style "hasty" half of the turns take the ice for dry."""
        self.check_style(style, ("default", "hasty"))
        dry = style == "hasty" and bool(self.np_random.random() < HASTY)
        lake = replace(self.lake, success_rate=1.0) if dry else self.lake
        turn = lake.best_turn(self.state, self.max_turns - self.turn)
        return self.write([MOVES[move] for move in turn[: self.actions_per_turn]])
