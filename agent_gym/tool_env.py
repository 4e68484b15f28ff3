"""`ToolEnv`: parse, run, observe.

A new task on top of it is tools, tasks and a reward: the subclass defines `begin` (the question) and `answer` (what a
turn without a tool call means, usually the final answer and its score).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from agent_gym.checks import check_type, plain_number, shown
from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, EnvFailure, described, whole_number
from agent_gym.guesses import random_arguments, random_words, words_of
from agent_gym.parsing import HermesParser, Parser, ToolCall
from agent_gym.tools import Tool, ToolResult


class ToolEnv(TextEnv):
    """An environment in which the policy calls tools and, by a turn without a call, answers.

    Args:
        tasks: see `TextEnv`.
        tools: what the policy may call.
        parser: the wire format of calls; Hermes/Qwen JSON by default.
        max_calls_per_turn: calls beyond this many in one turn do not run; one error in their place says so.
        **kwargs: see `TextEnv`.

    Raises:
        ConfigError: if two tools share a name, or no call is allowed.
    """

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Any]],
        *,
        tools: Sequence[Tool],
        parser: Parser | None = None,
        max_calls_per_turn: int = 8,
        **kwargs: Any,
    ) -> None:
        """Index the tools by name."""
        super().__init__(tasks, **kwargs)
        self.tools = {tool.name: tool for tool in tools}
        if len(self.tools) != len(tools):
            raise ConfigError(f"two tools share a name: {[tool.name for tool in tools]}")
        self.max_calls_per_turn = whole_number("max_calls_per_turn", max_calls_per_turn, 1)
        self.parser = parser or HermesParser()
        self.stop = self.parser.stop
        self.tool_schemas = [tool.schema for tool in tools]

    def answer(self, text: str) -> Reply:
        """Handle a turn that calls no tool."""
        raise TypeError(f"{type(self).__name__} has to define answer(text)")

    def score_calls(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> dict[str, float]:
        """Return raw process-reward terms for one turn of calls; none by default."""
        return {}

    def opening_system_prompt(self) -> str:
        """Add a description of the tools where the chat template would not show them, or in another format."""
        shown = self.parser.in_templates and (self.renderer is None or self.renderer.renders_tools)
        if shown or not self.tools:
            return self.system_prompt
        return "\n\n".join(filter(None, [self.system_prompt, self.parser.instructions(self.tool_schemas)]))

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a turn of a policy that knows the tools and nothing else.

        Each tool, and the answer, is as likely as the others; texts are words of what was said so far.
        """
        words = words_of("\n".join(segment.text for segment in self.transcript.segments if segment.source != "system"))
        turn = int(rng.integers(len(self.tools) + 1))
        if turn == len(self.tools):
            return f"<answer>{random_words(words, rng)}</answer>"
        function = self.tool_schemas[turn]["function"]
        return self.parser.render(function["name"], random_arguments(function["parameters"], words, rng))

    @property
    def template_tools(self) -> list[dict[str, Any]]:
        """None for a format that no template asks for: the policy has to read of one format only."""
        return self.tool_schemas if self.parser.in_templates else []

    def respond(self, action: str) -> Reply:
        """Run the calls of a turn, or take it as the answer if there are none."""
        calls = self.parser.parse(action) if self.tools else []
        if not calls:
            reply = self.answer(action)
            check_type(reply, Reply, f"{type(self).__name__}.answer")
            return reply
        started = perf_counter()
        calls = self._allowed(calls)
        results = self._run(calls)
        seconds = (perf_counter() - started) / len(calls)
        reply = Reply(tool_calls=calls, terms=self.score_calls(calls, results))
        for call, result in zip(calls, results, strict=True):
            call.answer, call.failed, call.seconds = result.text, result.error, seconds
            if result.metrics:
                reply.metrics |= result.metrics
            if result.error and reply.error is None:
                reply.error = result.text
        return reply

    def _allowed(self, calls: list[ToolCall]) -> list[ToolCall]:
        """Put one error in the place of the calls that are too many.

        One answer for all of them: a megabyte of empty calls must not become several megabytes of answers.
        """
        beyond = len(calls) - self.max_calls_per_turn
        if beyond <= 0:
            return calls
        problem = f"only {self.max_calls_per_turn} tool calls are allowed per turn; {beyond} more did not run"
        return [*calls[: self.max_calls_per_turn], ToolCall("", error=problem)]

    def _run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run the calls, those of one tool together, and return what each gave."""
        results = [self._refusal(call) for call in calls]
        places: dict[str, list[int]] = {}
        for place, call in enumerate(calls):
            if results[place] is None:
                places.setdefault(call.name, []).append(place)
        for name, of_tool in places.items():
            answers = self._run_batch(name, [calls[place].arguments for place in of_tool])
            for place, answer in zip(of_tool, answers, strict=True):
                results[place] = answer
        return results  # type: ignore[return-value]  # none is None any more

    def _refusal(self, call: ToolCall) -> ToolResult | None:
        if call.error:
            return ToolResult(f"Error: {call.error}", error=True)
        if call.name not in self.tools:
            known = ", ".join(self.tools)
            return ToolResult(f"Error: unknown tool {call.name[:80]!r}; available: {known}", error=True)
        return None

    def _run_batch(self, name: str, batch: list[Mapping[str, Any]]) -> list[ToolResult]:
        try:
            answers = self.tools[name].run_batch(batch)
        except EnvFailure:
            raise
        except Exception as error:
            # A tool answers bad input with a ToolResult, so an exception is the tool's own fault.
            raise EnvFailure(f"tool {name!r} broke: {described(error)}") from error
        if not isinstance(answers, (list, tuple)):
            raise ConfigError(f"run_batch of tool {name!r} returned {shown(answers)}; it must be a list of ToolResult")
        if len(answers) != len(batch):
            raise EnvFailure(f"tool {name!r} gave {len(answers)} answers to {len(batch)} calls")
        for answer in answers:
            self._check(answer, name)
        return answers

    def _check(self, result: Any, name: str) -> None:
        """Check what a tool returned, and make its reward a float; its metrics are checked with those of the reply."""
        check_type(result, ToolResult, f"tool {name!r}")
        if not isinstance(result.text, str):
            raise ConfigError(f"text in the ToolResult of tool {name!r} is {shown(result.text)}; it must be a text")
        if not (result.metrics is None or isinstance(result.metrics, Mapping)):
            raise ConfigError(
                f"metrics in the ToolResult of tool {name!r} is {shown(result.metrics)}; it must be None or a dict"
            )
        if result.reward is not None:
            result.reward = plain_number(result.reward, f"the reward of tool {name!r}", self.place)
