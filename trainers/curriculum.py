"""A turn budget that grows while training: ScalingInter (AgentGym-RL, arXiv:2509.08755).

Few turns first: the policy learns to use what it knows, on short episodes that are cheap and whose credit is easy to
assign. More turns later: it learns to explore. With all of them from the start, long and aimless episodes drown what
there is to learn.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from agent_gym.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TurnCurriculum:
    """Stages of training, each with its turn budget.

    Attributes:
        starts: optimizer step at which each stage begins; the first is 0.
        budgets: turns of each stage.
    """

    starts: tuple[int, ...]
    budgets: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> TurnCurriculum:
        """Read the text form, for example "0:2,100:4,200:8": 2 turns from step 0 on, 4 from step 100 on, and so on.

        Raises:
            ConfigError: for text of another form, steps or budgets that do not grow, a first step other than 0, or a
                budget below 1.
        """
        name = f"the turn curriculum is {text!r}"
        try:
            stages = [tuple(int(number) for number in stage.split(":")) for stage in text.split(",")]
            starts, budgets = (tuple(column) for column in zip(*stages, strict=True))
        except ValueError as error:
            raise ConfigError(f"{name}; it must be step:turns pairs like '0:2,100:4,200:8'") from error
        if starts[0] != 0:
            raise ConfigError(f"{name}; its first step must be 0 and not {starts[0]}, or that stage has no budget")
        if budgets[0] < 1:
            raise ConfigError(f"{name}; an episode needs at least 1 turn, not {budgets[0]}")
        for what, values in (("steps", starts), ("turns", budgets)):
            for before, after in zip(values, values[1:], strict=False):
                if after <= before:
                    raise ConfigError(f"{name}; its {what} must grow, but {after} follows {before}")
        return cls(starts, budgets)

    def turns(self, step: int) -> int:
        """Return the turn budget at an optimizer step, counted from 0."""
        return self.budgets[bisect.bisect_right(self.starts, step) - 1]
