"""ReAct's format: which lines are actions, where an argument ends, what is not read, and the same turn as tags."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym import ConfigError
from agent_gym.formats.react import ReActParser
from agent_gym.tools import ToolCall, tool

react = ReActParser({"search": "query", "lookup": "title"})
shop = ReActParser({"lookup": "title", "click": "button"}, finish=None)


LOOKUP = ToolCall("lookup", {"title": "b"})


def search(query: str) -> ToolCall:
    return ToolCall("search", {"query": query})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("Thought: I look for Tobila.\nAction: Search[Tobila]", [search("Tobila")]),
        ("thought 1: hm\n ACTION 12 : sEaRcH [ Tobila ] now", [search("Tobila")]),
        ("**Thought:** hm\n**Action:**\n\n  Search[Tobila]", [search("Tobila")]),
        ("Search[Tobila]", [search("Tobila")]),
        ("Action: Search[a]\nAction: Lookup[b]\nsearch[c]", [search("a"), LOOKUP, search("c")]),
        ("Action: Search[a] and Search[b]", [search("a")]),  # one per line
        ("Action: Search[]", [search("")]),
        # Brackets inside an argument.
        ("Action: Search[Tobila [film] (1950)] I think [so]", [search("Tobila [film] (1950)")]),
        ("Action: Search[a [b]\nAction: Search[c]", [search("a [b"), search("c")]),
        # Spoken of, not done.
        ("Thought: I could do Search[Tobila] or Action: Search[Pemi].", []),
        ("Note[1] is Search-like\nThe action: Search[x]", []),
        ("I know it. Finish[Tobila]", []),
        ("", []),
        # What stands behind an observation was made up.
        ("Action: Search[a]\nObservation: [1] a\nAction: Search[b]", [search("a")]),
        ("Action: Search[a]\nobservation 1: [1] a\nAction 2: Search[b]", [search("a")]),
        ("Thought: my observation: none\nAction: Search[a]", [search("a")]),
        ("Action: Search[a]\nAction: Finish[b]", [search("a")]),  # who calls does not answer
        # A base model goes on with the next example.
        ("Action: Finish[b]\nQuestion: Who?\nThought 1: hm\nAction 1: Search[a]\nAction: Fly[x]", []),
        ("Action: Search[a]\nAction: Finish[b]\nAction: Search[c]", [search("a")]),
    ],
)
def test_actions(text: str, calls: list[ToolCall]) -> None:
    assert react.parse(text) == calls


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("Action: Search[Tobila", "search", "Search[ is not closed by ]"),
        ("Action: Search[Tobila\n]", "search", "not closed"),  # an argument is one line
        ("Search[Observation: none]", "search", "not closed"),
        ("Action: search for Tobila", "", "Name[argument]"),
    ],
)
def test_broken_actions_come_back_with_a_reason(text: str, name: str, words: str) -> None:
    good = "Action: Search[x]\n"
    before, broken = react.parse(good + text)
    assert before == search("x") and broken.name == name
    assert broken.error is not None and words in broken.error


def test_an_unknown_action_is_left_to_the_environment() -> None:
    assert react.parse("Action: Fly[home]") == [ToolCall("Fly")]
    assert react.parse(react.render("search", {"query": "two\nlines"})) == [search("two lines")]
    assert react.parse("Fly[home]") == [], "without the mark it is running text"


def test_tasks_without_a_finishing_action() -> None:
    assert shop.parse("click[Buy Now]") == [ToolCall("click", {"button": "Buy Now"})]
    assert shop.parse("Action: Finish[x]") == [ToolCall("Finish")]
    text = shop.instructions([lookup.schema])
    assert "Lookup[title]: " in text and "Finish" not in text
    assert "Lookup" not in ReActParser({"click": "button"}).instructions([lookup.schema]), "it could not be written"
    with pytest.raises(ConfigError, match="finish=None"):
        shop.render_answer("x")


# The closing bracket of an argument is the one that is its pair.
@st.composite
def paired(draw: st.DrawFn) -> str:
    text, depth = "", 0
    words = st.text(st.characters(exclude_characters="[]\n\r"))
    for piece in draw(st.lists(words | st.sampled_from("[]"), max_size=9)):
        if piece == "[" or piece != "]" or depth:
            text += piece
            depth += (piece == "[") - (piece == "]")
    return " ".join((text + "]" * depth).split())


@given(
    st.lists(st.tuples(st.sampled_from(["search", "lookup"]), paired()), max_size=4), st.sampled_from(["\n", "\n\n"])
)
def test_what_was_rendered_is_read_back(calls: list[tuple[str, str]], between: str) -> None:
    names = {"search": "query", "lookup": "title"}
    text = f"\n{between}".join(f"Thought: hm\n{react.render(name, {names[name]: value})}" for name, value in calls)
    assert react.parse(text) == [ToolCall(name, {names[name]: value}) for name, value in calls]
    answer = react.render_answer(calls[0][1] if calls else "x")
    assert react.parse(answer) == [] and react.tagged(answer) == f"<answer>{calls[0][1] if calls else 'x'}</answer>"


@given(st.lists(st.text() | st.sampled_from(["Action:", "Thought:", "Search[", "]", "Finish[", "\n", "Observation:"])))
def test_anything_can_be_read(pieces: list[str]) -> None:
    text = "".join(pieces)
    for call in react.parse(text):
        assert call.error is None or len(call.error) < 200, "the input must not be repeated to the policy"
    assert "Observation:" not in react.tagged(text)


@pytest.mark.parametrize(
    ("text", "tagged"),
    [
        ("Thought: hm\nAction: Search[x]", "<think>hm</think>\n<tool_call>search[x]</tool_call>"),
        ("Thought 2: two\nlines\nAction 2: Finish[x]", "<think>two\nlines</think>\n<answer>x</answer>"),
        ("Thought: a\nThought: b\nFinish[x] so", "<think>a</think>\n<think>b</think>\n<answer>x</answer>\nso"),
        ("Well. Thought: hm\nAction: Search[x", "Well. Thought: hm\nAction: Search[x"),
        ("Finish[x]\nAction: Finish[y]", "<answer>x</answer>\nAction: Finish[y]"),
    ],
)
def test_a_turn_as_tags(text: str, tagged: str) -> None:
    assert react.tagged(text) == tagged


def test_it_takes_linear_time() -> None:
    marks = ["Action:", "Action: ", "Thought:\n", "Observation", "search", "action 1 ", "thought 1", "* \t", "\n"]
    for piece in [*marks, "Action: Search[", "Action: Search[\n", "Action:\n", "[", "]", "Search[x]\n", "Search[[x]"]:
        text = piece * (200_000 // len(piece))
        started = time.process_time()
        react.parse(text), react.tagged(text)
        assert time.process_time() - started < 2


@tool
def lookup(title: str) -> str:
    """Read a paragraph.

    Args:
        title: its title.
    """
    return title


def test_instructions_name_action_format_and_end() -> None:
    text = react.instructions([lookup.schema])
    assert "\nAction: one" in text and "\nLookup[title]: Read a paragraph.\n" in text and "\nFinish[answer]: " in text
    assert react.stop == ("Observation:",) and react.observe("x") == "Observation: x"
