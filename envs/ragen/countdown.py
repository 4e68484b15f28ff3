"""Countdown as an environment: reach a target with each number used once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from agent_gym.envs.ragen.base import RagenEnv, Terms
from agent_gym.envs.ragen.embedded.puzzles import OPERATORS, Puzzles
from agent_gym.envs.ragen.expressions import read, solve
from agent_gym.envs.ragen.protocols import COUNTDOWN
from agent_gym.errors import ConfigError, at_difficulty, shown, whole_number
from agent_gym.protocols import takes_protocol

LADDER: tuple[Mapping[str, Any], ...] = (
    {"numbers": 4, "largest": 30, "operators": "+-*/"},
    {"numbers": 3, "largest": 20, "operators": "+-"},
    {"numbers": 3, "largest": 50, "operators": "+-*/"},
    {"numbers": 4, "largest": 30, "operators": "+-*/"},
    {"numbers": 4, "largest": 99, "operators": "+-*/"},
    {"numbers": 5, "largest": 99, "operators": "+-*/"},
)  # the default, then by difficulty


class CountdownEnv(RagenEnv):
    """Reach a target with each number used once.

    ## Description
    Each episode is a list of numbers and a target, and one turn. An expression with + - * / and parentheses has to use
    each number exactly once and have the target as its value.

    ## Observation
    `Target: 24, nums: [3, 5, 2, 4]`, RAGEN's words. The answer to a turn is empty.

    ## Action
    `<answer>(3 + 5) * (4 - 2)</answer>`: an expression and nothing else, without `=`. × ÷ − are read as * / -. A
    thought before it ends with `</think>`.

    ## Reward
    - `answer` (weight 1): the expression uses each number once and is equal to the target, in exact fractions.
    - `numbers` (0): it uses each number once and has another value, or none.
    - `invalid` (0): -1 for a turn without an answer.

    ## Episode end
    `terminated` after one turn. `is_success` is `answer`.

    ## Arguments
    - `numbers`: how many, 2 to 6 (4). `largest`: of the numbers, 9 to 999 (30). The smallest one is 1.
    - `operators`: some of "+-*/", which solutions of generated tasks have. Answers may have all of them.
    - `difficulty`: 1 to 5 sets these three (`LADDER`).
    - `protocol`: "ragen" plays as RAGEN does (docs/protocols.md): its prompt, 0.1 for `numbers`, and -0.1 for a turn
      without an answer.
    - everything `TextEnv` takes: split, system_prompt, max_turns, reward_weights, tokenizer, render_mode.

    A task that is handed in is a dict with `nums` and `target`; it has to have a solution.

    ## Data
    A random expression whose intermediate results are whole and positive gives the target, at most 999. A hash of the
    sorted numbers and the target decides the split: no test task is a training task in another order. Validation and
    test have 200 tasks each, train 20,000.

    ## References
    RAGEN (arXiv:2504.20073), and TinyZero (Jiayi-Pan/TinyZero), whose task it is.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"answer": 1.0, "numbers": 0.0, "invalid": 0.0}
    names, example = ("an expression",), "(3 + 5) * 2"
    default_system_prompt: ClassVar[str] = (
        "Write an expression that is equal to the target. Use each number exactly once, and + - * / and parentheses: "
        "<answer>(3 + 5) * 2</answer>."
    )
    one_turn = True

    @takes_protocol(COUNTDOWN)
    def __init__(
        self,
        *,
        protocol: str | None = None,
        numbers: int | None = None,
        largest: int | None = None,
        operators: str | None = None,
        difficulty: int | None = None,
        **kwargs: Any,
    ) -> None:
        rung = at_difficulty(difficulty, LADDER, numbers=numbers, largest=largest, operators=operators)
        signs = rung["operators"]
        if not isinstance(signs, str) or not signs or {*signs} - {*OPERATORS}:
            raise ConfigError(f"operators is {shown(signs)}; it must be some of {''.join(OPERATORS)}, such as '+-'")
        tasks = Puzzles.splits(
            many=whole_number("numbers", rung["numbers"], 2, 6),
            largest=whole_number("largest", rung["largest"], 9, 999),
            operators="".join(sign for sign in OPERATORS if sign in signs),
        )
        super().__init__(tasks, protocol=COUNTDOWN[protocol] if protocol else None, **{"max_turns": 1, **kwargs})

    def gold(self, task: Any) -> str:
        return str(task.get("answer") or solve(task["nums"], task["target"]))

    def start(self, task: Any) -> None:
        row: Any = task if isinstance(task, Mapping) else {}
        nums, target = row.get("nums"), row.get("target")
        whole = isinstance(nums, list | tuple) and len(nums) < 7 and all(type(one) is int and one > 0 for one in nums)
        if not (whole and nums and type(target) is int and (row.get("answer") or solve(nums, target))):
            example = {"nums": [3, 5, 2], "target": 4}
            raise ConfigError(f"a task has up to 6 nums, and a target that they reach, as {example}, got {shown(task)}")
        self._nums, self._target = [*nums], target

    def view(self) -> str:
        return f"Target: {self._target}, nums: {self._nums}"

    def known(self, action: str) -> str | None:
        return action

    def act(self, action: str) -> tuple[Terms, bool | None]:
        numbers, value = read(action)
        each_once = sorted(numbers) == sorted(self._nums)
        right = each_once and value == self._target
        return {"answer": float(right), "numbers": float(each_once and not right)}, right

    def expert_action(self, style: str = "default") -> str:
        """Search all expressions. In style "additive" only sums and differences are tried."""
        self.check_style(style, ("default", "additive"))
        found = solve(self._nums, self._target, "+-" if style == "additive" else "+-*/")
        return self.write([found or " + ".join(map(str, self._nums))])

    def random_action(self, rng: np.random.Generator) -> str:
        order = rng.permutation(len(self._nums))
        return self.write(["".join(f" {'+-*/'[int(rng.integers(4))]} {self._nums[int(at)]}" for at in order)[3:]])
