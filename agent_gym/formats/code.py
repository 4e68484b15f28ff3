r"""Programs in a policy's text: `<code>` blocks as in ReTool (arXiv:2504.11536), ```python fences, or tool calls.

    First I list the divisors.
    <code>
    ```python
    print([d for d in range(1, 13) if 12 % d == 0])
    ```
    </code>

The rules; where ReTool's evaluation has one, it is that:

- A turn stops at `</code>`; one that was cut off counts as closed.
- Of several blocks in one turn the last one runs, and of several fences in a block the last one (ReTool). Tool calls
  all run, in their order.
- The fence inside of `<code>` or of a tool call may be missing, and it may share its first line, or its last one, with
  the program.
  A fence without `<code>` is a program if it names Python and no `\boxed{}` follows it: an answer may show the
  program that it comes from.
- Of blocks and tool calls in one turn, the kind that it opens first is meant: programs may print the other one.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from agent_gym.tools import HermesParser, Parser, ToolCall, ToolSchema

_OPEN, _CLOSE, _CALL = "<code>", "</code>", "<tool_call>"
_PYTHON = re.compile(r"^[ \t]*```[ \t]*(?:python3?|py)[ \t]*$", re.IGNORECASE | re.MULTILINE)
_LAST = re.compile(r"```[ \t]*$", re.MULTILINE)  # some models close the fence on the last line of the program
_FENCE = re.compile(rf"^[ \t]*```[ \t]*\w*[ \t]*$|{_LAST.pattern}", re.MULTILINE)
_FIRST = re.compile(r"[ \t]*```[ \t]*(?:(?:python3?|py)\b[ \t]*|\w+[ \t]*$|)", re.IGNORECASE | re.MULTILINE)


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
        self._model: Parser = self._hermes
        self.family = ""

    def around(self, model: Parser) -> Parser:
        """Return a parser that reads and writes calls as `model` does, where they are not written as blocks."""
        if self.blocks:
            return self
        made = copy(self)
        made._model, made.family = model, getattr(model, "family", "")
        return made

    def parse(self, text: str) -> list[ToolCall]:
        if not isinstance(self._model, HermesParser) and (calls := self._model.parse(text)):
            return calls
        return self._hermes.parse(text) if _calls(text) else self._parse_block(text)

    def _parse_block(self, text: str) -> list[ToolCall]:
        code = _program(text)
        if code is None:
            return []
        if not code.strip():
            return [ToolCall(self.tool, error="the program is empty")]
        return [ToolCall(self.tool, {self.argument: code})]

    def missing_end(self, text: str) -> str:
        """Return the text that closes the last block of a turn; "" for a closed one."""
        return _CLOSE if not _calls(text) and _left_open(text) else ""

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self.blocks and name == self.tool and self.argument in arguments:
            return f"{_OPEN}\n```python\n{arguments[self.argument]}\n```\n{_CLOSE}"
        return self._model.render(name, arguments)

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """Write the calls of one turn as the policy would."""
        return "\n".join(self.render(call.name, call.arguments) for call in calls)

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        if not self.blocks:
            return self._model.instructions(tools)
        example = self.render(self.tool, {self.argument: "print(6 * 7)"})
        return (
            f"You may run Python programs. Write each as\n{example}\nand stop there. What it printed follows as\n"
            "<interpreter>\n42</interpreter>\nand you go on behind it."
        )


class BlockParser(CodeParser):
    """Blocks and nothing else, as in ReTool's evaluation: other fences and tool calls are words of the policy.

    There `</code>` alone makes a turn a program; a missing `<code>` is forgiven.
    """

    def parse(self, text: str) -> list[ToolCall]:
        if _OPEN in text:
            return self._parse_block(text)
        return self._parse_block(_OPEN + text) if _CLOSE in text else []

    def missing_end(self, text: str) -> str:
        return _CLOSE if _left_open(text) else ""


def unfenced(code: str) -> str:
    """Return the program in a tool call: of fences the last one, as inside of `<code>`.

    A program that quotes a fence in a text of several lines stays as it is.
    """
    fences = _PYTHON.search(code) if not re.search("\"\"\"|'''", code) else None
    if fences or code.lstrip().startswith("```"):
        return _program(_OPEN + code) or ""
    return code


def _left_open(text: str) -> bool:
    return text.rfind(_OPEN) > text.rfind(_CLOSE)


def _calls(text: str) -> bool:
    """Whether a turn opens a tool call before it opens a block."""
    block, call = text.find(_OPEN), text.find(_CALL)
    return call >= 0 and not 0 <= block < call


def _program(text: str) -> str | None:
    """The program in the last `<code>` of a turn, else in its last ```python fence, unless an answer follows that."""
    _, opened, block = text.replace("\r\n", "\n").rpartition(_OPEN)
    if opened:
        block = block.partition(_CLOSE)[0].strip("\n")
    starts = [fence.end() for fence in _PYTHON.finditer(block)]
    if not opened and not starts:
        return None
    if not starts:
        # A fence that names no language is only looked for at the beginning: further down it would be the closing one.
        first = _FIRST.match(block)
        starts = [first.end() if first else 0]
    code, *after = (_FENCE if starts[-1] else _LAST).split(block[starts[-1] :], maxsplit=1)
    code = code.rstrip().strip("\n")
    if opened:
        return code
    # The program may print a box itself, and be in a list, all of it indented.
    return None if "\\boxed" in "".join(after) else textwrap.dedent(code)
