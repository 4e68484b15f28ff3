"""Tool calls as plain tags, the format of Search-R1 and its like, and verl-agent's reading of such a turn.

verl-agent (GiGPO, arXiv:2505.10978) writes `<think>...</think><action>go to desk 1</action>`, with a prompt each turn.
The rules of `action_of`, `is_well_formed` and `past` are the ones of its `projection.py` and `env_manager.py` for
ALFWorld and WebShop. A turn always acts: without tags its last characters are the action. Whether it was well-formed is
asked apart, for a penalty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gym.tools import ToolCall, ToolSchema

Steps = Sequence[tuple[str, str]]
"""Observations, each with the action that followed it."""
_HISTORY = 2  # steps that a prompt repeats
_CHINESE = re.compile("[\u4e00-\u9fff]")


class TagParser:
    """Plain tags: `<search>who wrote it</search>` calls the tool `search` with the text as its one argument.

    Args:
        arguments: tool name (= tag name) to the name of its single argument.
        stop: the strings that end a turn; None for the closing tags.
    """

    in_templates = False

    def __init__(self, arguments: Mapping[str, str], stop: tuple[str, ...] | None = None) -> None:
        self.arguments = dict(arguments)
        self.stop = tuple(f"</{name}>" for name in self.arguments) if stop is None else stop
        names = "|".join(re.escape(name) for name in self.arguments)
        self._block = re.compile(rf"<({names})>(.*?)(</\1>|\Z)", re.DOTALL)

    def parse(self, text: str) -> list[ToolCall]:
        return [
            ToolCall(name, {self.arguments[name]: content.strip()})
            if closed
            else ToolCall(name, error=f"<{name}> is not closed by </{name}>")
            for name, content, closed in self._block.findall(text)
        ]

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"<{name}>{arguments[self.arguments[name]]}</{name}>"

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        known = [tool["function"] for tool in tools if tool["function"]["name"] in self.arguments]
        shown = {argument: argument for argument in self.arguments.values()}
        lines = [f"{self.render(one['name'], shown)}: {one['description']}" for one in known]
        return "You may call a tool by writing one of these tags:\n" + "\n".join(lines)


def action_of(turn: str, tail: int) -> str:
    """Return the action of a turn in lower case: the first `<action>`, or, without one, the last `tail` characters."""
    text = turn.lower()
    start, stop = text.find("<action>"), text.find("</action>")
    return text[-tail:] if start < 0 or stop < 0 else text[start + len("<action>") : stop].strip()


def is_well_formed(turn: str) -> bool:
    """Whether a turn has the tags of an action and, in lower case, of a thought, and nothing in Chinese."""
    tags = all(tag in turn.lower() for tag in ("<action>", "</action>"))
    return tags and "<think>" in turn and "</think>" in turn and not _CHINESE.search(turn)


def past(steps: Steps) -> dict[str, str]:
    """Return a prompt's texts about the steps so far, by the names in its template."""
    first = max(0, len(steps) - _HISTORY)
    recent = [
        f"[Observation {n}: '{observation}', Action {n}: '{action}']"
        for n, (observation, action) in enumerate(steps[first:], first + 1)
    ]
    return {
        "step_count": str(len(steps)),
        "current_step": str(len(steps) + 1),
        "history_length": str(len(recent)),
        "action_history": "\n".join(recent),
    }
