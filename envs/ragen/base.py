"""The turns of RAGEN's worlds: several actions in `<answer>Up || Right</answer>`, carried out one after the other.

This class reads turns, keeps the budgets, and writes the state alone, or, with `protocol="ragen"`, RAGEN's message.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, shown, whole_number
from agent_gym.formats import ragen
from agent_gym.protocols import PaperPreset
from agent_gym.reply import sum_by_name
from agent_gym.rewards import after_thought, tagged_answer

Terms = Mapping[str, float]
_SHOWN = 40  # characters of a wrong action in a message
_WORDS = 100  # how long RAGEN says that a turn may be


class RagenEnv(TextEnv):
    """Base class of the worlds here: `actions_per_turn` actions of a turn count, and `max_actions` of an episode.

    A world of `one_turn` is over after it, whatever it was.
    """

    process_terms: ClassVar[frozenset[str]] = frozenset({"invalid"})
    names: Sequence[str]
    """The actions that there are; a world that takes others overrides `known`."""
    example: str
    one_turn: ClassVar[bool] = False

    def __init__(
        self,
        tasks: Any,
        *,
        protocol: PaperPreset | None,
        actions_per_turn: int = 1,
        max_actions: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.protocol = protocol
        self.actions_per_turn = whole_number("actions_per_turn", actions_per_turn, 1)
        self.max_actions = None if max_actions is None else whole_number("max_actions", max_actions, 1)
        super().__init__(tasks, **kwargs)
        self._budget = self.max_turns

    @abstractmethod
    def start(self, task: Any) -> None:
        """Set the task up; `ConfigError` if it is none."""

    @abstractmethod
    def view(self) -> str:
        """Return the state as the policy reads it."""

    @abstractmethod
    def act(self, action: str) -> tuple[Terms, bool | None]:
        """Carry out a known action: its reward terms, and whether the task is solved, None if it is not over."""

    def known(self, action: str) -> str | None:
        """Return the name of an action as the world has it, or None if there is no such action."""
        return next((name for name in self.names if name.lower() == action.lower()), None)

    def begin(self, task: Any) -> str:
        self.max_turns, self.played, self._acted = self._budget, 0, list[bool]()
        self.start(task)
        return self._shown()

    def respond(self, action: str) -> Reply:
        stated = self._stated(action)
        counted = stated[: self.actions_per_turn]
        names = [name for one in counted if (name := self.known(one)) is not None]
        terms, reward, solved = dict.fromkeys(type(self).reward_weights, 0.0), 0.0, None
        for name in names[: self.actions_left]:
            self.played += 1
            earned, solved = self.act(name)
            terms = sum_by_name([terms, earned])
            reward += sum(self.weights[term] * value for term, value in earned.items())
            if solved is not None:
                break
        error = self._complaint(stated)
        terms["invalid"] = -float(not names or len(names) < len(counted))
        self._acted.append(bool(names))
        if solved is not None or self.one_turn:
            return Reply(terms=terms, terminated=True, success=bool(solved), error=error)
        if not self.actions_left:
            self.max_turns = self.turn + 1  # this was the last one
        shown = self._shown(reward, error)
        if self.protocol:
            return Reply(messages=[{"role": "user", "content": shown}], terms=terms, error=error)
        return Reply(shown, terms=terms, error=error)

    @property
    def actions_left(self) -> int:
        """How many actions the episode may still have."""
        return (self.max_actions or self._budget * self.actions_per_turn) - self.played

    def _stated(self, turn: str) -> list[str]:
        if self.protocol:
            return ragen.actions_of(turn)[: self.actions_per_turn]  # RAGEN leaves the others out without a word
        inside = tagged_answer(after_thought(turn)) or ""
        return [one.strip() for one in inside.split(ragen.SEPARATOR) if one.strip()]

    def _complaint(self, stated: Sequence[str]) -> str | None:
        allowed = f"Allowed: {', '.join(self.names)}, as in <answer>{self.example}</answer>."
        if not stated:
            return f"The turn has no <answer>. {allowed}"
        if wrong := [one for one in stated[: self.actions_per_turn] if self.known(one) is None]:
            return f"{wrong[0][:_SHOWN]!r} was left out. {allowed}"
        if len(stated) > self.actions_per_turn:
            return f"The first {self.actions_per_turn} of {len(stated)} actions were carried out."
        return None

    def _shown(self, reward: float = 0.0, error: str | None = None) -> str:
        if not self.protocol:
            return f"{error}\n{self.view()}" if error else self.view()
        return ragen.state_message(self._acted, self.view(), left=self.actions_left, words=_WORDS, reward=reward)

    def write(self, actions: Sequence[str]) -> str:
        """Return a turn of these actions."""
        tagged = f"<answer>{f' {ragen.SEPARATOR} '.join(actions)}</answer>"
        return self.protocol.turn.replace("{}", tagged) if self.protocol else tagged

    def random_action(self, rng: np.random.Generator) -> str:
        count = int(rng.integers(1, self.actions_per_turn + 1))
        return self.write([self.names[int(rng.integers(len(self.names)))] for _ in range(count)])


def share(name: str, value: Any, least: float) -> float:
    """Return a setting that is a number above `least` and at most 1; `ConfigError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least < value <= 1:
        raise ConfigError(f"{name} is {shown(value)}; it must be a number above {least} and at most 1")
    return float(value)
