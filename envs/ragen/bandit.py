"""A bandit with two arms, named after trades: which kind of trade pays more on average only the reward tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from agent_gym.envs.ragen.base import RagenEnv, Terms, share
from agent_gym.envs.ragen.embedded.trades import pairs
from agent_gym.envs.ragen.protocols import BANDIT, BANDIT_STATE
from agent_gym.errors import ConfigError, at_difficulty, shown
from agent_gym.protocols import takes_protocol

SURE = 0.1  # the reward of the arm without risk
LADDER: tuple[Mapping[str, float], ...] = tuple({"chance": chance} for chance in (0.25, 0.6, 0.4, 0.25, 0.2, 0.15))
"""The default, then by difficulty."""
CAUTION = 0.7  # how likely the expert in style "cautious" pulls the arm without risk


class BanditEnv(RagenEnv):
    """Pull one of two arms.

    ## Description
    Each episode has two arms, named after a steady and a risky trade. The steady one always pays 0.1; the risky one
    pays 1 with `chance`, else nothing. No text says so, and one pull of the better arm mostly pays less.

    ## Observation
    The names of the arms. The answer to a pull is empty.

    ## Action
    `<answer>NAME</answer>`. A thought before it ends with `</think>`.

    ## Reward
    - `points` (weight 1): the payment of the arm.
    - `better` (0): 1 for the arm that pays more on average.
    - `invalid` (0): -1 for a turn without the name of an arm.

    ## Episode end
    `terminated` after one turn. `is_success` is `better`.

    ## Arguments
    - `chance`: of the risky arm, above 0.1 and at most 1 (0.25).
    - `difficulty`: 1 to 5 sets chance, from 0.6 to 0.15 (`LADDER`).
    - `protocol`: "ragen" plays as RAGEN does (docs/protocols.md): its prompt, and -0.1 for an invalid turn.
    - everything `TextEnv` takes: split, system_prompt, max_turns, reward_weights, tokenizer, render_mode.

    A task is a dict with the `arms` in their order, and the `risky` one of them.

    ## Data
    All pairs of a steady and a risky trade of a split, in both orders: 800 tasks in train, 128 in validation and test.

    ## References
    RAGEN's bandit (arXiv:2504.20073), whose payments these are. Its names are others.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"points": 1.0, "better": 0.0, "invalid": 0.0}
    default_system_prompt: ClassVar[str] = (
        "You choose between two arms of a bandit, which pay points. Pull the one that pays more on average: write its "
        "name in <answer></answer>."
    )
    one_turn = True

    @takes_protocol(BANDIT)
    def __init__(
        self,
        *,
        protocol: str | None = None,
        chance: float | None = None,
        difficulty: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.chance = share("chance", at_difficulty(difficulty, LADDER, chance=chance)["chance"], SURE)
        super().__init__(pairs(), protocol=BANDIT[protocol] if protocol else None, **{"max_turns": 1, **kwargs})

    def gold(self, task: Any) -> str:
        return str(task["risky"])

    def start(self, task: Any) -> None:
        whole = isinstance(task, Mapping) and isinstance(task.get("arms"), list | tuple) and len(task["arms"]) == 2
        if not (whole and task["arms"][0] != task["arms"][1] and task.get("risky") in task["arms"]):
            example = {"arms": ["Baker", "Racer"], "risky": "Racer"}
            raise ConfigError(f"a task has two arms and the risky one, as {example}, got {shown(task)}")
        self.names, self._better = tuple(map(str, task["arms"])), str(task["risky"])
        self.example = self.names[0]

    def view(self) -> str:
        first, second = self.names
        if self.protocol:
            return BANDIT_STATE.replace("{name_a}", first).replace("{name_b}", second)
        return f"{first} or {second}? Pull one of the two arms."

    def act(self, action: str) -> tuple[Terms, bool | None]:
        better = action == self._better
        points = float(self.np_random.random() < self.chance) if better else SURE
        return {"points": points, "better": float(better)}, better

    def expert_action(self, style: str = "default") -> str:
        """Pull the better arm. In style "cautious" seven of ten pulls are of the one without risk."""
        self.check_style(style, ("default", "cautious"))
        cautious = style == "cautious" and bool(self.np_random.random() < CAUTION)
        return self.write([name for name in self.names if (name == self._better) != cautious])
