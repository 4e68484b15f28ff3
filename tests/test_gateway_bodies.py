"""Bodies of requests, valid and mutated: each is read, or refused with a reason that names the place."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from agent_gym.gateway import anthropic, chat, responses
from agent_gym.gateway.exchange import Answer, Call, Refused

FUNCTION = {
    "name": "add",
    "description": "Add.",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
}
BODIES: dict[Any, dict[str, Any]] = {
    chat: {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "1+1?"}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "stop": ["\n"], "max_tokens": 5, "temperature": 0.5, "stream": False, "n": 1, "tool_choice": "auto",
        "response_format": {"type": "text"}, "stream_options": {"include_usage": True}, "logprobs": True,
    },
    responses: {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "1+1?"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"x": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "2"}]},
        ],
        "tools": [{"type": "function", **FUNCTION}, {"type": "web_search"}],
        "text": {"format": {"type": "text"}}, "max_output_tokens": 5, "temperature": 0.5,
    },
    anthropic: {
        "model": "m",
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "I add."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"x": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "2"}]},
        ],
        "tools": [{"name": "add", "description": "Add.", "input_schema": FUNCTION["parameters"]},
                  {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
                  {"type": "bash_20250124", "name": "bash"},
                  {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}],
        "tool_choice": {"type": "auto"}, "stop_sequences": ["x"], "max_tokens": 5, "temperature": 0.5,
    },
}  # fmt: skip
ODD = [
    None,
    True,
    0,
    -1,
    2.5,
    "",
    "text",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"a": 1},
    [1, "a"],
    "\ud800",
    10**30,
    {"type": []},
]
every_protocol = pytest.mark.parametrize("module", BODIES, ids=lambda module: module.__name__.rpartition(".")[2])


def places(value: Any) -> Any:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def mutated(body: Any, rng: random.Random) -> Any:
    body = json.loads(json.dumps(body))
    for _ in range(rng.randint(1, 2)):
        holder, key = rng.choice(list(places(body)))
        if rng.random() < 0.3 and isinstance(holder, dict):
            del holder[key]
        else:
            holder[key] = json.loads(json.dumps(rng.choice(ODD)))
        if not list(places(body)):
            break
    return body


def read_and_answer(module: Any, body: Any) -> bool:
    """Whether the body is read; the answer to a body that is read can be written, as a whole and as events."""
    try:
        asked = module.PROTOCOL.read(body)
    except Refused as refused:
        assert refused.status == 400 and str(refused) and "\n" not in str(refused) and len(str(refused)) < 1000
        return False
    assert all(isinstance(message["content"], str) for message in asked.messages)
    calls = [Call("add", '{"x": 1}')] if asked.tools else []
    answer = Answer("2", calls, "hm", False, [1, 2], [3], [-0.5], ["2"])
    json.dumps(module.PROTOCOL.write(body, answer))
    assert list(module.PROTOCOL.events(body, answer))
    return True


@every_protocol
def test_bodies_as_clients_send_them_are_read(module: Any) -> None:
    assert read_and_answer(module, BODIES[module])


@every_protocol
def test_mutated_bodies_are_read_or_refused_with_a_reason(module: Any) -> None:
    rng = random.Random(module.__name__)
    read = sum(read_and_answer(module, mutated(BODIES[module], rng)) for _ in range(5000))
    assert 500 < read < 4500


def test_tools_of_anthropics_servers_are_left_out_and_those_of_the_client_are_offered() -> None:
    asked = anthropic.read(BODIES[anthropic])
    offered = {one["function"]["name"]: one["function"]["parameters"] for one in asked.tools}
    assert set(offered) == {"add", "bash", "str_replace_based_edit_tool"}
    assert "command" in offered["bash"]["properties"]


@pytest.mark.parametrize(("content", "text"), [({"a": 1}, '{"a": 1}'), (5, "5"), ([1, 2], "[1, 2]"), (True, "true"),
                                               ([{"a": "ü"}], '[{"a": "ü"}]'), (None, ""), ([], ""),
                                               ([{"type": "text", "text": "x"}], "x")])  # fmt: skip
def test_results_of_tools_may_be_any_json(content: Any, text: str) -> None:
    asked = chat.read({"messages": [{"role": "tool", "tool_call_id": "c", "content": content}]})
    assert asked.messages[0]["content"] == text
    block = {"type": "tool_result", "tool_use_id": "c", "content": content}
    assert anthropic.read({"messages": [{"role": "user", "content": [block]}]}).messages[0]["content"] == text
    item = {"type": "function_call_output", "call_id": "c", "output": content}
    assert responses.read({"input": [item]}).messages[0]["content"] == text
