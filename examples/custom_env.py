"""An environment with a tool in 40 lines: a function is the tool, `begin` asks, `answer` scores.

    python examples/custom_env.py              # plays one episode by the expert and prints the transcript

Train on it: `agent-gym grpo custom_env:PricesEnv --model_name_or_path smollm2`, from this folder. A package of its own
with tests: `agent-gym new env prices`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from agent_gym import Reply, ToolEnv, tool
from agent_gym.rewards import final_answer
from agent_gym.testing import play

PRICES = {"apple": 3, "bread": 4, "cheese": 9, "dates": 7, "eggs": 5}
PAIRS = [(one, other) for one in PRICES for other in PRICES if one != other]


def price_of(item: str) -> int:
    """Look up the price of an item.

    Args:
        item: its name, for example "apple".
    """
    if item not in PRICES:
        raise ValueError(f"no item is called {item!r}; there are {', '.join(PRICES)}")  # the policy reads this
    return PRICES[item]


class PricesEnv(ToolEnv):
    """Two look-ups and a sum. The reward is 1 for the right sum and 0.1 for an answer in the tags."""

    reward_weights: ClassVar[dict[str, float]] = {"answer": 1.0, "format": 0.1}
    default_system_prompt: ClassVar[str] = "Look the prices up, then write the sum in <answer></answer>."

    def __init__(self, **kwargs: Any) -> None:
        """Make the tasks. No question of the test split is in the training split."""
        tasks = [(count, one, other) for count in range(2, 9) for one, other in PAIRS]
        super().__init__({"train": tasks[:100], "test": tasks[100:]}, tools=[tool(price_of)], **kwargs)

    def begin(self, task: Any) -> str:
        """Return the question of a task; `reset` calls it."""
        count, *self.items = task
        self.right = str(count * PRICES[self.items[0]] + PRICES[self.items[1]])
        return f"What do {count} x {self.items[0]} and one {self.items[1]} cost together?"

    def answer(self, text: str) -> Reply:
        """Score a turn without a call."""
        given = final_answer(text)
        terms = {"answer": float(given == self.right), "format": float(given is not None)}
        return Reply(terms=terms, terminated=True, success=terms["answer"] == 1)

    def expert_action(self) -> str:
        """Return the next turn of a perfect player: demonstrations and `certify` use it."""
        if self.turn < len(self.items):
            return self.parser.render("price_of", {"item": self.items[self.turn]})
        return f"<answer>{self.right}</answer>"


def main() -> str:
    """Play the first test task by the expert and return the transcript."""
    with PricesEnv() as env:
        play(env, iter(env.expert_action, None), seed=0, options={"split": "test", "index": 0})
        return env.transcript.text


if __name__ == "__main__":
    print(main())
