"""Tool calls in what a policy wrote: nothing is dropped, nothing raises, and what was rendered is read back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym.formats.tags import TagParser
from agent_gym.tools import HermesParser, ToolCall, tool

hermes = HermesParser()
tags = TagParser({"search": "query", "code": "source"})

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
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
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("null", '"name" and "arguments"'),
        ('["add"]', '"name" and "arguments"'),
        ('{"arguments": {}}', '"name" and "arguments"'),
        ('{"name": 1, "arguments": {}}', '"name" and "arguments"'),
        ('{"name": "add", "arguments": []}', "must be a JSON object"),
        ('{"name": "add", "arguments": "x"}', "must be a JSON object"),
        ('{"name": "add", "arguments": null}', "must be a JSON object"),
        ('{"name": "add", "arguments": {"a": NaN}}', "NaN"),
        ('{"name": "add", "arguments": {"a": -Infinity}}', "-Infinity"),
        ('{"name": "add", "arguments": {"a": 1e999}}', "too large"),
        ('{"name": "add", "arguments": {"a": {"b": [1, [-1e999]]}}}', "too large"),
        ('{"name": "add", "arguments": "{\\"a\\": 1e999}"}', "too large"),
        ('{"name": "add", "arguments": {"a": "\\ud83d"}}', "surrogate"),
        ('{"name": "add", "arguments": {"a": "\ud83d"}}', "surrogate"),
        ('{"name": "add", "arguments": {"a": ' + "[" * 400 + "]" * 400 + "}}", "deep"),
        ('{"name": "add", "arguments": {"a": ' + "[" * 40 + "]" * 40 + "}}", "deep"),
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
    assert hermes.parse("no call, but </tool_call> and {}") == []
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
    escaped = '<tool_call>{"name": "add", "arguments": {"a": "\\ud83d\\ude00"}}</tool_call>'
    assert hermes.parse(escaped) == [ToolCall("add", {"a": "\U0001f600"})]


def test_how_deep_an_argument_of_hermes_may_be() -> None:
    for depth, fine in ((30, True), (31, False)):
        (one,) = hermes.parse(hermes.render("add", {"a": json.loads("[" * depth + "1" + "]" * depth)}))
        assert (one.error is None) == fine


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


def test_tag_names_are_not_patterns() -> None:
    assert TagParser({"a.c": "x"}).parse("<abc>1</abc>") == []
    assert TagParser({"a.c": "x"}).parse("<a.c>1</a.c>") == [ToolCall("a.c", {"x": "1"})]


@tool
def search(query: str) -> str:
    """Find documents.

    Args:
        query: what to look for.
    """
    return query


def test_instructions_name_tool_format_and_arguments() -> None:
    for parser in (hermes, tags):
        text = parser.instructions([search.schema])
        assert "search" in text and "Find documents." in text and "query" in text
    assert "</tool_call>" in hermes.instructions([search.schema])
    assert "<search>query</search>" in tags.instructions([search.schema])
    assert "search" not in TagParser({"code": "source"}).instructions([search.schema]), "it could not be written"
