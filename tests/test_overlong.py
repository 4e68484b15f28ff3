"""The penalty for over-long episodes: where it starts, how it grows, where it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym.errors import ConfigError
from agent_gym.trainers.losses import overlong_penalty


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (60, 0.0), (61, -0.025), (80, -0.5), (100, -1.0), (101, -1.0), (999, -1.0)]
)
def test_by_hand(length: int, penalty: float) -> None:
    assert overlong_penalty(length, limit=100, buffer=40) == penalty


@given(st.integers(0, 300), st.integers(1, 200), st.integers(1, 200))
def test_longer_is_never_better_and_no_step_costs_more_than_its_share(length: int, limit: int, buffer: int) -> None:
    buffer = min(buffer, limit)
    here, there = (overlong_penalty(n, limit, buffer) for n in (length, length + 1))
    assert -1.0 <= there <= here <= 0.0
    assert here - there <= 1 / buffer + 1e-12


@pytest.mark.parametrize("buffer", [0, -1, 101])
def test_a_buffer_outside_the_limit_is_refused(buffer: int) -> None:
    with pytest.raises(ConfigError, match=f"buffer is {buffer} tokens; it must be at least 1 and at most 100"):
        overlong_penalty(5, limit=100, buffer=buffer)
