"""How a row opens an episode: its own system message, the earlier turns of its conversation, and its question.

The earlier turns of the assistant were not written by the policy that is trained, so that they belong to the prompt, as
all of an opening does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_gym.chat import Message
from agent_gym.images import Content
from agent_gym.row_forms import opening_of


class RowOpening:
    """A mixin, before `TextEnv`, for environments whose tasks are rows; `begin` calls `open_row`."""

    system_prompt: str
    row_system = True
    """Whether a row's system message replaces the default one; not where a person or a protocol chose one."""
    _row_turns: tuple[Message, ...] = ()
    _row_prompts: tuple[str, str] | None = None  # the environment's own prompt, and the one that a row put in its place

    def open_row(self, row: Mapping[str, Any]) -> str:
        """Take the conversation of a row that was read, and return its question."""
        if self._row_prompts is None or self.system_prompt != self._row_prompts[1]:  # it may have been set since
            self._row_prompts = self.system_prompt, self.system_prompt
        self.system_prompt, self._row_turns = self.conversation(row, self._row_prompts[0])
        self._row_prompts = self._row_prompts[0], self.system_prompt
        return str(row["question"])

    def conversation(self, row: Mapping[str, Any], default: str) -> tuple[str, tuple[Message, ...]]:
        """Return the system prompt of a row, `default` where it has none, and the turns before its question."""
        before = opening_of(row)
        said = [str(message["content"]) for message in before if message["role"] == "system"]
        turns = tuple(message for message in before if message["role"] != "system")
        return "\n\n".join(said) if said and self.row_system else default, turns

    def with_system_prompt(self, content: Content) -> list[Message]:
        """Put the earlier turns of the row before its question."""
        *system, question = super().with_system_prompt(content)  # type: ignore[misc]
        return [*system, *self._row_turns, question]
