"""The text space, alone and in the shared memory of vector environments."""

from __future__ import annotations

import copy
import pickle
import time

import gymnasium
import pytest
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import CountingEnv

from agent_gym import Text
from agent_gym.chat import MAX_OBSERVATION_CHARS
from agent_gym.spaces import SharedText


def test_contains_any_text_up_to_the_bound() -> None:
    space = Text(5)
    for text in ("", "abcde", " \n\t\0", "café", "日本語", "😀" * 5, "\ud800", "e\u0301"):
        assert text in space
    for other in ("abcdef", "😀" * 6, b"abc", None, 3, ["a"]):
        assert other not in space
    with pytest.raises(ValueError, match="-1"):
        Text(-1)
    long, space = "x" * (1 << 24), Text(1 << 24)
    started = time.process_time()
    assert all(long in space for _ in range(1000))
    assert time.process_time() - started < 1  # walking it, as Gymnasium's own Text does, would take minutes


def test_samples_belong_repeat_by_seed_and_vary() -> None:
    space, again = Text(30), Text(30)
    space.seed(3)
    again.seed(3)
    drawn = [space.sample() for _ in range(300)]
    assert drawn == [again.sample() for _ in range(300)]
    assert all(text in space for text in drawn)
    assert len(set(drawn)) > 250
    assert "" in drawn and max(map(len, drawn)) == 30
    assert any(not text.isascii() for text in drawn)
    with pytest.raises(ValueError, match="mask"):
        space.sample(mask=(None, None))


def test_equality_and_pickle_keep_bound_and_generator() -> None:
    space = Text(30, seed=1)
    space.sample()
    for copied in (pickle.loads(pickle.dumps(space)), copy.deepcopy(space)):
        assert copied == space and copied.sample() == copy.deepcopy(space).sample()
    assert space != Text(31) and space != gymnasium.spaces.Text(30)


@given(st.lists(st.text(st.characters(exclude_categories=())), min_size=1, max_size=4), st.integers(1, 12))
def test_shared_memory_returns_what_was_written(texts: list[str], bound: int) -> None:
    """Every code point, lone surrogates included; longer text is cut to the bound and spills into no neighbour."""
    space, n = Text(bound), len(texts)
    memory = create_shared_memory(space, n)
    view = read_from_shared_memory(space, memory, n)
    for _ in range(2):  # the second time a shorter text must not show the rest of an older one
        for i, text in enumerate(texts):
            write_to_shared_memory(space, i, text, memory)
        assert tuple(view) == copy.deepcopy(view) == tuple(text[:bound] for text in texts)
        texts = [text[: len(text) // 2] for text in texts]


def test_view_is_live_and_its_copy_is_not() -> None:
    space = Text(8)
    memory = create_shared_memory(space, 2)
    view = read_from_shared_memory(space, memory, 2)
    write_to_shared_memory(space, 0, "before", memory)
    snapshot = copy.deepcopy(view)
    write_to_shared_memory(space, 0, "after", memory)
    assert isinstance(view, SharedText)
    assert snapshot == ("before", "") and view == ("after", "")
    assert view[0] == view[-2] == "after" and view[0:2] == ("after", "") and len(view) == 2
    with pytest.raises(IndexError):
        view[2]
    assert "after" in repr(view)
    space = Dict({"words": Text(8), "more": Tuple((Text(4), Text(1)))})
    memory = create_shared_memory(space, 2)
    write_to_shared_memory(space, 1, {"words": "né", "more": ("✓", "😀")}, memory)
    view = read_from_shared_memory(space, memory, 2)
    assert copy.deepcopy(view) == {"words": ("", "né"), "more": (("", "✓"), ("", "😀"))}


@pytest.mark.parametrize("copied", [True, False])
def test_async_vector_env_with_default_shared_memory(copied: bool) -> None:
    """The regression that Gymnasium's own Text has: with default arguments every observation is "0000..."."""
    vector = AsyncVectorEnv([CountingEnv] * 3, copy=copied)
    singles = [CountingEnv() for _ in range(3)]
    observations, _ = vector.reset(seed=[1, 2, 3])
    assert tuple(observations) == tuple(env.reset(seed=i)[0] for i, env in enumerate(singles, 1))
    # The last one fills the space to its bound, with characters that take four bytes each.
    for action in ("né 😀", "x" * 1000, "", "😀" * MAX_OBSERVATION_CHARS):
        observations = vector.step((action,) * 3)[0]
        assert tuple(observations) == tuple(env.step(action)[0] for env in singles)
    assert {len(text) for text in observations} == {MAX_OBSERVATION_CHARS}
    vector.close()
