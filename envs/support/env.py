"""A support desk: a simulated customer asks, tools look up and change a shop's database, rules limit the changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from agent_gym.env import Reply
from agent_gym.envs.support.customer import Customer
from agent_gym.envs.support.database import Database, after
from agent_gym.envs.support.embedded import DAYS, SupportTasks
from agent_gym.errors import ConfigError, quoted
from agent_gym.rewards import after_thought
from agent_gym.tool_env import ToolEnv

_LENIENCE = 0.7
"""How likely the expert in style "lenient" carries out a request that the rules do not allow."""
_IDENTITY = "May I have your name and zip code, please?"


class SupportEnv(ToolEnv):
    """Help the customer of a shop: find the request, look up the facts that the rules need, change the order, say so.

    ## Description
    Each episode is one customer with one goal or several, a mood, and a database with orders. The policy talks with the
    customer and calls tools. Seven tools look up and change the database, and four rules in the system prompt state
    which changes may be changed. The tools do not check the rules.

    The customer is simulated by rules (customer.py): free, deterministic, and no model. It says one goal after the
    other, answers when it is asked for a name, a number, an item, and asks its questions: how much is paid back, or why
    not. Its text has the source `user:customer`. It is the world's, and never trained.

    ## Observation
    `reset` returns the first request. A turn with calls returns their results, or lines that start with "Error:"; a
    turn without one goes to the customer, who answers.

    ## Action
    Free text. Calls in Hermes form, such as `<tool_call>{"name": "get_order", "arguments": {"order":
    "W1234"}}</tool_call>`, several per turn if wanted; else a message to the customer, who hears the text after
    `</think>`.

    ## Reward
    - `solved` (weight 1): at the end the database is in the right state, each goal was reported to the customer as done
      or as refused, and each question was answered right.
    - `database`, `reported` (0): the first of these alone, and the share of the goals that were reported right.

    A question has one answer: a message with two numbers, or two states, where one was asked for answers nothing.

    ## Episode end
    `terminated` when the customer says goodbye: all goals were reported, or the patience is over (4 messages that make
    no sense to the customer, 2 of a hurried one). `truncated` after `max_turns` turns. `is_success` is `solved`.

    ## Arguments
    - `difficulty`: 1 to 5. 1: one goal, the number of the order is known; 2: the customer asks back and may have to be
      found by name; 3: two goals, gold members, exchanges; 4: three, and a return where an exchange is not possible; 5:
      four, six orders, and no patience. None (default): one goal or two, all kinds.
    - everything `ToolEnv` and `TextEnv` take.

    ## Ids
    `AgentR1/Support-v0` (30 turns).

    ## Data
    A seeded generator (embedded/): 20,000 train, 1,000 validation and 1,000 test customers. Names and numbers belong to
    one split. Four of ten goals are against the rules.

    ## References
    The shape is that of tau-bench (Yao et al., arXiv:2406.12045): a user, tools on a database, a policy document, and a
    reward for the final state and for the reports to the user. Its user is a language model; ours is not.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"solved": 1.0, "database": 0.0, "reported": 0.0}
    default_system_prompt: ClassVar[str] = (
        "You help customers of a shop. Look things up and change them with the tools; what you write without a call is "
        "said to the customer.\n"
        "1. An order that is pending can be cancelled or sent to another zip code. Others cannot.\n"
        f"2. An item that was delivered can be returned or exchanged for {DAYS['standard']} days, by gold members for "
        f"{DAYS['gold']}.\n"
        "3. An item is exchanged for another variant of the same product, which must be in stock.\n"
        "4. Do what the customer asks for and the rules allow, and nothing else. If something is not possible, say so "
        "and why. Answer with one number where one is asked for."
    )

    def __init__(self, *, difficulty: int | None = None, max_turns: int = 30, **kwargs: Any) -> None:
        self.database = Database()
        tasks = SupportTasks.splits(difficulty=difficulty)
        super().__init__(tasks, tools=self.database.tools, max_turns=max_turns, **kwargs)

    def gold(self, task: Any) -> dict[str, Any]:
        """Return the calls that change the database, and the answers to the customer's questions."""
        asked = [goal["asks"][0 if goal["allowed"] else 1] for goal in task["goals"]]
        return {
            "calls": [[name, dict(call)] for name, call in task["writes"]],
            "said": [one[2] for one in asked if one[1]],
        }

    def begin(self, task: Any) -> str:
        if not (isinstance(task, Mapping) and {"person", "goals", "content", "writes"} <= set(task)):
            raise ConfigError(f"a task of the support desk is a row of its generator, got {quoted(task, 200)}")
        self._task = task
        self.database.load(task["content"])
        self._wanted = after(task["content"], task["writes"])
        self.customer = Customer(task["person"], task["goals"], introduces=not task["numbered"])
        # Drawn for all styles, so that the stream of random numbers is the same.
        self._lenient = bool(self.np_random.random() < _LENIENCE)
        return self.customer.opening()

    def answer(self, text: str) -> Reply:
        customer = self.customer
        words = customer.hear(after_thought(text))
        if not customer.gone:
            return Reply(words, source="user:customer")
        right = self.database.content == self._wanted
        reported = sum(customer.right) / len(customer.goals)
        solved = float(right and reported == 1.0)
        terms = {"solved": solved, "database": float(right), "reported": reported}
        return Reply(words, terms=terms, terminated=True, success=bool(solved), source="user:customer", metrics=terms)

    def expert_action(self, style: str = "default") -> str:
        """Look everything up, then do it or refuse.

        "eager" carries out requests without a look; "lenient" looks, and mostly carries out requests that the rules do
        not allow.
        """
        self.check_style(style, ("default", "eager", "lenient"))
        eager = style == "eager"
        plan = self._plan(looks=not eager, lenient=eager or (style == "lenient" and self._lenient))
        return plan[min(self.turn, len(plan) - 1)]

    def _plan(self, looks: bool, lenient: bool) -> list[str]:
        """Return the turns of an expert, one after the other."""
        task, plan = self._task, list[str]()
        person, orders = task["person"], task["content"]["orders"]
        own = [number for number, order in orders.items() if order["user"] == "u1"]
        if not task["numbered"]:
            find = self.parser.render("find_customer", {"name": person["name"], "zip": person["zip"]})
            calls = [self.parser.render("get_order", {"order": number}) for number in own]
            plan += [_IDENTITY, find, *(["\n".join(calls)] if looks else [])]
        for goal in task["goals"]:
            reads = [one for one in goal["reads"] if task["numbered"] or one[0] != "get_order"]
            calls = [self.parser.render(name, arguments) for name, arguments in reads]
            plan += ["\n".join(calls)] if calls and looks else []
            does = lenient or goal["allowed"]
            plan += [self.parser.render(*goal["call"])] if does else []
            plan.append(goal["done" if does else "refused"])
        return plan

    def random_action(self, rng: np.random.Generator) -> str:
        """Call a tool, ask for the name, or report that all is done or refused."""
        reports = (_IDENTITY, "Done.", "Sorry, that is not possible.")
        return reports[int(rng.integers(3))] if rng.random() < 0.4 else super().random_action(rng)
