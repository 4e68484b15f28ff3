"""Sums: two numbers, added or subtracted; the task from which a model as it is published begins to learn.

One turn, a handful of tokens, and thousands of prompts: small enough that reinforcement learning of a real model shows
within minutes on a CPU, without a demonstration.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from agent_gym.data import Row
from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, quoted, whole_number
from agent_gym.rewards import after_thought

_HELD_OUT = 200  # pairs of numbers of each evaluation split
# A minus sign belongs to a number unless a number is before it: the last number of "7 - 9" is 9.
_NUMBER = re.compile(r"(?:(?<!\d)(?<!\d )[-\u2212]\s?)?\d+")


class SumsEnv(TextEnv):
    """Add or subtract two whole numbers.

    ## Description
    Each episode is one expression, such as `46 + 37`, and one turn.

    ## Observation
    The expression, and on the next line `Give only the final answer.`

    ## Action
    Free text. Its last number is the answer; a thought before it ends with `</think>`.

    ## Reward
    - `answer` (weight 1): the last number of the turn is the value of the expression.

    ## Episode end
    `terminated` after one turn. `is_success` is `answer`.

    ## Arguments
    - `largest`: the largest number of an expression, 30 to 9999 (99). The smallest one is 0, and no result is below 0.
    - everything `TextEnv` takes: split, system_prompt, reward_weights, tokenizer, render_mode.

    ## Ids
    `AgentR1/Sums-v0`

    ## Data
    A pair of numbers belongs to one split, in both orders and with both signs, so that no test task is a training task
    turned round. `validation` and `test` have one expression of each of 200 pairs; `train` has all expressions of the
    others, of 5,000 pairs at most: 18,416 with numbers up to 99.

    ## References
    None: a task of this project. reasoning-gym's `chain_sum` (arXiv:2505.24760) is a relative.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"answer": 1.0}

    def __init__(self, *, largest: int = 99, **kwargs: Any) -> None:
        tasks = expressions(whole_number("largest", largest, 30, 9999))
        super().__init__(tasks, **{"max_turns": 1, **kwargs})
        self._gold = 0

    def gold(self, task: Any) -> str:
        return str(task["answer"])

    def begin(self, task: Any) -> str:
        if not isinstance(task, Mapping) or not {"question", "answer"} <= task.keys():
            example = {"question": "2 + 3", "answer": 5}
            raise ConfigError(f"a task has question and answer, as {example}, got {quoted(task)}")
        self._gold = int(task["answer"])
        return f"{task['question']}\nGive only the final answer."

    def respond(self, action: str) -> Reply:
        right = stated(action) == self._gold
        return Reply(terms={"answer": float(right)}, terminated=True, success=right)

    def expert_action(self) -> str:
        return str(self._gold)

    def random_action(self, rng: np.random.Generator) -> str:
        return str(rng.integers(-99, 199))


def stated(text: str) -> int | None:
    """Return the last number of a turn, or None."""
    found = _NUMBER.findall(after_thought(text))
    number = "".join(found[-1].replace("\u2212", "-").split()) if found else ""
    return int(number) if number and number.isascii() and len(number) < 20 else None


@functools.lru_cache(maxsize=8)
def expressions(largest: int) -> dict[str, list[Row]]:
    """Return the tasks of each split, `question` and `answer`, with numbers from 0 to `largest`."""
    rng = random.Random(f"sums/{largest}")
    most = (5000 + 2 * _HELD_OUT) // 2
    easy = [(a, b) for a in range(largest + 1) for b in range(min(a, 9) + 1)]
    rng.shuffle(easy)
    pairs = easy[:most] + _drawn(min(len(easy), most), largest, rng)
    rng.shuffle(pairs)
    held_out = {"validation": pairs[:_HELD_OUT], "test": pairs[_HELD_OUT : 2 * _HELD_OUT]}
    rows = {split: [rng.choice(_rows(*pair)) for pair in held] for split, held in held_out.items()}
    train = [row for pair in pairs[2 * _HELD_OUT :] for row in _rows(*pair)]
    rng.shuffle(train)
    return {"train": train, **rows}


def _drawn(count: int, largest: int, rng: random.Random) -> list[tuple[int, int]]:
    """Draw distinct pairs, the larger number first, of numbers with two or more digits."""
    pairs = dict[tuple[int, int], None]()  # in the order of drawing
    count = min(count, (largest - 9) * (largest - 8) // 2)
    while len(pairs) < count:
        low, high = sorted((rng.randint(10, largest), rng.randint(10, largest)))
        pairs[high, low] = None
    return list(pairs)


def _rows(a: int, b: int) -> list[Row]:
    """Return the sums of two numbers in both orders, and their difference, the larger number first."""
    sums = [{"question": f"{first} + {second}", "answer": a + b} for first, second in dict.fromkeys([(a, b), (b, a)])]
    return [*sums, {"question": f"{a} - {b}", "answer": a - b}]
