"""Infos merged by column are those that Gymnasium merges value by value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv, VectorEnv
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import CountingEnv
from vector_tools import assert_same

from agent_gym import Reply
from agent_gym.tools import ToolCall
from agent_gym.vector import TextVectorEnv, batch_infos

# By key, so that each key has one type in all slots, as it has in an environment.
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.text(max_size=3),
    "texts": st.lists(st.text(max_size=2), max_size=2),
    "maybe": st.one_of(st.none(), st.text(max_size=3)),
    "flag": st.booleans(),
    "count": st.integers(-5, 5),
    "share": st.floats(allow_nan=False),
    "single": st.floats(width=32, allow_nan=False).map(np.float32),
    "vector": st.lists(st.integers(0, 9), min_size=2, max_size=2).map(np.array),
    "pair": st.tuples(st.integers(0, 9), st.text(max_size=1)),
    "final_obs": st.text(max_size=3),
}
FLAT = st.fixed_dictionaries({}, optional=LEAVES)
INFOS = st.fixed_dictionaries({}, optional={**LEAVES, "terms": FLAT, "final_info": FLAT, "calls": st.lists(FLAT)})


@given(st.lists(INFOS, min_size=1, max_size=5))
def test_equal_to_gymnasiums_merging(infos: list[dict[str, Any]]) -> None:
    base = VectorEnv()
    base.num_envs = len(infos)
    expected: dict[str, Any] = {}
    for slot, info in enumerate(infos):
        expected = base._add_info(expected, info, slot)
    assert_same(sort(batch_infos(infos)), sort(expected))


def sort(merged: Any) -> Any:
    """Gymnasium's keys stand in the order in which slots bring them; that of inner dicts may differ."""
    return {key: sort(merged[key]) for key in sorted(merged)} if isinstance(merged, dict) else merged


def test_columns_of_several_types_lose_nothing() -> None:
    """Gymnasium would cut 0.5 to 0, and make the second column depend on which slot comes first."""
    merged = batch_infos([{"n": 1, "found": None, "x": {"a": 1}}, {"n": 0.5, "found": 0.5, "x": "text"}, {}])
    assert merged["n"].tolist() == [1.0, 0.5, 0.0] and merged["_n"].tolist() == [True, True, False]
    assert merged["found"].tolist() == [None, 0.5, None]
    assert merged["x"].tolist() == [{"a": 1}, "text", None]
    ragged = batch_infos([{"v": np.zeros(2)}, {"v": np.zeros(3)}])["v"]
    assert [len(value) for value in ragged] == [2, 3]


class RunningEnv(CountingEnv):
    """Hands over the same objects in every reply, and goes on changing them."""

    def __init__(self) -> None:
        super().__init__()
        self.reward_terms: dict[str, Any] = {"turn": 0.0}
        self.metrics: dict[str, Any] = {"turns": 0.0}
        self.calls = [ToolCall("add", {"log": []})]
        self.said = [{"role": "user", "content": ""}]

    def respond(self, action: str) -> Reply:
        self.reward_terms["turn"] += 1
        self.metrics["turns"] += 1
        self.calls[0].arguments["log"].append(action)
        self.calls[0].failed = action == "b"
        self.said[0]["content"] = action
        return Reply(messages=self.said, terms=self.reward_terms, metrics=self.metrics, tool_calls=self.calls)


@pytest.mark.parametrize("make", [lambda: TextVectorEnv([RunningEnv]), lambda: SyncVectorEnv([RunningEnv])])
def test_infos_that_are_kept_go_on_saying_what_they_said(make: Callable[[], Any]) -> None:
    """Also where an environment fills one dict for the whole episode."""
    vector = make()
    vector.reset(seed=0)
    kept = [vector.step([action])[-1] for action in "abc"]
    assert [infos["metrics"]["turns"].tolist() for infos in kept] == [[1.0], [2.0], [3.0]]
    assert [infos["reward_terms"]["turn"].tolist() for infos in kept] == [[0.25], [0.5], [0.75]]
    assert [infos["tool_calls"][0][0]["arguments"]["log"] for infos in kept] == [["a"], ["a", "b"], ["a", "b", "c"]]
    assert [infos["tool_calls"][0][0]["error"] for infos in kept] == [False, True, False]
    assert [infos["messages"][0][1]["content"] for infos in kept] == ["a", "b", "c"]
