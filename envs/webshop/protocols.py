"""Protocols of the shop: verl-agent. The numbers are percent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent_gym.formats.tags import Steps, TagParser, action_of, is_well_formed, past
from agent_gym.protocols import Protocol, prompt_file
from agent_gym.tools import ToolCall

ARGUMENTS = {"search": "keywords", "click": "element"}
"""The tools, and the one argument of each."""
_TAIL = 20
_MAX_CHARS = 13_000
_SEP = " [SEP] "
_ACTION = re.compile(r"(search|click)\[(.+)\]")
_FIRST, _LATER = (prompt_file(__file__, name) for name in ("verl-agent-first.txt", "verl-agent.txt"))


@dataclass(frozen=True, kw_only=True)
class ShopProtocol(Protocol):
    """A protocol of the shop."""

    prompt: Callable[[str, Steps, Mapping[str, Any]], str]  # page, steps before it, `available_actions`
    action: Callable[[str], str]  # what a turn does, as prompts repeat it
    well_formed: Callable[[str], bool]  # which turns are not `invalid`


class VerlAgentParser(TagParser):
    """A turn is one action, or does nothing."""

    def parse(self, text: str) -> list[ToolCall]:
        action = _ACTION.match(action_of(text, _TAIL))
        return [ToolCall(action[1], {ARGUMENTS[action[1]]: action[2]})] if action else []

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"<action>{name}[{arguments[ARGUMENTS[name]]}]</action>"


def _verl_agent(page: str, steps: Steps, available: Mapping[str, Any]) -> str:
    task = (steps[0][0] if steps else page).split(_SEP)[2]

    def quoted(text: str) -> str:
        parts = text.split(_SEP)
        return _SEP.join(f"'{part}'" for part in parts[parts.index(task) + 1 :]) if task in parts else text

    actions = ["search[<your query>]"] if available["has_search_bar"] else []
    actions += [f"click[{name}]" for name in available["clickables"]]
    now = {
        "task_description": task,
        "current_observation": quoted(page),
        "available_actions": "\n".join(f"'{action}'," for action in actions),
    }
    prompt = _LATER.format(**past([(quoted(seen), action) for seen, action in steps]), **now)
    return prompt if steps and len(prompt) <= _MAX_CHARS else _FIRST.format(**now)


PROTOCOLS: Mapping[str, ShopProtocol] = {
    "verl-agent": ShopProtocol(
        source="verl-agent (GiGPO, arXiv:2505.10978; langfengQ/verl-agent of 2025: prompts/webshop.py, projection.py)",
        ids=("AgentR1/WebShop-v0",),
        fixed={
            "observation": "text",
            "commands": "text",
            "parser": VerlAgentParser(ARGUMENTS, stop=()),
            "system_prompt": "",
        },
        budgets={"max_turns": 15, "reward_weights": {"score": 0.0, "success": 10.0, "invalid": 0.1}},
        rollout={"max_turn_tokens": 512, "max_tokens": 4608},
        turn="<think>I go on step by step.</think>{}",
        prompt=_verl_agent,
        action=partial(action_of, tail=_TAIL),
        well_formed=is_well_formed,
    ),
}
