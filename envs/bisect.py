"""Bisection: which of many commits broke the tests, found in as few tests as halving takes.

The smallest task in which a policy can learn to search better than its teacher. No single episode shows how: a poor
choice of tests may have luck. The best rule on average, to halve the range, has to be found out by comparing many
episodes. The best next test depends on nothing but the number of commits left.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, at_difficulty, one_of, quoted, whole_number
from agent_gym.rewards import after_thought

_OLDER = 0.6
"""How likely the expert in style "newest" tests a commit in comparison with the next newer one."""
_REPEATS = 20
LADDER: tuple[Mapping[str, int], ...] = (
    {"size": 32},
    {"size": 16, "max_turns": 6},
    {"size": 32, "max_turns": 6},
    {"size": 32, "max_turns": 5},
    {"size": 128, "max_turns": 7},
    {"size": 512, "max_turns": 9},
)
"""The default, then by difficulty."""


class BisectEnv(TextEnv):
    """Find the commit that broke the tests, in as few tests as halving takes.

    ## Description
    One of some commits broke the tests, and all that follow it fail, too. The policy chooses which commit is tested. If
    the test fails, this commit and the older ones are left; if it passes, the newer ones. Halving the range finds one
    of 32 commits in 5 tests.

    ## Observation
    `reset` says how many commits are left. A test is answered by "bad" or "good" and how many are left then; they are
    numbered anew from 1, the oldest. Anything but a number of these is answered by a request for one. When a single
    commit is left, it is found, and the answer is empty. With `rendering="inline"` the answer is a line inside the
    policy's own turn: an episode has fewer tokens, since the ones that open and close a message are left out.

    ## Action
    The number of a commit, for example "8"; a thought before it ends with `</think>`. To test the newest one tells
    nothing: it is known to be bad. With `rendering="inline"` the number ends with its line.

    ## Reward
    - `found` (weight 1): a single commit is left.
    - `halving` (0): how evenly a test divides the range, the smaller part by the half of it: 1 for halving, 0 for a
      test that tells nothing. A process term.

    ## Episode end
    `terminated` when the commit is found, `truncated` after `max_turns` tests. `is_success` is `found`.

    ## Arguments
    - `size`: the most commits of a task, 16 to 999 (32). A task has more than half as many.
    - `max_turns`: tests at most; by default as many as halving `size` commits takes.
    - `difficulty`: 1 to 5 sets size and max_turns (`LADDER`): from 16 commits in 6 tests to 512 in 9.
    - `bad_commits`: validation and test have so many tasks of each number of commits, with bad ones drawn once, and
      train has each task once, shuffled. None (default): all tasks, 24,576 of test where `size` is 512.
    - `rendering`: "chat" for an answer in a separate message, "inline" for a line in the policy's turn.
    - everything `TextEnv` takes: split, system_prompt, reward_weights, tokenizer, render_mode.

    ## Ids
    `AgentR1/Bisect-v0` (17 to 32 commits, 5 tests).

    ## Data
    A task is a number of commits and the bad one among them. Of four numbers of commits in a row, the second one is of
    test, the fourth one of validation, and no episode of training begins with these. In them each task occurs once.
    Train repeats its tasks 20 times, since an expert that chooses by chance plays them in many ways.

    ## References
    None: a task of this project, after `git bisect`.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"found": 1.0, "halving": 0.0}
    process_terms: ClassVar[frozenset[str]] = frozenset({"halving"})
    default_system_prompt: ClassVar[str] = (
        "One of the commits broke the tests, and those after it fail, too. Find it by few tests: write the number of "
        "the commit to test next, and nothing else. 1 is the oldest of those that are left."
    )

    def __init__(
        self,
        *,
        size: int | None = None,
        max_turns: int | None = None,
        difficulty: int | None = None,
        rendering: str = "chat",
        bad_commits: int | None = None,
        **kwargs: Any,
    ) -> None:
        rung = at_difficulty(difficulty, LADDER, size=size, max_turns=max_turns)
        size, max_turns = whole_number("size", rung["size"], 16, 999), rung["max_turns"]
        self.inline = one_of("rendering", rendering, ("chat", "inline")) == "inline"
        self._end = "\n" if self.inline else ""
        self.stop = (self._end,) if self.inline else ()
        counts = range(size // 2 + 1, size + 1)
        # The largest number is shown, whichever split it would be of: numbers in between can be learned, not numbers
        # beyond.
        held_out = {"validation": [n for n in counts[3::4] if n < size], "test": [n for n in counts[1::4] if n < size]}
        shown = [n for n in counts if not any(n in held for held in held_out.values())]
        tasks = {
            name: [(n, bad) for n in chosen for bad in range(1, n + 1)]
            for name, chosen in {"train": shown, **held_out}.items()
        }
        if bad_commits is None:
            tasks["train"] *= _REPEATS
        else:
            few, rng = whole_number("bad_commits", bad_commits, 1, size // 2), random.Random(f"bisect/{size}")
            rng.shuffle(tasks["train"])  # so that the first of them are not all of one number of commits
            for name, chosen in held_out.items():
                tasks[name] = [(n, bad) for n in chosen for bad in sorted(rng.sample(range(1, n + 1), few))]
        turns = (size - 1).bit_length() if max_turns is None else max_turns
        super().__init__(tasks, max_turns=turns, **kwargs)
        self._left, self._bad = 0, 0

    def gold(self, task: Any) -> int:
        return int(task[1])

    def begin(self, task: Any) -> str:
        if not (isinstance(task, tuple | list) and len(task) == 2 and all(type(one) is int for one in task)):
            raise ConfigError(f"a task is a number of commits and the bad one, as (20, 8), got {quoted(task)}")
        self._left, self._bad = task
        if not 1 <= self._bad <= self._left or self._left < 2:
            raise ConfigError(f"a task is 2 commits or more and the bad one among them, as (20, 8), got {quoted(task)}")
        return f"{self._left} left"

    def respond(self, action: str) -> Reply:
        text = after_thought(action).strip()
        tested = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
        if not 1 <= tested <= self._left:
            request = f"Write a number from 1 to {self._left}.{self._end}"
            return Reply(request, terms={"found": 0.0, "halving": 0.0}, error="no such commit")
        halving = min(tested, self._left - tested) / (self._left // 2)
        if self._bad <= tested:
            word, self._left = "bad", tested
        else:
            word, self._left, self._bad = "good", self._left - tested, self._bad - tested
        if self._left == 1:
            return Reply(terms={"found": 1.0, "halving": halving}, terminated=True, success=True)
        return Reply(f"{word}: {self._left} left{self._end}", terms={"found": 0.0, "halving": halving})

    def expert_action(self, style: str = "default") -> str:
        """Halve the range.

        "newest" suspects the newest commits, and finds a third of 17 to 32 in 5 tests. "anywhere" tests any commit but
        the newest, and finds a third of 257 to 512 in 9.
        """
        self.check_style(style, ("default", "newest", "anywhere"))
        if style == "anywhere":
            return f"{int(self.np_random.integers(1, self._left))}{self._end}"
        if style == "default":
            return f"{self._left // 2}{self._end}"
        weights = _OLDER ** np.arange(self._left - 1)
        tested = self._left - 1 - int(self.np_random.choice(len(weights), p=weights / weights.sum()))
        return f"{tested}{self._end}"

    def random_action(self, rng: np.random.Generator) -> str:
        return f"{rng.integers(1, self._left + 1)}{self._end}"
