r"""Programs in what a policy wrote: `<code>` blocks as in ReTool (arXiv:2504.11536), ```python fences, or tool calls.

    First I list the divisors.
    <code>
    ```python
    print([d for d in range(1, 13) if 12 % d == 0])
    ```
    </code>

The rules, where ReTool's evaluation and verl's recipe have one they are theirs:

- A turn stops at `</code>`. One that does not, because the engine did not stop it or cut it off, counts as closed.
- Of several blocks in one turn the last one runs, and of several fences in a block the last one (ReTool). Tool calls
  all run, in their order (verl).
- The fence inside of `<code>` may be missing. A fence without `<code>` is a program if it says that it is Python and no
  `\boxed{}` follows: an answer may show the program that it comes from.
- Where a turn holds both blocks and tool calls, whichever it opens first is meant: programs may print the other one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gym.tools import HermesParser, ToolCall, ToolSchema

_OPEN, _CLOSE, _CALL = "<code>", "</code>", "<tool_call>"
_PYTHON = re.compile(r"^[ \t]*```[ \t]*(?:python3?|py)[ \t]*$", re.IGNORECASE | re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*```[ \t]*\w*[ \t]*$", re.MULTILINE)


class CodeParser:
    """Programs as the one text argument of one tool.

    Args:
        tool: the name of the tool that runs them.
        argument: the name of its argument.
        blocks: whether `render` and `instructions` show blocks, and a turn stops at `</code>`; else tool calls in
            Hermes form. Both are read in any case.
    """

    def __init__(self, tool: str, argument: str, *, blocks: bool = True) -> None:
        self.tool, self.argument, self.blocks = tool, argument, blocks
        self.stop: tuple[str, ...] = (_CLOSE,) if blocks else ()
        self.in_templates = not blocks
        self._hermes = HermesParser()

    def parse(self, text: str) -> list[ToolCall]:
        if _calls(text):
            return self._hermes.parse(text)
        code = _last_block(text) if _OPEN in text else _last_fence(text)
        if code is None:
            return []
        if not code.strip():
            return [ToolCall(self.tool, error="the program is empty")]
        return [ToolCall(self.tool, {self.argument: code})]

    def missing_end(self, text: str) -> str:
        """Return what has to be added to a turn to close its last block; "" where nothing has to."""
        return "" if _calls(text) or text.rfind(_OPEN) <= text.rfind(_CLOSE) else _CLOSE

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self.blocks and name == self.tool and self.argument in arguments:
            return f"{_OPEN}\n```python\n{arguments[self.argument]}\n```\n{_CLOSE}"
        return self._hermes.render(name, arguments)

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        if not self.blocks:
            return self._hermes.instructions(tools)
        example = self.render(self.tool, {self.argument: "print(6 * 7)"})
        return (
            f"You may run Python programs. Write each as\n{example}\nand stop there. What it printed follows as\n"
            "<interpreter>\n42</interpreter>\nand you go on behind it."
        )


def _calls(text: str) -> bool:
    """Whether a turn opens a tool call before it opens a block."""
    block, call = text.find(_OPEN), text.find(_CALL)
    return call >= 0 and not 0 <= block < call


def _last_block(text: str) -> str:
    """The program in the last `<code>` of a text."""
    block = text[text.rfind(_OPEN) + len(_OPEN) :].partition(_CLOSE)[0]
    start = _last_end(_PYTHON, block)
    if start is None:
        # A fence that names no language is only looked for at the beginning: further down it would be the closing one.
        first = _FENCE.match(block.lstrip("\n"))
        if first is None:
            return block.strip("\n")
        block, start = block.lstrip("\n"), first.end()
    return _up_to_fence(block[start:])


def _last_fence(text: str) -> str | None:
    """The program in the last ```python fence of a text, unless an answer follows it."""
    start = _last_end(_PYTHON, text)
    if start is None or text.find("\\boxed", start) >= 0:
        return None
    return _up_to_fence(text[start:])


def _up_to_fence(text: str) -> str:
    end = _FENCE.search(text)
    return (text if end is None else text[: end.start()]).strip("\n")


def _last_end(pattern: re.Pattern[str], text: str) -> int | None:
    end = None
    for match in pattern.finditer(text):
        end = match.end()
    return end
