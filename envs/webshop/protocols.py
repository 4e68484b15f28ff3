"""Protocols of the shop: verl-agent and RAGEN-2. The numbers are percent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent_gym.formats import ragen
from agent_gym.formats.tags import Steps, TagParser, action_of, is_well_formed, past
from agent_gym.protocols import PaperPreset, prompt_file
from agent_gym.tools import ToolCall

ARGUMENTS = {"search": "keywords", "click": "element"}
"""The tools, and the one argument of each."""
_TAIL = 20
_MAX_CHARS = 13_000
_SEP = " [SEP] "
_SHOWN = "search[<content>]"  # in RAGEN's lists of actions
_NO_MORE = ["click[back to search]", "click[< prev]", "click[next >]"]
_FIRST, _LATER, _RAGEN, _ADVICE = (
    prompt_file(__file__, name)
    for name in ("verl-agent-first.txt", "verl-agent.txt", "ragen-system.txt", "ragen-advice.txt")
)


@dataclass(frozen=True, kw_only=True)
class ShopProtocol(PaperPreset):
    """A protocol of the shop."""

    prompt: Callable[[str, Steps, Mapping[str, Any]], str]  # page, steps before it, `available_actions`
    rebuilds: bool = True  # whether the prompt replaces the text before it, and is not appended
    kept: Callable[[str], str]  # the part of a turn that is its step, for prompts
    well_formed: Callable[[str], bool]  # which turns are not `invalid`


class ProtocolActionParser(TagParser):
    """A turn is one action, which `read` finds in it, or does nothing."""

    def __init__(self, read: Callable[[str], str], tag: str) -> None:
        super().__init__(ARGUMENTS, stop=())
        self._read, self._tag = read, tag

    def parse(self, text: str) -> list[ToolCall]:
        name, argument = _parted(self._read(text))
        return [ToolCall(name, {ARGUMENTS[name]: argument})] if name in ARGUMENTS else []

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"<{self._tag}>{name}[{arguments[ARGUMENTS[name]]}]</{self._tag}>"


def _parted(action: str) -> tuple[str, str]:
    """Part an action into its name and its argument, which holds no "[", as WebShop's `parse_action` does."""
    line = action.partition("\n")[0]
    stop = line.rfind("]")
    start = line.rfind("[", 1, max(1, stop - 1))
    return (line[:start], line[start + 1 : stop]) if start > 0 else ("", "")


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


def _ragen(page: str, steps: Steps, available: Mapping[str, Any]) -> str:
    if not steps:
        page = " ".join(page.split(_SEP)[1:3])
    actions = [_SHOWN] if available["has_search_bar"] else []
    actions += [f"click[{name}]" for name in available["clickables"] if name != "search"]
    actions = _NO_MORE[:2] if actions == _NO_MORE else actions
    state = f"{page}.{_ADVICE} You must choose from these actions:{', '.join(actions)}."
    return ragen.message([turn for _, turn in steps], state, actions=9, words=200)


PROTOCOLS: Mapping[str, ShopProtocol] = {
    "verl-agent": ShopProtocol(
        source="verl-agent (GiGPO, arXiv:2505.10978; langfengQ/verl-agent of 2025: prompts/webshop.py, projection.py)",
        ids=("AgentR1/WebShop-v0",),
        fixed={
            "observation": "text",
            "commands": "text",
            "parser": ProtocolActionParser(partial(action_of, tail=_TAIL), "action"),
            "system_prompt": "",
        },
        budgets={"max_turns": 15, "reward_weights": {"score": 0.0, "success": 10.0, "invalid": 0.1}},
        rollout={"max_turn_tokens": 512, "max_tokens": 4608},
        turn="<think>I go on step by step.</think>{}",
        prompt=_verl_agent,
        kept=partial(action_of, tail=_TAIL),
        well_formed=is_well_formed,
    ),
    "ragen": ShopProtocol(
        source="RAGEN-2 (arXiv:2604.06268; mll-lab-nu/RAGEN of 2026: envs.yaml, webshop/env.py, ctx_manager.py)",
        ids=("AgentR1/WebShop-v0",),
        fixed={
            "observation": "text",
            "commands": "text",
            "parser": ProtocolActionParser(ragen.action_of, "answer"),
            "system_prompt": ragen.PERSONA + _RAGEN,
        },
        budgets={"max_turns": 9, "reward_weights": {"score": 0.0, "success": 1.0, "invalid": ragen.PENALTY}},
        rollout={"max_turn_tokens": 400, "max_tokens": 15_000},
        split="validation",
        turn="<think>I go on step by step.</think>{}",
        prompt=_ragen,
        rebuilds=False,
        kept=str,
        well_formed=ragen.acts,
    ),
}
