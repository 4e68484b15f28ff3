"""Tool calls in what a policy wrote: nothing is dropped, nothing raises, and what was rendered is read back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym.formats.code import BlockParser, CodeParser
from agent_gym.formats.tags import TagParser
from agent_gym.tools import HermesParser, ToolCall, tool

hermes = HermesParser()
tags = TagParser({"search": "query", "code": "source"})

json_values = st.recursive(
    st.none() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def holds_a_tag(value: Any) -> bool:
    return "tool_call>" in json.dumps(value, ensure_ascii=False)


@given(
    st.lists(
        st.tuples(st.text(min_size=1), st.dictionaries(st.text(), json_values, max_size=3)).filter(
            lambda call: not holds_a_tag(call)
        ),
        max_size=4,
    ),
    st.text(st.characters(categories=("L", "N", "P", "Z"))).filter(lambda text: "<" not in text),
)
def test_hermes_reads_back_what_it_renders(calls: list[tuple[str, dict[str, Any]]], between: str) -> None:
    text = between.join(["", *(hermes.render(name, arguments) for name, arguments in calls), ""])
    assert hermes.parse(text) == [ToolCall(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", "not valid JSON"),
        ("null", '"name" and "arguments"'),
        ('{"name": 1, "arguments": {}}', '"name" and "arguments"'),
        ('{"name": "add", "arguments": []}', "must be a JSON object"),
        ('{"name": "add", "arguments": "x"}', "must be a JSON object"),
        ('{"name": "add", "arguments": {"a": NaN}}', "NaN"),
        ('{"name": "add", "arguments": {"a": {"b": [1, [-1e999]]}}}', "too large"),
        ('{"name": "add", "arguments": "{\\"a\\": 1e999}"}', "too large"),
        ('{"name": "add", "arguments": {"a": "\\ud83d"}}', "surrogate"),
        ('{"name": "add", "arguments": {"a": "\ud83d"}}', "surrogate"),
        ('{"name": "add", "arguments": {"a": ' + "[" * 400 + "]" * 400 + "}}", "deep"),
        ('{"name": "add", "arguments": {"a": ' + "[" * 31 + "1" + "]" * 31 + "}}", "deep"),
        ('{"name": "add", "arguments": ' + "[" * 50_000, "not valid JSON"),
        ('{"name": "add", "arguments": {"a": ' + "1" * 5000 + "}}", "not valid JSON"),
    ],
)
def test_broken_hermes_calls_come_back_with_a_reason(body: str, words: str) -> None:
    good = hermes.render("add", {"a": 1})
    before, broken, after = hermes.parse(f"{good}<tool_call>{body}</tool_call>{good}")
    assert before == after == ToolCall("add", {"a": 1})
    assert broken.error is not None and words in broken.error
    assert len(broken.error) < 200, "the input must not be repeated to the policy"


def test_hermes_on_the_edge() -> None:
    (closed,) = hermes.parse("no call, but </tool_call> and {}")
    assert closed.error is not None and "no whole opening mark, <tool_call>" in closed.error
    (open_call,) = hermes.parse('<tool_call>{"name": "add", "arguments": {}}')
    assert open_call.error is not None and "</tool_call>" in open_call.error
    assert hermes.parse('<tool_call>{"name": "add"}</tool_call>') == [ToolCall("add", {})]
    # A call that is cut off behind whole ones, and one that is opened twice: what stands between is its body.
    whole, cut_off = hermes.parse('<tool_call>{"name": "add"}</tool_call><tool_call>{"name":')
    assert whole == ToolCall("add", {}) and cut_off.error == open_call.error
    (twice,) = hermes.parse('<tool_call><tool_call>{"name": "add"}</tool_call>')
    assert twice.error is not None and "not valid JSON" in twice.error
    # Some models quote the arguments once more; whole surrogate pairs and moderate nesting are fine.
    quoted = json.dumps({"name": "add", "arguments": json.dumps({"a": [[["\U0001f600"]]]})})
    assert hermes.parse(f"<tool_call>{quoted}</tool_call>") == [ToolCall("add", {"a": [[["\U0001f600"]]]})]
    (deep,) = hermes.parse(hermes.render("add", {"a": json.loads("[" * 30 + "1" + "]" * 30)}))
    assert deep.error is None
    escaped = '<tool_call>{"name": "add", "arguments": {"a": "\\ud83d\\ude00"}}</tool_call>'
    assert hermes.parse(escaped) == [ToolCall("add", {"a": "\U0001f600"})]


def test_hermes_takes_linear_time() -> None:
    for piece in ("<tool_call>", "<tool_call></tool_call>", '<tool_call>{"a":', "</tool_call>"):
        started = time.process_time()
        hermes.parse(piece * 20_000)
        assert time.process_time() - started < 2


def test_tags() -> None:
    text = "Let me look.<search> who wrote it </search><code>\nprint('<search>')\n</code>"
    assert tags.parse(text) == [
        ToolCall("search", {"query": "who wrote it"}),
        ToolCall("code", {"source": "print('<search>')"}),
    ]
    assert tags.stop == ("</search>", "</code>")
    assert tags.parse("nothing <other>x</other>") == []
    first, second = tags.parse("<search>a</search> <code>never closed")
    assert first.error is None and second.name == "code" and second.error is not None and "</code>" in second.error
    started = time.process_time()
    tags.parse("<search>" * 100_000)
    assert time.process_time() - started < 1


@given(st.lists(st.tuples(st.sampled_from(["search", "code"]), st.text().filter(lambda t: "<" not in t))))
def test_tags_read_back_what_they_render(calls: list[tuple[str, str]]) -> None:
    names = {"search": "query", "code": "source"}
    text = "\n".join(tags.render(tool, {names[tool]: value}) for tool, value in calls)
    assert tags.parse(text) == [ToolCall(tool, {names[tool]: value.strip()}) for tool, value in calls]


@tool
def search(query: str) -> str:
    """Find documents.

    Args:
        query: what to look for.
    """
    return query


def test_tag_names_are_not_patterns_and_instructions_are_complete() -> None:
    assert TagParser({"a.c": "x"}).parse("<abc>1</abc>") == []
    assert TagParser({"a.c": "x"}).parse("<a.c>1</a.c>") == [ToolCall("a.c", {"x": "1"})]
    for parser in (hermes, tags):
        text = parser.instructions([search.schema])
        assert "search" in text and "Find documents." in text and "query" in text
    assert "</tool_call>" in hermes.instructions([search.schema])
    assert "<search>query</search>" in tags.instructions([search.schema])
    assert "search" not in TagParser({"code": "source"}).instructions([search.schema]), "it could not be written"


# Programs: which one is meant, whatever it is wrapped in.

blocks = CodeParser("code_interpreter", "code")
calls = CodeParser("code_interpreter", "code", blocks=False)
alone = BlockParser("code_interpreter", "code")


def program(code: str) -> list[ToolCall]:
    return [ToolCall("code_interpreter", {"code": code})]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("So:\n<code>\n```python\nx = 1\nprint(x)\n```\n</code>", "x = 1\nprint(x)"),
        ("<code>print(1)</code>", "print(1)"),
        ("<code>\n```\nprint(1)\n```\n</code>", "print(1)"),
        ("<code>\nI try:\n```Python\nprint(1)\n```\nDone.\n</code>", "print(1)"),
        ("<code>\n```python\na\n```\nno,\n```python\nb\n```\n</code>", "b"),  # the last one, as ReTool does
        ("<code>a</code> and <code>b</code>", "b"),
        ("<code>\n```python\nprint(1", "print(1"),  # it was cut off
        ("```python\na\n```\n```python\nb\n```\nI wait.", "b"),
        ("<code>print('<tool_call>')</code>", "print('<tool_call>')"),
        ("<code>\\boxed{1}</code>\\boxed{2}", "\\boxed{1}"),  # a block is always run
        ("<code>s = '''\nx ``` y\n'''</code>", "s = '''\nx ``` y\n'''"),
        ("<code>\n```python\nprint(1)```\n</code>", "print(1)"),
        ("```python\nprint(1)```", "print(1)"),
        ("```python\nprint(1)```\nThat prints 1.", "print(1)"),
        ("```python\nprint(f'\\boxed{{{x}}}')\n```\nI wait.", "print(f'\\boxed{{{x}}}')"),
        ("1. Try:\n   ```python\n   if x:\n       a\n   ```", "if x:\n    a"),
        ("<code>\nprint(1)\n```\n</code>", "print(1)"),
        ("<code>```python print(1)```</code>", "print(1)"),
        ("<code>```pyx = 1\nprint(pyx)\n```</code>", "pyx = 1\nprint(pyx)"),
        ("<code>\r\n```python\r\nx = 1\r\nprint(x)\r\n```\r\n</code>", "x = 1\nprint(x)"),
        ("```python\r\nx = 1\r\nprint(x)\r\n```\r\nI wait.", "x = 1\nprint(x)"),
    ],
)
def test_programs(text: str, code: str) -> None:
    assert blocks.parse(text) == calls.parse(text) == program(code)


@pytest.mark.parametrize(
    "text",
    [
        "print(1)",
        "```\nprint(1)\n```",
        "```python\nprint(1)\n```\nSo \\boxed{1}",
        "```python\nprint(1)```\n\\boxed{1}",
        "</code>",
        "\\boxed{5}",
    ],
)
def test_turns_without_a_program(text: str) -> None:
    assert blocks.parse(text) == []


def test_tool_calls_with_programs_all_run() -> None:
    text = hermes.render("code_interpreter", {"code": "a"}) + hermes.render(
        "code_interpreter", {"code": "<code>b</code>"}
    )
    assert blocks.parse(text) == program("a") + program("<code>b</code>")
    assert blocks.parse("<tool_call>{</tool_call>")[0].error


def test_what_is_written_as_a_program_is_read() -> None:
    for parser in (blocks, calls):
        text = parser.render("code_interpreter", {"code": "for i in range(3):\n    print(i)"})
        assert parser.parse(text) == program("for i in range(3):\n    print(i)")
    assert blocks.stop == ("</code>",) and calls.stop == ()
    assert text.startswith("<tool_call>")
    assert "<code>\n```python" in blocks.instructions([]) and "<code>" not in calls.instructions([])
    for empty in (
        "<code></code>",
        "<code>\n```python\n```\n</code>",
        "```python\n\n```",
        "<code>",
        "<code>```python```",
    ):
        assert [call.error for call in blocks.parse(empty)] == ["the program is empty"]
    assert blocks.parse(blocks.render("other", {"x": 1})) == [ToolCall("other", {"x": 1})]


def test_blocks_alone_are_programs_for_retool() -> None:
    call = hermes.render("code_interpreter", {"code": "a"})
    assert alone.parse(f"{call}<code>b</code>") == program("b")
    assert alone.parse("```python\na\n```\n<code>b</code>") == program("b")
    assert alone.parse("So:\n```python\na\n```\n</code>") == program("a"), "its end makes it a program"
    assert alone.parse(call) == alone.parse("```python\na\n```") == alone.parse("\\boxed{5}") == []
    assert alone.missing_end(f"{call}<code>b") == "</code>" and alone.missing_end(f"{call}<code>b</code>") == ""


def test_what_closes_a_block() -> None:
    assert blocks.missing_end("<code>1") == blocks.missing_end("<code>a</code><code>b") == "</code>"
    for closed in ("<code>1</code>", "1", "```python\n1", hermes.render("code_interpreter", {"code": "<code>"})):
        assert blocks.missing_end(closed) == ""


@given(
    st.lists(st.sampled_from(["<code>", "</code>", "```python\n", "```", "\r\n", "\n", "x", "<tool_call>", "\\boxed{"]))
)
def test_any_turn_with_blocks_can_be_read(pieces: list[str]) -> None:
    text = "".join(pieces)
    for call in blocks.parse(text):
        assert call.error or call.arguments["code"].strip()
    assert blocks.missing_end(text) in ("", "</code>")


@pytest.mark.parametrize(
    "piece", ["<code>", "```python\n", "``` \n", "```py ", "</code>", "`", " ", "\n", "<code></code>"]
)
def test_a_megabyte_of_fences_is_read_at_once(piece: str) -> None:
    text = piece * ((1 << 20) // len(piece))
    started = time.process_time()
    blocks.parse(text)
    blocks.parse("<code>" + text)
    assert time.process_time() - started < 5
