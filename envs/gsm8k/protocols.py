"""Protocols of word problems: verl's example, and Agent-R1's with a tool. The numbers are percent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_gym.protocols import PaperPreset
from agent_gym.tools import TextTool, ToolResult

TOOL, ARGUMENT = "calc_gsm8k_reward", "answer"
_CLIP = 300  # characters at the end of a turn in which verl looks for the answer
_STRICT, _FLEXIBLE = re.compile(r"#### (-?[0-9.,]+)"), re.compile(r"-?[0-9.,]+")


@dataclass(frozen=True, kw_only=True)
class ProblemProtocol(PaperPreset):
    """A protocol of word problems."""

    suffix: str  # after the question


def strict_match(turn: str, gold: str) -> float:
    """1.0 if the last `#### number` of a turn is the gold number as a text: verl's reward_score/gsm8k.py, strict."""
    found = _STRICT.findall(turn[-_CLIP:])
    return float(bool(found) and found[-1].replace(",", "").replace("$", "") == gold)


def checked(answer: str, gold: str) -> ToolResult:
    """Answer a call of Agent-R1's tool, which tells the policy whether its answer is right."""
    stated = answer if answer.startswith("#### ") else f"#### {answer}"
    found = _FLEXIBLE.findall(stated[-_CLIP:])
    numbers = [number for number in found if number != "."]
    # verl's scorer returns an integer where it finds nothing, and a float else.
    reward = float(bool(numbers) and numbers[-1] == gold) if found else 0
    return ToolResult(f"Current parsed answer={stated!r} {reward=}")


class AnswerTool(TextTool):
    """Agent-R1's tool: a number is as good as a text, and a call without an answer has an empty one."""

    def run_batch(self, batch: Sequence[Mapping[str, Any]]) -> list[ToolResult]:
        assert self._do is not None
        return [self._do(str(one.get(self.argument, ""))) for one in batch]


PROTOCOLS: Mapping[str, ProblemProtocol] = {
    "verl": ProblemProtocol(
        source="verl (volcengine/verl of 2025: examples/data_preprocess/gsm8k.py, reward_score/gsm8k.py)",
        ids=("AgentR1/GSM8K-NoTool-v0",),
        fixed={"use_calculator": False, "system_prompt": ""},
        budgets={"max_turns": 1, "reward_weights": {"answer": 1.0, "format": 0.0}},
        rollout={"max_turn_tokens": 1024, "max_tokens": 1536},
        turn="I go on step by step.\n{}",
        suffix=' Let\'s think step by step and output the final answer after "####".',
    ),
    "agent-r1": ProblemProtocol(
        source="Agent-R1 (AgentR1/Agent-R1 of 2026: examples/data_preprocess/gsm8k_tool.py, tool/tools/gsm8k.py)",
        ids=("AgentR1/GSM8K-v0",),
        fixed={
            "use_calculator": False,
            "system_prompt": (
                "You are a math expert. You are given a question and you need to solve it step by step. Reasoning step "
                "by step before any tool call. You should use the `calc_gsm8k_reward` tool after step by step solving "
                "the question, before generate final answer at least once and refine your answer if necessary. Put "
                "your final answer in the format of `#### <answer>`."
            ),
        },
        budgets={"max_turns": 5, "reward_weights": {"answer": 1.0, "format": 0.0}},
        rollout={"max_turn_tokens": 2048, "max_tokens": 4096},
        turn="I go on step by step.\n{}",
        about=("A tool for calculating the reward of gsm8k", "The answer to the question"),
        suffix=" Let's think step by step and output the final answer after `####`.",
    ),
}
