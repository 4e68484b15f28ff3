"""Bargaining with hidden values as an environment: against a strategy, another model, or itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from agent_gym.envs.bargain.game import Bargain, GeneratedDeals, expert, fair, greedy, written
from agent_gym.errors import ConfigError, at_difficulty, quoted, whole_number
from agent_gym.players import Player, PlayersEnv

LADDER: tuple[Mapping[str, int], ...] = (
    {"kinds": 3, "rounds": 3},
    {"kinds": 2, "rounds": 2},
    {"kinds": 3, "rounds": 2},
    {"kinds": 3, "rounds": 3},
    {"kinds": 3, "rounds": 5},
    {"kinds": 4, "rounds": 8},
)
"""The default, then by difficulty."""


class BargainEnv(PlayersEnv):
    """Divide a pool of items with somebody whose values one does not know.

    ## Description
    There are some items of each kind. Their values differ between the two roles, and each knows its own. The roles make
    offers in turns until one accepts or quits, or the turns are used up: then no role gets anything.

    ## Observation
    `reset` returns the pool, the values, and how many turns there are; if the other role acts first, its offer, too. An
    action is answered by the other's text: "The other takes 2 0 1. You get 1 1 0, worth 4." An action that is none is
    answered by the form of an action; it costs a turn.

    ## Action
    Free text, of which the other reads the part after `</think>`, and at its end a line: "offer: 2 0 1" (how many of
    each kind one takes, in the order of the pool), "accept", or "quit".

    ## Reward
    - `share` (weight 1): the value of one's items, divided by the value of the whole pool; 0 without a deal. In
      self-play each role has its own (`info["role_terms"]`), and the reward of a step is the sum.

    ## Episode end
    `terminated` with a deal, when one quits, or after the turns. `is_success`: a deal that gives each role at least its
    value in Nash's solution, the division with the largest product of both shares. `info["metrics"]` has `deal`,
    `turns` and `welfare`, the sum of the shares.

    ## Arguments
    - `opponent`: "fair" (default) asks for all and concedes to its share of Nash's solution; "greedy" leaves the least
      that is worth anything, and accepts less only at the very end; "expert" offers Nash's solution; "self" is the
      policy itself, which plays both roles; or the address of an OpenAI-compatible server.
    - `role`: "first" or "second"; by default each task has one of them.
    - `kinds`: of items, 2 to 4 (3). `rounds`: turns of each role, 1 to 20 (3).
    - `difficulty`: 1 to 5 sets kinds and rounds (`LADDER`).
    - everything `TextEnv` takes: split, system_prompt, reward_weights, tokenizer, render_mode.

    ## Ids
    `AgentR1/Bargain-v0`.

    ## Data
    A seeded generator: 20,000 train and at most 500 validation and 500 test deals (by default 320 and 323). A pool
    belongs to one split. As a game for PettingZoo: `agent_gym.contrib.pettingzoo` (docs/players.md).

    ## References
    Lewis et al., Deal or No Deal? End-to-End Learning for Negotiation Dialogues, arXiv:1706.05125.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"share": 1.0}
    roles: ClassVar[tuple[str, ...]] = Bargain.roles
    game: Bargain
    players: ClassVar[Mapping[str, Player]] = {"expert": expert, "fair": fair, "greedy": greedy}
    default_system_prompt: ClassVar[str] = (
        "Divide the pool with somebody else, whose values differ from yours and are hidden. Get as much as you can; "
        'without a deal you get nothing. You may write a message; end it with a line: "offer:" and how many of each '
        'kind you take, in the order of the pool, or "accept", or "quit".'
    )

    def __init__(
        self,
        *,
        opponent: str = "fair",
        kinds: int | None = None,
        rounds: int | None = None,
        difficulty: int | None = None,
        max_turns: int | None = None,
        **kwargs: Any,
    ) -> None:
        rung = at_difficulty(difficulty, LADDER, kinds=kinds, rounds=rounds)
        kinds = whole_number("kinds", rung["kinds"], 2, 4)
        self.rounds = whole_number("rounds", rung["rounds"], 1, 20)
        most = 2 * self.rounds if max_turns is None else max_turns
        super().__init__(GeneratedDeals.splits(kinds=kinds), opponent=opponent, max_turns=most, **kwargs)

    def start(self, task: Any) -> Bargain:
        if not (isinstance(task, Mapping) and {"pool", "values"} <= set(task)):
            raise ConfigError(f"a task of bargaining is a dict with pool and values, got {quoted(task, 200)}")
        return Bargain(task["pool"], task["values"], self.rounds)

    def role_of(self, task: Any) -> str:
        return str(task.get("role") or self.roles[0])

    def gold(self, task: Any) -> str:
        """Return the first role's share in Nash's solution."""
        return " ".join(map(str, Bargain(task["pool"], task["values"], 1).nash))

    def expert_action(self, style: str = "default") -> str:
        """Offer Nash's division, which takes both values.

        "eager" accepts any offer. "impatient" knows no values but its own: in its last turn it accepts any offer,
        before that in every second turn, by chance, and otherwise it asks for all.
        """
        self.check_style(style, ("default", "eager", "impatient"))
        game = self.game
        gives_in = style == "eager" or (style == "impatient" and (game.left == 1 or self.np_random.random() < 0.5))
        if game.offer and gives_in:
            return "accept"
        return f"offer: {written(game.pool)}" if style == "impatient" else super().expert_action()

    def random_action(self, rng: np.random.Generator) -> str:
        """Accept, or offer anything."""
        if self.game.offer and rng.random() < 0.3:
            return "accept"
        return f"offer: {' '.join(str(rng.integers(n + 1)) for n in self.game.pool)}"
