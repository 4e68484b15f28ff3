"""Servers that answer with broken messages: MCP servers, and models behind OpenAI's protocol, whole and streamed.

As in test_mutated_files.py: each mutation ends in a result, or in an error that agent_gym raises on purpose.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from json_mutations import mutated
from openai_tools import Server, delta, says, streams, watch
from test_mutated_files import on_purpose

from agent_gym.contrib.mcp import mcp_tools

IDS = {"choices": [{"token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.5, -0.5]}, "finish_reason": "stop"}]}


def listed_and_called(seed: int) -> int:
    """Connect to a broken MCP server and call its tools; return how many calls had a result."""
    rng, results = random.Random(seed), 0
    words = [sys.executable, str(Path(__file__).with_name("mcp_mutated.py")), str(seed)]

    def act() -> None:
        nonlocal results
        for tool in mcp_tools(words, timeout_s=1.0):
            for arguments in ({"a": 1, "b": 2}, json.loads(rng.choice(['{"a": "x"}', "{}", '{"c": [[]]}']))):
                on_purpose(lambda tool=tool, arguments=arguments: str(tool.run(arguments)))
                results += 1

    on_purpose(act)
    return results


def test_broken_mcp_servers() -> None:
    pytest.importorskip("mcp")
    assert sum(map(listed_and_called, range(4))) > 4


@pytest.mark.slow
def test_many_broken_mcp_servers() -> None:
    pytest.importorskip("mcp")
    assert sum(map(listed_and_called, range(100, 220))) > 100


def answered(rng: random.Random, tokenizer: Any) -> None:
    """Read one broken answer of a model, in texts or token ids, as a stream or whole."""
    ids = rng.random() < 0.5
    whole = IDS if ids else says("It is 24.")[1]
    pieces = [IDS, IDS] if ids else [delta("It is"), delta(" 24."), delta(None, "stop")]
    if rng.random() < 0.5:
        events = [f"data: {mutated(one, rng) if rng.random() < 0.6 else json.dumps(one)}\n\n" for one in pieces]
        if rng.random() < 0.3:
            events.insert(
                rng.randrange(3), rng.choice(["data:\n\n", ": c\n\n", "event: x\n\n", "\n\n", "data: [1\n", "x"])
            )
        answer = streams(*(one.encode("utf-8", "replace").decode() for one in events), "data: [DONE]\n\n")
    else:
        text = mutated(whole, rng)
        try:
            answer = 200, json.loads(text)
        except ValueError:
            answer = 200, text
    on_purpose(lambda: watch(Server(answer, ids=ids), tokenizer, token_ids=ids, retries=0, stop=("</x>",)))


def test_broken_answers_of_a_model(tokenizer: Any) -> None:
    rng = random.Random(0)
    for _ in range(40):
        answered(rng, tokenizer)


@pytest.mark.slow
def test_many_broken_answers_of_a_model(tokenizer: Any) -> None:
    rng = random.Random(1)
    for _ in range(400):
        answered(rng, tokenizer)
