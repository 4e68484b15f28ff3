"""The growing turn budget: its text form, its stages, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym.errors import ConfigError
from agent_gym.trainers.selection import TurnCurriculum


@pytest.mark.parametrize(("step", "turns"), [(0, 2), (99, 2), (100, 4), (199, 4), (200, 8), (10**6, 8)])
def test_by_hand(step: int, turns: int) -> None:
    assert TurnCurriculum.parse("0:2, 100:4, 200:8").turns(step) == turns


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 400))
def test_the_budget_is_that_of_the_last_stage_that_began(gaps: list[int], step: int) -> None:
    starts = [0]
    for gap in gaps:
        starts.append(starts[-1] + gap)
    text = ",".join(f"{start}:{i + 1}" for i, start in enumerate(starts))
    assert TurnCurriculum.parse(text).turns(step) == sum(start <= step for start in starts)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "step:turns pairs"),
        ("5", "step:turns pairs"),
        ("0:2,", "step:turns pairs"),
        ("0:2:3", "step:turns pairs"),
        ("0:2,5", "step:turns pairs"),
        ("0:two", "step:turns pairs"),
        ("0:2.5", "step:turns pairs"),
        ("10:2", "first step must be 0 and not 10"),
        ("-1:2,5:3", "first step must be 0 and not -1"),
        ("0:0", "at least 1 turn, not 0"),
        ("0:-3,5:2", "at least 1 turn, not -3"),
        ("0:2,200:4,100:8", "steps must grow, but 100 follows 200"),
        ("0:2,0:4", "steps must grow, but 0 follows 0"),
        ("0:4,100:2", "turns must grow, but 2 follows 4"),
    ],
)
def test_bad_text_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        TurnCurriculum.parse(text)
    assert repr(text) in str(caught.value)
