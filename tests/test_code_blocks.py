"""Programs in a turn: which one is meant, whatever it is wrapped in, and how one is written."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym.formats.code import CodeParser
from agent_gym.tools import HermesParser, ToolCall

blocks = CodeParser("code_interpreter", "code")
calls = CodeParser("code_interpreter", "code", blocks=False)
HERMES = HermesParser().render


def program(code: str) -> list[ToolCall]:
    return [ToolCall("code_interpreter", {"code": code})]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("So:\n<code>\n```python\nx = 1\nprint(x)\n```\n</code>", "x = 1\nprint(x)"),
        ("<code>print(1)</code>", "print(1)"),
        ("<code>\n  print(1)\n</code>", "  print(1)"),
        ("<code>\n```\nprint(1)\n```\n</code>", "print(1)"),
        ("<code>\n```py\nprint(1)\n```</code>", "print(1)"),
        ("<code>\nI try:\n```Python\nprint(1)\n```\nDone.\n</code>", "print(1)"),
        ("<code>\n```python\na\n```\nno,\n```python\nb\n```\n</code>", "b"),  # the last one, as ReTool does
        ("<code>a</code> and <code>b</code>", "b"),
        ("<code>\n```python\nprint(1", "print(1"),  # nobody stopped it, or it was cut off
        ("```python\nprint(1)\n```", "print(1)"),
        ("```python\na\n```\n```python\nb\n```\nI wait.", "b"),
        ("<code>print('<tool_call>')</code>", "print('<tool_call>')"),
        ("<code>\\boxed{1}</code>\\boxed{2}", "\\boxed{1}"),  # a block is always run
        ("<code>s = '''\nx ``` y\n'''</code>", "s = '''\nx ``` y\n'''"),
    ],
)
def test_programs(text: str, code: str) -> None:
    assert blocks.parse(text) == calls.parse(text) == program(code)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "print(1)",
        "```\nprint(1)\n```",
        "```python\nprint(1)\n```\nSo \\boxed{1}",
        "use `python`",
        "</code>",
        "\\boxed{5}",
    ],
)
def test_turns_without_a_program(text: str) -> None:
    assert blocks.parse(text) == []


def test_empty_programs_are_named() -> None:
    for text in ("<code></code>", "<code>\n```python\n```\n</code>", "```python\n\n```", "<code>"):
        (call,) = blocks.parse(text)
        assert call.error == "the program is empty"


def test_tool_calls_all_run() -> None:
    text = HERMES("code_interpreter", {"code": "a"}) + HERMES("code_interpreter", {"code": "<code>b</code>"})
    assert blocks.parse(text) == program("a") + program("<code>b</code>")
    assert blocks.parse("<tool_call>{</tool_call>")[0].error


def test_what_is_written_is_read() -> None:
    for parser in (blocks, calls):
        text = parser.render("code_interpreter", {"code": "for i in range(3):\n    print(i)"})
        assert parser.parse(text) == program("for i in range(3):\n    print(i)")
    assert blocks.stop == ("</code>",) and calls.stop == ()
    assert text.startswith("<tool_call>")
    assert blocks.parse(blocks.render("other", {"x": 1})) == [ToolCall("other", {"x": 1})]


def test_what_closes_a_block() -> None:
    assert blocks.missing_end("<code>1") == blocks.missing_end("<code>a</code><code>b") == "</code>"
    for closed in ("<code>1</code>", "1", "```python\n1", HERMES("code_interpreter", {"code": "<code>"})):
        assert blocks.missing_end(closed) == ""


def test_instructions_show_the_form() -> None:
    schema = {"type": "function", "function": {"name": "code_interpreter", "description": "Runs.", "parameters": {}}}
    assert "<code>\n```python" in blocks.instructions([schema])
    assert "<tool_call>" in calls.instructions([schema]) and "<code>" not in calls.instructions([schema])


@given(st.lists(st.sampled_from(["<code>", "</code>", "```python\n", "```", "\n", "x", "<tool_call>", "\\boxed{"])))
def test_any_turn_can_be_read(pieces: list[str]) -> None:
    text = "".join(pieces)
    for call in blocks.parse(text):
        assert call.error or call.arguments["code"].strip()
    assert blocks.missing_end(text) in ("", "</code>")


@pytest.mark.parametrize("piece", ["<code>", "```python\n", "``` \n", "</code>", "`", " ", "\n", "<code></code>"])
def test_a_megabyte_is_read_at_once(piece: str) -> None:
    text = piece * ((1 << 20) // len(piece))
    started = time.process_time()
    blocks.parse(text)
    blocks.parse("<code>" + text)
    assert time.process_time() - started < 5
