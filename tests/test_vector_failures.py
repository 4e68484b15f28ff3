"""Environments that break inside of a vector environment: the slot is named, and the others lose nothing."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from toy_envs import BrokenEnv, CountingEnv

from agent_gym import ConfigError, EnvFailure
from agent_gym.vector import SlotFailure, TextVectorEnv

both = pytest.mark.parametrize("workers", [0, 2])


def with_broken(mode: AutoresetMode, workers: int, **kwargs: Any) -> TextVectorEnv:
    """Three slots, of which the middle one is a `BrokenEnv`."""
    made = [CountingEnv, lambda: BrokenEnv(**kwargs), CountingEnv]
    return TextVectorEnv(made, mode, workers)


@both
@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_broken_slot_is_named_and_the_others_do_their_step(mode: AutoresetMode, workers: int) -> None:
    vector = with_broken(mode, workers, when=1)
    vector.reset(seed=0)
    vector.step(["a"] * 3)
    with pytest.raises(SlotFailure, match="1 of 3 environments broke: slot 1: RuntimeError: a bug") as caught:
        vector.step(["b"] * 3)
    failure = caught.value
    assert isinstance(failure, EnvFailure) and list(failure.slots) == [1] and failure.__cause__ is failure.slots[1]
    observations, rewards, terminated, truncated, infos = failure.result
    assert observations[0].startswith("2 ") and observations[2].startswith("2 ")
    assert rewards[0] == rewards[2] == 0.25 and math.isnan(rewards[1])
    assert terminated.tolist() == [False] * 3 and truncated.tolist() == [False, True, False]
    if mode is AutoresetMode.SAME_STEP:
        assert observations[1].startswith("Count to three") and infos["final_obs"][1] == ""
    else:
        assert observations[1] == "" and infos["_messages"].tolist() == [True, False, True]
    # The broken slot begins anew, as after any end of an episode, and the others go on.
    if mode is AutoresetMode.DISABLED:
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"slots \[1\]"):
            vector.step(["c"] * 3)
        vector.reset(options={"reset_mask": truncated})
    observations, rewards, *_ = vector.step(["c"] * 3)
    assert not np.isnan(rewards).any()
    assert vector.get_attr("turn") == ((3, 0, 3) if mode is AutoresetMode.NEXT_STEP else (3, 1, 3))
    vector.close()


@both
def test_a_slot_that_cannot_start(workers: int) -> None:
    """Task 7 cannot be begun: in `reset` the others begin, and the slot can be started by itself."""
    vector = with_broken(AutoresetMode.NEXT_STEP, workers, how="failure", when=-1, tasks=(7,))
    with pytest.raises(SlotFailure, match="slot 1: EnvFailure: the index is gone") as caught:
        vector.reset(seed=0, options={"index": 7})
    observations, infos = caught.value.result
    assert observations[1] == "" and "Task 7" in observations[0] and "Task 7" in observations[2]
    assert infos["_task_id"].tolist() == [True, False, True]
    observations, infos = vector.reset(options={"reset_mask": np.array([False, True, False]), "index": 8})
    assert "Task 7" in observations[0] and "Task 8" in observations[1]
    assert vector.step(["a"] * 3)[1].tolist() == [0.25] * 3
    vector.close()


def test_a_slot_that_cannot_start_again_is_tried_in_every_step() -> None:
    """And of several that cannot, all are named."""
    vector = TextVectorEnv([lambda: BrokenEnv(how="failure", when=99)] * 2)
    vector.reset(seed=0)
    vector.step(["a", "stop"])
    vector.set_attr("when", [2, -1])
    for n, words in ((2, "1 of 2 .*slot 1"), (3, "2 of 2 .*slot 0: .*; slot 1: ")):
        with pytest.raises(SlotFailure, match=words) as caught:
            vector.step(["b", "b"])
        observations, rewards, terminated, truncated, _ = caught.value.result
        assert observations[0].startswith(f"{n} " if n == 2 else "") and observations[1] == ""
        assert math.isnan(rewards[1]) and (terminated[1], truncated[1]) == (False, True)
    vector.set_attr("when", [99, 99])
    assert vector.step(["b", "ignored"])[0][1].startswith("Count to three")
    assert vector.step(["b", "b"])[0][1].startswith("1 ")


def test_what_ended_is_kept_where_the_reset_of_the_same_step_breaks() -> None:
    vector = TextVectorEnv([CountingEnv, lambda: BrokenEnv(how="failure", when=99)], AutoresetMode.SAME_STEP)
    vector.reset(seed=0)
    vector.set_attr("when", [None, -1])
    for action in "abc":
        vector.step([action] * 2)
    with pytest.raises(SlotFailure, match="slot 1") as caught:
        vector.step(["d", "stop"])
    observations, rewards, terminated, truncated, infos = caught.value.result
    assert observations[1] == "" and rewards[1] == 1.0 and (terminated[1], truncated[1]) == (True, False)
    assert infos["final_info"]["is_success"][1] and infos["_final_info"].tolist() == [False, True]
    vector.set_attr("when", [None, 99])
    observations, rewards, terminated, *_ = vector.step(["e", "ignored"])
    assert observations[1].startswith("Count to three") and rewards[1] == 0.0 and not terminated[1]


def test_of_two_errors_in_a_slot_the_first_is_reported_and_stays() -> None:
    vector = TextVectorEnv([CountingEnv, lambda: BrokenEnv(how="failure", when=0)], AutoresetMode.SAME_STEP)
    vector.reset(seed=0)
    vector.envs[1].tasks = {"train": 3}  # so that the reset within the step breaks, too
    with pytest.raises(SlotFailure, match="slot 1: EnvFailure: the index is gone") as caught:
        vector.step(["a", "a"])
    slots, (*_, infos) = caught.value.slots, caught.value.result
    # The broken slot is marked: it ended with an empty info, and has nothing of an episode that began.
    assert infos["_final_obs"].tolist() == infos["_final_info"].tolist() == [False, True]
    assert infos["_messages"].tolist() == [True, False] and infos["final_obs"][1] == ""
    kept = copy.deepcopy((dict(slots), infos))
    with pytest.raises(SlotFailure, match="slot 1: TypeError"):
        vector.step(["b", "b"])
    assert str(slots) == str(kept[0]) and str(infos) == str(kept[1]), "a later step writes over nothing"


@both
def test_the_callers_mistakes_and_the_end_of_the_program_are_no_failures(workers: int) -> None:
    for how, error in (("config", ConfigError), ("exit", SystemExit)):
        vector = with_broken(AutoresetMode.NEXT_STEP, workers, how=how, when=0)
        vector.reset(seed=0)
        with pytest.raises(error) as caught:
            vector.step(["a"] * 3)
        assert not isinstance(caught.value, SlotFailure)
        vector.close()
