"""Protocols of problems and a Python interpreter: ReTool's own, and that of verl's recipe. The numbers are percent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent_gym.formats.code import BlockParser
from agent_gym.protocols import PaperPreset, prompt_file
from agent_gym.tools import FirstCallParser

NAME, ARGUMENT = "code_interpreter", "code"
_IDS = ("AgentR1/ReTool-v0",)
_FENCED = re.compile(r"```python(.*?)```", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class CodeProtocol(PaperPreset):
    """A protocol of an interpreter."""

    prompt: str  # the user's message, around {question}
    edit: Callable[[str], str] | None = None  # the edit of a program before it runs


def printing(code: str) -> str:
    """Return a program as verl's recipe runs it: of several fences the first, and its last line printed.

    A last line that begins with `print` stays. Any other is put into `print(...)`, even one that is not an expression.
    """
    fenced = _FENCED.search(code)
    lines = (fenced[1].strip() if fenced else code).split("\n")
    last = max((place for place, line in enumerate(lines) if line), default=None)
    if last is not None and not lines[last].startswith("print"):
        lines[last] = f"print({lines[last]})"
    return "\n".join(lines)


PROTOCOLS: Mapping[str, CodeProtocol] = {
    "retool": CodeProtocol(
        source="ReTool (arXiv:2504.11536; ReTool-RL/ReTool of 2025: eval.py, prompt_template.json)",
        ids=_IDS,
        fixed={
            "rendering": "inline",
            "stateful": False,
            "output_style": "retool",
            "parser": BlockParser(NAME, ARGUMENT),
            "system_prompt": "",
        },
        budgets={"max_turns": 100, "reward": "retool"},
        rollout={"max_turn_tokens": 16384, "max_tokens": 32768},  # the latter the context of the model that it plays
        prompt=prompt_file(__file__, "retool.txt"),
    ),
    "verl": CodeProtocol(
        source="verl's recipe (volcengine/verl of 2025, recipe/retool: retool.py, sandbox_fusion_tool_config.yaml)",
        ids=_IDS,
        fixed={
            "rendering": "chat",
            "stateful": False,
            "output_style": "verl",
            "parser": FirstCallParser(),
            "system_prompt": "",
        },
        budgets={"max_turns": 8, "reward": "verl"},
        rollout={"max_turn_tokens": 16384, "max_tokens": 2048 + 16384},  # of the prompt, and of all that follows
        about=("A tool for executing code.", "The code to execute."),
        prompt="{question}\nThe answer format must be: \\boxed{'The final answer goes here.'}",
        edit=printing,
    ),
}
