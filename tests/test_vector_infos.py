"""Infos merged by column are those that Gymnasium merges value by value."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import TwoToolEnv
from vector_tools import assert_same

from agent_gym.vector import TextVectorEnv
from agent_gym.vector.infos import batch_infos
from agent_gym.vector.lazy import LazyInfos

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


# Merged when they are read.

LOOKS: list[Callable[[Any], Any]] = [
    *(dict, list, len, bool, repr, copy.copy, copy.deepcopy, json.dumps),
    lambda infos: ({**infos}, infos.copy()),
    lambda infos: [*infos.items()] + [*infos.values()] + [*infos.keys()],
    lambda infos: [*reversed(infos)],
    lambda infos: (infos["b"], infos.get("a"), infos.get("c", 3), "a" in infos, "c" in infos),
    lambda infos: pickle.loads(pickle.dumps(infos)),
    lambda infos: (infos == {"a": 1, "b": {}}, {"a": 1, "b": {}} == infos, infos != {"a": 1}),
    lambda infos: (infos | {"c": 1}, {"c": 1} | infos),
    lambda infos: (infos.pop("a"), infos),
    lambda infos: (infos.popitem(), infos),
    lambda infos: (infos.setdefault("a", 2), infos.setdefault("c", 3), infos),
    lambda infos: (infos.update(a=2), infos),
    lambda infos: (infos.clear(), infos),
]


class Two(LazyInfos):
    """Infos that are merged to something that compares by value."""

    __slots__ = ()

    def _fill(self) -> None:
        if self._infos is not None:
            self._infos = None
            dict.clear(self)
            dict.update(self, {"a": 1, "b": {}})


@pytest.mark.parametrize("look", LOOKS)
def test_every_first_look_sees_all_of_it(look: Callable[[Any], Any]) -> None:
    assert look(Two([])) == look({"a": 1, "b": {}})


def test_nothing_that_a_dict_can_do_was_forgotten() -> None:
    harmless = {"__class_getitem__", "__getattribute__", "__init__", "__new__", "__sizeof__", "fromkeys"}
    orders = {"__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__doc__"}  # which no dict has
    assert not set(vars(dict)) - set(vars(LazyInfos)) - harmless - orders


def test_what_is_changed_before_the_first_look_is_kept() -> None:
    for change in (lambda d: d.update(a=5), lambda d: d.__setitem__("a", 5), lambda d: d.__ior__({"a": 5})):
        infos = Two([])
        change(infos)
        assert infos == {"a": 5, "b": {}}
    infos = Two([])
    del infos["a"]
    assert infos == {"b": {}}


def test_infos_that_are_read_late_tell_of_their_own_step() -> None:
    vector = TextVectorEnv([TwoToolEnv] * 2)
    vector.reset(seed=0)
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    kept = [vector.step(actions)[-1] for actions in ([call, "x"], ["right", call], [call, "right"], ["", ""])]
    vector.reset(seed=0)
    read = [dict(vector.step(actions)[-1]) for actions in ([call, "x"], ["right", call], [call, "right"], ["", ""])]
    assert_same([dict(infos) for infos in kept], read)
