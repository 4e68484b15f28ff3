"""Guessing a number: the smallest task in which a policy can learn to search better than its teacher.

In a single episode luck decides: a bad guess may hit the number. So those who imitate successful episodes imitate luck,
too. What pays on average, to halve what is left, has to be found out by comparing many episodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, whole_number

_SMALLER = 0.6
"""How likely the expert in style "low" takes a number in comparison with the next smaller one."""
_STYLES = ("default", "low")
_REPEATS = 50


class GuessTheNumberEnv(TextEnv):
    """Find a number in as few guesses as halving takes.

    ## Description
    The world thinks of a number in a range, as 3 to 17, and answers each guess with the range that is left. Halving the
    range finds each of 15 numbers in 4 guesses. A policy that guesses by chance among what is left finds 60% of them.

    ## Observation
    `reset` names the range. A guess in the range is answered by "higher" or "lower" and what is left of it, another one
    by "no" and the same range, and anything else by a request for a number. The right guess is answered by nothing.

    ## Action
    A number, for example "8".

    ## Reward
    `found` (weight 1): the guess is right.

    ## Episode end
    `terminated` when the number is found, `truncated` after `max_turns` guesses. `is_success` is `found`.

    ## Arguments
    - `size`: how many numbers a range has, 2 to 100.
    - `ranges`: how many ranges there are, 5 to 100: they begin with 1, 2, 3 and so on.
    - everything `TextEnv` takes: split, system_prompt, max_turns, reward_weights, tokenizer, render_mode.

    ## Ids
    `AgentR1/GuessTheNumber-v0` (15 numbers, 4 guesses).

    ## Data
    A task is a range and a number in it. Of five ranges in a row three are those of train; training never shows the
    second one, which is of test, and the fourth one, which is of validation. In these each task occurs once. Train
    repeats its tasks 50 times, since an expert that guesses by chance plays them in many ways.

    ## References
    None: a task of this project. A game of the same name, with one range, is in GEM (axon-rl/gem).

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"found": 1.0}
    default_system_prompt: ClassVar[str] = "Guess the number. Write the number only."

    def __init__(self, *, size: int = 15, ranges: int = 35, max_turns: int = 4, **kwargs: Any) -> None:
        size = whole_number("size", size, 2, 100)
        starts = range(1, whole_number("ranges", ranges, 5, 100) + 1)
        held_out = {"validation": starts[3::5], "test": starts[1::5]}
        shown = [low for low in starts if not any(low in held for held in held_out.values())]
        tasks = {
            name: [(low, low + size - 1, low + i) for low, i in itertools.product(chosen, range(size))]
            for name, chosen in {"train": shown, **held_out}.items()
        }
        tasks["train"] *= _REPEATS
        super().__init__(tasks, max_turns=max_turns, **kwargs)
        self._low, self._high, self._wanted = 0, 0, 0

    def begin(self, task: Any) -> str:
        if not (isinstance(task, tuple | list) and len(task) == 3 and all(type(one) is int for one in task)):
            raise ConfigError(f"a task is a range and a number, as (1, 15, 8), got {task!r:.80}")
        self._low, self._high, self._wanted = task
        if not self._low <= self._wanted <= self._high:
            raise ConfigError(f"the number of a task must lie in its range, as (1, 15, 8), got {task!r:.80}")
        return f"{self._low} to {self._high}"

    def respond(self, action: str) -> Reply:
        text = action.strip()
        if not (text.isascii() and text.isdigit() and len(text) < 4):
            return Reply("Write a number.", terms={"found": 0.0}, error="no number")
        guess = int(text)
        if guess == self._wanted:
            return Reply(terms={"found": 1.0}, terminated=True, success=True)
        word = "no"
        if self._low <= guess < self._wanted:
            self._low, word = guess + 1, "higher"
        elif self._wanted < guess <= self._high:
            self._high, word = guess - 1, "lower"
        return Reply(f"{word}: {self._low} to {self._high}", terms={"found": 0.0})

    def expert_action(self, style: str = "default") -> str:
        """Halve what is left; with "low" take a small number of it by chance, and find 46% of 15 in 4 guesses."""
        if style not in _STYLES:
            raise ConfigError(f"the expert of GuessTheNumber has no style {style!r}; known: {', '.join(_STYLES)}")
        if style == "default":
            return str((self._low + self._high) // 2)
        weights = _SMALLER ** np.arange(self._high - self._low + 1)
        return str(self._low + int(self.np_random.choice(len(weights), p=weights / weights.sum())))

    def random_action(self, rng: np.random.Generator) -> str:
        return str(int(rng.integers(self._low, self._high + 1)))
