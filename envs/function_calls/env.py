"""Function calls: the multi-turn and single-turn tasks of BFCL v4, by calls that are read and never evaluated."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from agent_gym.chat import Message
from agent_gym.env import Reply
from agent_gym.envs.function_calls.answers import first_right, right_calls
from agent_gym.envs.function_calls.data import MULTI_TURN, categories_of, folder_of, load, schema_of
from agent_gym.envs.function_calls.world import ApiObjects
from agent_gym.errors import ConfigError, quoted
from agent_gym.images import Content
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import Tool, ToolCall, ToolResult

_STEPS = 20  # with calls in one turn of the user; one more ends the task (MAXIMUM_STEP_LIMIT of bfcl_eval)
_KEYS = {"id", "category", "turns", "functions", "gold"}


class FunctionCallsEnv(ToolEnv):
    """Call the right functions, with the right arguments, for what a user asks in one message or in several.

    ## Description
    The tasks of the Berkeley Function Calling Leaderboard (BFCL) v4. In the multi-turn categories each episode has one
    to four API classes out of eight (a file system, a trading bot, a car, travel, tickets, messages, posts,
    mathematics), with a state of its own and up to 8 messages of the user. In the single-turn categories no function
    runs: the calls of one turn are compared with the right ones.

    ## Observation
    `reset` returns the user's first message. In the multi-turn categories a turn with calls returns their results; a
    turn without one ends the user's turn, and returns the next message. In `multi_turn_miss_func` a function is held
    out, and a later message brings its document.

    ## Action
    Free text with calls, such as `<tool_call>{"name": "cd", "arguments": {"folder": "document"}}</tool_call>`, several
    per turn if wanted. Arguments are JSON and are bound to the parameters by name. Types are not checked, as in the
    original: a class raises, and the policy reads that, or the state differs. A dot in a function's name is shown as an
    underscore.

    ## Reward
    - `valid` (weight 1): BFCL's verdict on the whole task. Several turns: after each turn of the user the state is that
      of the gold calls, and the results so far hold its results. One turn: the rules of BFCL's AST checker;
      in `irrelevance` no call.
    - `turns` (0): the share of the user's turns that are right.

    ## Episode end
    `terminated` after the last message, at the 21st turn with calls to one message, and after one turn in the
    single-turn categories. `truncated` after `max_turns` turns. `is_success` is `valid`.

    ## Arguments
    - `category`: a category, a group (`multi_turn`, `single_turn`, `live`, `all`) or a list of them ("multi_turn").
      Several turns: `multi_turn_base`, `multi_turn_miss_func`, `multi_turn_miss_param`, `multi_turn_long_context`. One
      turn: `simple_python`, `multiple`, `parallel`, `parallel_multiple`, `irrelevance`, and from users:
      `live_simple`, `live_multiple`, `live_parallel`, `live_parallel_multiple`, `live_irrelevance`.
    - `official`: all tasks, in the original order, as split `test` (False). Four live ones have no right answer by the
      original's rules; they are here alone.
    - `data`: the folder of the prepared wheel (that of `agent-gym prepare bfcl`).
    - everything `ToolEnv` and `TextEnv` take; `max_turns` is 200, and `max_calls_per_turn` 64.

    ## Ids
    `AgentR1/FunctionCalls-v0`

    ## Data
    The wheel `bfcl-eval` 2026.3.23 (Apache-2.0, Patil et al., github.com/ShishirPatil/gorilla); `agent-gym prepare
    bfcl` fetches it without its dependencies. Nothing of it is in this repository. The classes are the original's
    source, run in modules of each episode; `MathAPI` needs mpmath, the extra `bfcl`. BFCL has no split: here all
    tasks of one scenario (a number in the four multi-turn categories, a state, a question, a documented function) are
    in one of `train`, `validation` and `test`.

    ## Differences from the original
    Calls are JSON, and not Python that is evaluated. Function documents come without the returned fields and the hint
    at Python's syntax. A call that is not JSON is answered with an error and counts as a turn; in `irrelevance` it
    counts as a call. Precision and exponents have a limit of 1000. Left out: Java and JavaScript, whose rules need
    parsers of these languages, `live_relevance`, which has no gold answers, web search and memory.

    ## References
    Patil et al., "The Berkeley Function Calling Leaderboard (BFCL)", ICML 2025.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"valid": 1.0, "turns": 0.0}
    rollout_budget: ClassVar[Mapping[str, int]] = {"max_turn_tokens": 8_192, "max_tokens": 131_072}
    default_system_prompt: ClassVar[str] = (
        "Call functions to do what the user asks for. A message without a call ends your turn. If no function fits, or "
        "something that one needs is missing, call none and say so."
    )

    def __init__(
        self,
        *,
        category: str | Sequence[str] = "multi_turn",
        official: bool = False,
        data: str | Path | None = None,
        max_turns: int = 200,
        max_calls_per_turn: int = 64,
        **kwargs: Any,
    ) -> None:
        if not isinstance(official, bool):
            raise ConfigError(f"official is {quoted(official)}; it must be True or False")
        categories = categories_of(category)
        self.folder = folder_of(data)
        tasks = load(self.folder, categories, official)
        super().__init__(tasks, tools=(), max_turns=max_turns, max_calls_per_turn=max_calls_per_turn, **kwargs)

    def gold(self, task: Any) -> Any:
        """Return the gold calls by turn, or the right values of each call; empty where no call is right."""
        return task["gold"]

    def begin(self, task: Any) -> str:
        several = isinstance(task, Mapping) and task.get("category") in MULTI_TURN
        keys = _KEYS | ({"config", "classes"} if several else set())
        if not (isinstance(task, Mapping) and keys <= task.keys()):
            raise ConfigError(f"a task has the keys {', '.join(sorted(keys))}, got {quoted(task)}")
        self._task, self._api = task, None
        if several:
            long_context = task["category"] == "multi_turn_long_context"
            self._api = ApiObjects(self.folder, task["classes"], task["config"], long_context)
        self._place, self._steps, self._called, self._right = 0, 0, False, list[bool]()
        held_out = {name for names in task.get("added", {}).values() for name in names}
        self._documents = [one for one in task["functions"] if one["name"] not in held_out]
        self._show()
        self._opening_schemas = self.tool_schemas
        *self._before, last = task["turns"][0]
        return str(last["content"])

    def with_system_prompt(self, content: Content) -> list[Message]:
        """Put the task's own system message and earlier messages, which some live tasks have, before the question."""
        *own, question = super().with_system_prompt(content)
        said = [str(one["content"]) for one in [*self._before, *own] if one["role"] == "system"]
        system: list[Message] = [{"role": "system", "content": "\n\n".join(said)}] if said else []
        return [*system, *(dict(one) for one in self._before if one["role"] != "system"), question]

    @property
    def template_tools(self) -> list[dict[str, Any]]:
        """The functions of the opening: a prompt that was rendered does not change, a message brings the others."""
        return self._opening_schemas if self._in_template else []

    def respond(self, action: str) -> Reply:
        if self._api is None:
            return self._judge(self.parser.parse(action))
        reply = super().respond(action)
        self._steps += bool(reply.tool_calls)
        if self._steps > _STEPS and not reply.terminated:
            end = self._end()
            reply.terms, reply.metrics, reply.terminated = end.terms, reply.metrics | end.metrics, True
        return reply

    def answer(self, text: str) -> Reply:
        """End a turn of the user: judge it, and give the next message."""
        assert self._api is not None
        self._right.append(self._api.is_right(self._task["gold"][self._place], self._called))
        self._place, self._steps, self._called = self._place + 1, 0, False
        if self._place == len(self._task["turns"]):
            return self._end()
        words = "\n".join(str(one["content"]) for one in self._task["turns"][self._place])
        if names := self._task.get("added", {}).get(str(self._place)):
            added = [one for one in self._task["functions"] if one["name"] in names]
            self._documents = [*self._documents, *added]
            self._show()
            schemas = "\n".join(json.dumps(schema_of(one)) for one in added)
            words = f"There are more functions now:\n{schemas}\nPlease try it with them."
        # A user speaks, also where the template has a role for answers of the world.
        return Reply(messages=[{"role": "user", "content": words}], source="user")

    def expert_action(self) -> str:
        """Replay the gold calls: all of a turn at once, then a message without a call."""
        gold, calls = self._task["gold"], list[tuple[str, dict[str, Any]]]()
        if self._api is None:
            calls = first_right(self._task["functions"], gold)
        elif not self._called:
            calls = [self._api.arguments_of(one) for one in gold[self._place]]
        words = "Done." if self._called else "I cannot do that."
        return "\n".join(self.parser.render(*one) for one in calls) or words

    def _show(self) -> None:
        """Make the documented functions the ones that the policy knows."""
        self.tool_schemas = [schema_of(one) for one in self._documents]
        shown = [one["function"] for one in self.tool_schemas]
        self.tools = {one["name"]: Tool(one["name"], one["description"], one["parameters"]) for one in shown}
        made = getattr(self.parser, "made", 0)
        self._model_parser = None  # it reads arguments by the schemas
        self._count_calls(made)

    def _run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run the calls one after the other: they change one state."""
        return [self._run_one(call) for call in calls]

    def _run_one(self, call: ToolCall) -> ToolResult:
        assert self._api is not None
        if call.error:
            return ToolResult(f"Error: {call.error}", error=True)
        self._called = True
        # A function that is held out can be called, as in the original: its document alone is missing.
        if call.name not in self._api.functions:
            known = ", ".join(self.tools)
            return ToolResult(f"Error: unknown function {quoted(call.name)}; available: {known}", error=True)
        try:
            arguments = copy.deepcopy(dict(call.arguments))
        except RecursionError:
            return ToolResult("Error: the arguments are nested too deeply", error=True)
        return ToolResult(*self._api.call(call.name, arguments))

    def _judge(self, calls: Sequence[ToolCall]) -> Reply:
        """Compare the calls of the only turn with the right ones."""
        error = next((call.error for call in calls if call.error), None)
        made = [(call.name, call.arguments) for call in calls]
        right = not error and right_calls(self._task["category"], self._task["functions"], made, self._task["gold"])
        self._right.append(bool(right))
        reply = self._end()
        reply.tool_calls, reply.messages, reply.error = calls[: self.max_calls_per_turn], [], error
        return reply

    def _end(self) -> Reply:
        turns = len(self._task["turns"])
        valid = len(self._right) == turns and all(self._right)
        terms = {"valid": float(valid), "turns": sum(self._right) / turns}
        return Reply(terms=terms, metrics=dict(terms), terminated=True, success=valid)
