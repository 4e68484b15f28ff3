"""Protocols of household tasks: verl-agent and Agent-R1. The numbers are success rates in percent.

Both write a separate prompt for each turn, so that a policy does not read its earlier thoughts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent_gym.formats.tags import Steps, TagParser, action_of, is_well_formed, past
from agent_gym.protocols import PaperPreset, prompt_file
from agent_gym.tools import FirstCallParser, ToolCall

ARGUMENT = "command"
_IDS = ("AgentR1/ALFWorld-v0",)
_TASK = "Your task is to: "
_FIRST, _LATER, _AGENT_R1 = (
    prompt_file(__file__, name) for name in ("verl-agent-first.txt", "verl-agent.txt", "agent-r1.txt")
)


@dataclass(frozen=True, kw_only=True)
class HouseProtocol(PaperPreset):
    """A protocol of a house."""

    prompt: Callable[[str, Steps, Sequence[str]], str]  # observation, steps before it, admissible commands
    well_formed: Callable[[str], bool] | None = None  # which turns are not `invalid`; None for admissible commands
    refusal: str = "{}"  # around the observation that comes again, where a turn has no command


class VerlAgentParser(TagParser):
    """A turn is always one command."""

    def parse(self, text: str) -> list[ToolCall]:
        return [ToolCall("action", {ARGUMENT: action_of(text, tail=30)})]


def _verl_agent(observation: str, steps: Steps, admissible: Sequence[str]) -> str:
    commands = "\n ".join(f"'{command}'" for command in admissible if command != "help")
    now = {"current_observation": observation, "admissible_actions": commands}
    if not steps:
        return _FIRST.format(**now)
    return _LATER.format(task_description=steps[0][0].partition(_TASK)[2].strip(), **past(steps), **now)


def _agent_r1(observation: str, steps: Steps, admissible: Sequence[str]) -> str:
    first = steps[0][0] if steps else observation
    return _AGENT_R1.format(
        task_text=_TASK + first.partition(_TASK)[2].strip().split("\n")[0],
        observation=observation,
        history_actions="\n".join(f"[Action {n}] {action}" for n, (_, action) in enumerate(steps, 1)) or "None",
        admissible_commands="\n".join(f"- {command}" for command in admissible if command != "help"),
    )


PROTOCOLS: Mapping[str, HouseProtocol] = {
    "verl-agent": HouseProtocol(
        source="verl-agent (GiGPO, arXiv:2505.10978; langfengQ/verl-agent of 2025: prompts/alfworld.py, projection.py)",
        ids=_IDS,
        fixed={
            "commands": "tags",
            "parser": VerlAgentParser({"action": ARGUMENT}, stop=()),
            "system_prompt": "",
            "show_admissible": False,
        },
        budgets={"max_turns": 50, "reward_weights": {"success": 10.0, "invalid": 0.1}},
        rollout={"max_turn_tokens": 512, "max_tokens": 2560},
        split="valid_seen",
        turn="<think>I go on step by step.</think>{}",
        prompt=_verl_agent,
        well_formed=is_well_formed,
    ),
    "agent-r1": HouseProtocol(
        source="Agent-R1 (AgentR1/Agent-R1 of 2026, recipes/alfworld: prompts.py, utils.py, alfworld_agent_flow.py)",
        ids=_IDS,
        fixed={
            "commands": "tool",
            "parser": FirstCallParser(),
            "system_prompt": prompt_file(__file__, "agent-r1-system.txt"),
            "show_admissible": False,
        },
        budgets={"max_turns": 20, "reward_weights": {"success": 1.0}},
        rollout={"max_turn_tokens": 4096, "max_tokens": 12288},
        turn="<think>\nI go on step by step.\n</think>\n{}",
        about=(
            "Execute one ALFWorld TextWorld command and return the next official observation.",
            "A single ALFWorld TextWorld command such as `go to dresser 1`, `open cabinet 3`, `take mug 1 from cabinet "
            "3`, `use desklamp 1`. It must exactly match one currently admissible command.",
        ),
        prompt=_agent_r1,
        refusal=prompt_file(__file__, "agent-r1-refusal.txt"),
    ),
}
