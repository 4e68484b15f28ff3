"""What HotpotQA, paper search and ReTool share: limits of what is shown, wrong settings, styles, an engine's faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest

pytest.importorskip("bm25s")

import test_hotpotqa_env as hotpotqa  # noqa: E402
import test_papersearch_env as papersearch  # noqa: E402

from agent_gym import ConfigError, EnvFailure  # noqa: E402
from agent_gym.search import Hit  # noqa: E402
from agent_gym.search.base import TokenLimit  # noqa: E402
from agent_gym.tools import HermesParser  # noqa: E402


def make(name: str, **kwargs: Any) -> Any:
    return gymnasium.make(f"AgentR1/{name}-v{int(name == 'PaperSearch')}", **kwargs).unwrapped


search, expand = papersearch.search, papersearch.expand
HOSTILE = [
    "", " ", "\0\x1b[2J\x7f", "the of and", "x" * 10_000, "Tobila " * 1_500, "é́" * 5_000,
    "<|im_end|>\n<|im_start|>", "<|im_end|>\n[p3]", "?!", "😀"
]  # fmt: skip


@pytest.mark.parametrize("query", HOSTILE)
@pytest.mark.parametrize("limit", [1, 40, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (7, 1500))])
def test_observation_limits_hold_for_every_query(query: str, limit: int, tokenizer: Any) -> None:
    lookup = hotpotqa.search(query, tool="lookup", argument="title")
    actions = [search(query), search(query, "Tobila"), search(query) * 12, search(query, argument=query)]
    for kwargs in ({}, {"tokenizer": tokenizer}):
        kwargs = {"max_observation_tokens": limit, "top_k": 4, **kwargs}
        pages = make("HotpotQA", max_passage_tokens=20, tools=("search", "lookup"), **kwargs)
        papers = make("PaperSearch", max_paper_tokens=20, **kwargs)
        plays = [(pages, hotpotqa.TASK, [action]) for action in (*actions, lookup)]
        plays += [(papers, papersearch.TASK, [search("Tobila"), one]) for one in (*actions, expand(query, "p1"))]
        for env, task, turns in plays:
            count, step = TokenLimit(env.renderer).count, hotpotqa.play(env, *turns, task=task)[-1]
            texts = [message["content"] for message in step[4]["messages"][1:]]
            assert sum(map(count, texts)) <= limit and "Zanzibarrow" not in json.dumps(step)
            lines = [line for text in texts for line in text.split("\n") if not text.startswith("Error")]
            assert all(count(line) <= 20 for line in lines)


@pytest.mark.parametrize("name", ["HotpotQA", "HotpotQA-NaiveRAG", "PaperSearch"])
def test_a_broken_search_engine_is_no_fault_of_the_policy(name: str, tmp_path: Any) -> None:
    class Broken:
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            raise RuntimeError("the index is gone")

    kwargs = {}
    if name == "PaperSearch":
        (tmp_path / "papers.jsonl").write_text(json.dumps(papersearch.CORPUS[0]))
        row = {"query_id": "a", "question": "q", "papers": ["p1"]}
        (tmp_path / "queries.jsonl").write_text(json.dumps(row))
        kwargs["data"] = str(tmp_path)
    env = make(name, retriever=Broken(), **kwargs)
    with pytest.raises(EnvFailure, match="the index is gone"):
        env.reset(seed=0)
        env.step(search("x"))


@pytest.mark.parametrize("name", ["GSM8K", "HotpotQA", "PaperSearch", "ReTool"])
def test_styles_of_the_expert(name: str) -> None:
    env = make(name)
    env.reset(seed=0)
    assert env.expert_action("direct").startswith("<answer>")
    assert name in ("GSM8K", "ReTool") or "unknown" in env.expert_action("direct")
    with pytest.raises(ConfigError, match="'poetic'.*default, direct"):
        env.expert_action("poetic")


@pytest.mark.parametrize(
    ("name", "bad", "words"),
    [
        ("HotpotQA", {"reward": "agent-r1"}, "'agent-r1'.*search_r1.*agent_r1"),
        ("HotpotQA", {"retriever": "bm52"}, "'bm52'.*'bm25'"),
        ("HotpotQA", {"retriever": object()}, "search\\(queries, k\\)"),
        ("HotpotQA", {"tools": "search"}, "'search'"),
        ("HotpotQA", {"calls": "ReAct"}, "'ReAct'.*'hermes'.*'react'"),
        ("HotpotQA", {"calls": "react", "tools": ()}, r"'react' with the tools \(\)"),
        ("HotpotQA", {"calls": "react", "parser": HermesParser()}, "brings its own parser"),
        ("HotpotQA", {"top_k": 0}, "top_k is 0"),
        ("HotpotQA", {"data": "./nowhere.json"}, "no such file"),
        ("PaperSearch", {"reward": "F1"}, "'F1'.*f1, pasa, paperscout"),
        ("PaperSearch", {"retriever": "http://127.0.0.1:1"}, "embedded.*write_embedded"),
        ("PaperSearch", {"data": "./nowhere"}, "nowhere.*'embedded'.*papers.jsonl"),
        ("ReTool", {"rendering": "video"}, "'video'.*inline, chat"),
        ("ReTool", {"output_style": "loud"}, "'loud'.*full, retool"),
        ("ReTool", {"max_output_chars": 5}, "max_output_chars is 5"),
        ("ReTool", {"kinds": ("coins", "cards")}, "kinds is .'coins', 'cards'.; allowed: some of .*, best-bundle"),
        ("ReTool", {"sandbox": "nowhere"}, "sandbox is 'nowhere'"),
        ("ReTool", {"sandbox": "http://127.0.0.1:1", "stateful": True}, "no sessions"),
    ],
)
def test_wrong_settings_are_named(name: str, bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(name, **bad)
