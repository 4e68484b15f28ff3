"""The wire formats of tool calls, one file each: JSON (hermes), tags, ReAct, and code blocks.

A `Parser` can `parse` a turn into calls, `render` a call back to text (the expert and the tests write with it) and
state its `instructions` for models whose chat template does not show tools. Broken calls are not dropped: they come
back as a `ToolCall` with an `error`, in order, and the environment answers them, because a policy that does not read
about its mistake cannot learn from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

ToolSchema = Mapping[str, Any]
"""An OpenAI-style function schema: {"type": "function", "function": {"name", "description", "parameters"}}."""


@dataclass(slots=True)
class ToolCall:
    """One call as the policy wrote it and, once it ran, what it gave.

    Attributes:
        name: which tool.
        arguments: by name.
        error: why it cannot run, if it cannot.
        answer: what the policy reads of it; an environment may shorten or extend the tool's text.
        failed: whether it failed, through the policy's fault.
        seconds: how long it took. Calls of one turn run together, and each is charged its share.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    answer: str = ""
    failed: bool = False
    seconds: float = 0.0

    @property
    def record(self) -> dict[str, Any]:
        """What `info["tool_calls"]` and trajectories have of it."""
        return {"name": self.name, "arguments": self.arguments, "error": self.failed, "seconds": self.seconds}


class Parser(Protocol):
    """A wire format for tool calls."""

    stop: tuple[str, ...]
    """Strings after which generation may stop because a turn is complete; usually empty."""
    in_templates: bool
    """Whether a chat template that is given tools asks for this format; else the system prompt has to."""

    def parse(self, text: str) -> list[ToolCall]:
        """Return the calls of one turn in order; an empty list means that the turn calls nothing."""

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Write a call as the policy would."""

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        """Describe tools and format for a system prompt."""
