"""The families of tool-call languages: what they write they read, and no broken call is taken for a final answer."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest
from call_tools import THOUGHTS, damaged, equal, families_of, family_of, mutants, parser_of, some_calls, tools_of

from agent_gym.errors import ConfigError
from agent_gym.formats.calls import ToolCall
from agent_gym.formats.families import FAMILIES
from agent_gym.formats.native import NativeParser
from agent_gym.formats.thoughts import after_thought, split_thought
from agent_gym.tools import HermesParser, TextTool, ToolResult

_TOOL = TextTool("add", "Add.", "a", "A text.", lambda text: ToolResult(text)).schema
_PLAIN = ("llama3", "xlam", "llama_pythonic", "pythonic_bare")


def check_round_trips(family: str, number: int) -> None:
    rng = random.Random(f"{family} of {number}")
    plain = parser_of(family)
    for i in range(number):
        calls = some_calls(rng, THOUGHTS)
        parser = plain.for_tools(tools_of(rng, calls)) if rng.random() < 0.8 else plain
        text = parser.render_calls(calls)
        assert equal(parser.parse(text), calls), (text, calls)
        if i % 5 == 0:
            calls = some_calls(rng)
            text = plain.render_calls(calls)
            for mutant in mutants(rng, plain, text, 6):
                assert plain.parse(mutant), f"a broken call is taken for a final answer: {mutant!r}"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_reads_what_it_writes_and_drops_no_broken_call(family: str) -> None:
    check_round_trips(family, 60)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_with_any_wrong_character_is_no_final_answer(family: str) -> None:
    """Also in its opening mark, behind words and thoughts, and with the mark of a thought in an argument."""
    parser = parser_of(family)
    openings = ("", "I will add.\n", "<think>so</think>\n", "So.</think>\n\n") if family != "harmony" else ("",)
    for arguments in ({"a": "x y", "n": 7}, {}, {"a": "see </think> here"}, {"a": {"b": [1]}}):
        call = parser.render("add", arguments)
        lost = [before + one for before in openings for one in damaged(call) if not parser.parse(before + one)]
        assert not lost, f"{len(lost)} broken calls are taken for a final answer: {lost[:3]}"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_in_another_case_or_spacing_is_no_final_answer(family: str) -> None:
    parser = parser_of(family).for_tools([_TOOL])
    call = parser.render("add", {"a": "x y"})
    tag = re.compile(r"<[^<>]*>|\[[A-Z_]+\]")
    written = [tag.sub(lambda one: one[0].swapcase(), call), tag.sub(lambda one: one[0].title(), call)]
    written += [re.sub(r"<(/?)([^<>]*)>", r"< \1\2 >", call), re.sub(r"<([^<>]*)>", r"<\n\1>", call)]
    written += [call.replace('"', "\u201d"), call.replace('"a"', "\u201ca\u201d")]
    written += [] if family == "harmony" else [call.upper()]  # its roles and channels are tokens
    assert [text for text in written if not parser.parse(text)] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_that_call_nothing_are_answers(family: str) -> None:
    parser = parser_of(family)
    for answer in (
        *(
            "<answer>5</answer>",
            "The interval is (0, 1].",
            r"\boxed{\frac{1}{2}}",
            r"$\{1, 2\}$",
            "[1, 2]",
            "5",
            "Use a tool?",
        ),
        *(
            "```python\nprint({'a': [1]})\n```",
            "def add(a): return a",
            "<b>5</b> and <i>6</i>",
            "f(x) = {x}",
            "a < b > c",
        ),
        *("Step 1\n(a) 5", '{"answer": 5}', "<p>function</p>", "[see](http://a.b/c)", "x = [1]; y = (2)"),
    ):
        for before in ("", "<think>so</think>\n", "So.</think>\n\n", "I think: "):
            assert parser.parse(before + answer) == [], (family, before + answer)


@pytest.mark.parametrize("family", _PLAIN)
def test_a_call_without_marks_in_another_dress_is_no_final_answer(family: str) -> None:
    """Within a line, in code marks, as Python writes JSON, or without brackets: an error, or the call."""
    parser = parser_of(family).for_tools([_TOOL])
    call = parser.render("add", {"a": "x y"})
    dressed = [f"I call {call}", f"> {call}", f"`{call}`", f"```\n{call}\n```", call + call, call.replace('"', "'")]
    dressed += [call.strip("[]"), f"`{call.strip('[]')}`"] if "pythonic" in family else []
    assert [text for text in dressed if not parser.parse(text)] == []
    for answer in ("I added (a = 5) to it.", "f(a=1) is 5.", "The tool add( was of no use.", "It is {'a': 1}.", "add"):
        assert parser.parse(answer) == [], answer


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_thousand_sets_of_arguments_are_read_back(family: str) -> None:
    check_round_trips(family, 1000)


@pytest.mark.parametrize("family", FAMILIES)
def test_words_calls_and_thoughts_come_apart(family: str) -> None:
    parser = parser_of(family).for_tools([_TOOL])
    assert parser.family == family
    words = "all\nI will add." if family == "functionary_3_2" else "I will add."
    call = parser.render("add", {"a": "5"})
    text = f"{words}\n{call}"
    if family == "harmony":
        text = f"<|channel|>commentary<|message|>{words}<|end|><|start|>assistant{call}"
    turn = parser.split(text)
    assert equal(turn.calls, [ToolCall("add", {"a": "5"})]), turn
    assert (turn.content, turn.thought) == ("I will add.", "")
    assert parser.split("The answer is 5.") == ("The answer is 5.", [], "")
    assert parser.parse("") == []


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "harmony"])
def test_a_draft_in_a_thought_never_runs(family: str) -> None:
    parser = parser_of(family).for_tools([_TOOL])
    draft, call = parser.render("add", {"a": "draft"}), parser.render("add", {"a": "real"})
    real = [ToolCall("add", {"a": "real"})]
    for opening, closing in (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")):
        turn = parser.split(f"{opening}Maybe\n{draft}\nor not.{closing}\n\n{call}")
        assert equal(turn.calls, real) and "Maybe" in turn.thought and not turn.content
        # The prompt has opened the thought.
        assert equal(parser.parse(f"Maybe\n{draft}\nor not.{closing}\n\n{call}"), real)
        assert parser.parse(f"Maybe\n{draft}\nor not.{closing}\n\nThe answer is 5.") == []
        # A thought that is never closed.
        for text, prefill in ((f"{opening}Maybe\n{draft}", ""), (f"Maybe\n{draft}", f"<|im_start|>{opening}\n")):
            assert not [one for one in parser.split(text, prefill).calls if one.error is None]
    if parser.marks:
        (mark, *_) = parser.marks
        assert equal(parser.parse(f"I should write {mark} now.</think>\n\n{call}"), real)
        assert parser.parse(f"I could write {mark} here.</think>\n\nThe answer is 5.") == []


@pytest.mark.parametrize("family", FAMILIES)
def test_marks_of_thoughts_in_arguments_are_text(family: str) -> None:
    parser = parser_of(family).for_tools([_TOOL])
    for mark in THOUGHTS:
        for text in (mark, f"Write {mark} here", f"{mark}\n{mark}"):
            calls = [ToolCall("add", {"a": text})]
            assert equal(parser.parse("I will.\n" + parser.render_calls(calls)), calls), (family, text)


def check_time(family: str, size: int, most: float, every: int) -> None:
    parser = parser_of(family)
    whole = parser.render("add", {"a": "x", "b": {"c": [1, "</think>"]}})
    half = whole[: len(whole) // 2]
    pieces = [whole[:-1], f"{half}</think>", *parser.marks, half, whole, whole[len(half) :], "</think>", "<think>", " "]
    for piece in [*pieces, '{"name": "', "[", "{", "(", "[a(", '"', "\\", "<", "\n"][::every]:
        text = piece * (size // len(piece))
        started = time.process_time()
        parser.parse(text)
        parser.parse(half + text)
        assert time.process_time() - started < most, piece


@pytest.mark.parametrize("family", FAMILIES)
def test_long_turns_are_read_at_once(family: str) -> None:
    check_time(family, 1 << 14, 1.5, 3)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_megabyte_is_read_at_once(family: str) -> None:
    check_time(family, 1 << 20, 40, 1)


def test_values_without_types_are_read_by_the_schema() -> None:
    number = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}}}}
    text = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}}}
    call = "<tool_call>\n<function=f>\n<parameter=x>\n5\n</parameter>\n</function>\n</tool_call>"
    coder = parser_of("qwen3_coder")
    assert coder.for_tools([number]).parse(call) == [ToolCall("f", {"x": 5})]
    assert coder.for_tools([text]).parse(call) == [ToolCall("f", {"x": "5"})]
    assert coder.parse(call) == [ToolCall("f", {"x": 5})]
    word = call.replace("5", "True")
    assert coder.for_tools([text]).parse(word) == [ToolCall("f", {"x": "True"})]
    # What does not fit is left to the tool, which says what is wrong with it.
    assert coder.for_tools([number]).parse(word) == [ToolCall("f", {"x": "True"})]


@pytest.mark.parametrize(
    ("turn", "family", "arguments"),
    [
        ('{"name": "add", "parameters": {"a": "1"}}<|eot_id|>', "llama3", {"a": "1"}),
        ('<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": "1"}}', "llama3", {"a": "1"}),
        ('[add(a="1")]', "llama_pythonic", {"a": "1"}),
        ("<|tool_call_start|>[add(a='1')]<|tool_call_end|>", "lfm2", {"a": "1"}),
        ("<|tool_call_start|>[add(a='it's 1')]<|tool_call_end|>", "lfm2", {"a": "it's 1"}),
        ('[TOOL_CALLS] [{"name": "add", "arguments": {"a": "1"}, "id": "abcdefghi"}]</s>', "mistral_list", {"a": "1"}),
        ('[TOOL_CALLS]add[ARGS]{"a": "1"}</s>', "mistral", {"a": "1"}),
        (
            '<|channel|>analysis<|message|>to=functions.sub?<|end|><|start|>assistant<|channel|>commentary '
            'to=functions.add <|constrain|>json<|message|>{"a": "1"}<|call|>',
            "harmony",
            {"a": "1"},
        ),
        (' to=functions.add<|channel|>commentary json<|message|>{"a": "1"}', "harmony", {"a": "1"}),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": \\"1\\"}"}</tool_call>', "hermes", {"a": "1"}),
        ('<|tool▁calls▁begin|>', None, None),
    ],
)  # fmt: skip
def test_forms_of_models(turn: str, family: str | None, arguments: dict[str, str] | None) -> None:
    found = family_of(turn, [ToolCall("add", arguments or {})], [_TOOL])
    if family is None:
        assert found is None
        return
    parser = parser_of(family).for_tools([_TOOL])
    assert equal(parser.parse(turn), [ToolCall("add", arguments or {})]), parser.parse(turn)
    assert found is not None
    assert family in [one.family for one in families_of(turn, [ToolCall("add", arguments or {})], [_TOOL])]


def test_two_calls_of_llama_and_ids() -> None:
    turn = '{"name": "add", "parameters": {"a": "1"}}; {"name": "add", "parameters": {}}'
    assert parser_of("llama3").parse(turn) == [ToolCall("add", {"a": "1"}), ToolCall("add")]
    kimi = parser_of("kimi_k2")
    text = kimi.render_calls([ToolCall("add"), ToolCall("sub")], before=3)
    assert [call.id for call in kimi.parse(text)] == ["functions.add:3", "functions.sub:4"]
    assert [call.id for call in kimi.parse(kimi.render_calls([ToolCall("add", id="functions.add:9")]))] == [
        "functions.add:9"
    ]
    for family in ("mistral_list", "mistral_call_id"):
        (call,) = parser_of(family).parse(parser_of(family).render("add", {}))
        assert call.id is not None and len(call.id) == 9 and call.id.isalnum()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"name": "add", "parameters": {"a": 1}}', "is \"arguments\", not 'parameters'"),
        ('{"name": "add", "args": {"a": 1}}', "is \"arguments\", not 'args'"),
        ('{"name": "add", "arguments": {"a": 1}, "why": 1}', "no 'why'"),
        ('{"name": "add", "arguments": ""}', "must be a JSON object"),
        ('{"name": "add", "arguments": null}', "must be a JSON object"),
        ('{"name": "add", "arguments": {}} and', "not valid JSON"),
        ('{"name": "", "arguments": {}}', '"name" and "arguments"'),
        ('[{"name": "add", "arguments": {}}]', '"name" and "arguments"'),
    ],
)
def test_a_call_with_other_keys_never_runs(body: str, words: str) -> None:
    calls = HermesParser().parse(f"<tool_call>{body}</tool_call>")
    assert calls and calls[-1].error is not None and words in calls[-1].error, calls
    assert len(calls[-1].error) < 200


def test_a_call_in_a_string_is_text_and_several_stand_in_one_block() -> None:
    hermes = HermesParser()
    inner = hermes.render("sub", {"b": 1})
    (call,) = hermes.parse(hermes.render("add", {"a": f"write {inner} or </tool_call>"}))
    assert call == ToolCall("add", {"a": f"write {inner} or </tool_call>"})
    block = '<tool_call>\n{"name": "add", "arguments": {}}\n{"name": "sub", "arguments": {}}\n</tool_call>'
    assert hermes.parse(block) == [ToolCall("add"), ToolCall("sub")]


def test_a_name_that_cannot_be_written() -> None:
    for family in ("qwen3_coder", "mistral", "lfm2", "gemma4"):
        with pytest.raises(ConfigError, match="word"):
            parser_of(family).render("a b", {})


def test_the_text_behind_a_thought() -> None:
    assert after_thought("<think>a</think>b") == "b" and after_thought("[THINK]a[/THINK]b") == "b"
    assert after_thought("<think>a") == "<think>a" and after_thought("a") == "a"
    assert split_thought("b", "<|im_start|>assistant\n<think>\n") == ("", "b", "</think>")
    assert split_thought("a</think>b<think>c</think>d")[:2] == ("bd", "a\nc")


def test_the_order_of_the_table() -> None:
    """Of several families that read a turn the one wins that writes it to the letter."""
    for name in FAMILIES:
        parser = parser_of(name).for_tools([_TOOL])
        calls = [ToolCall("add", {"a": "x y"})]
        found = family_of(parser.render_calls(calls), calls, [_TOOL])
        assert isinstance(found, NativeParser)
        assert found.render_calls(calls) == parser.render_calls(calls), (name, found.family)


def test_the_page_has_the_table_of_families() -> None:
    page = (Path(__file__).parents[1] / "docs" / "envs.md").read_text(encoding="utf-8")
    rows = [f"| `{name}` | {family.models} |" for name, family in FAMILIES.items()]
    assert "\n".join(["| family | models |", "|---|---|", *rows, ""]) in page
