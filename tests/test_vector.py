"""`TextVectorEnv` gives what Gymnasium's `SyncVectorEnv` gives of the same environments, in every autoreset mode."""

from __future__ import annotations

import copy
import functools
import math
import threading
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tools import FULL
from toy_envs import BrokenEnv, CountingEnv, every_world

from agent_gym import ConfigError, EnvFailure, Reply, Sampled
from agent_gym.tools import HermesParser, ToolCall
from agent_gym.vector import SlotFailure, TextVectorEnv, batch_infos

CALL = HermesParser().render
ACTIONS = ["x", "stop", "right", "café ✓ π 😀", "<answer>72</answer>", "<tool_call>{</tool_call>"]
ACTIONS += [CALL("calculator", {"expression": text}) for text in ("48/2", "é")]
ACTIONS += [
    CALL("add", {"a": 1}) + CALL("rm", {}) + CALL("record", {"word": "é"}),
    CALL("env_step", {"command": "look"}),
]
PLAYED = ("AgentR1/GSM8K-v0", "AgentR1/ALFWorld-v0", "Toy/Counting-v0", "Toy/TwoTools-v0")


def assert_same(one: Any, other: Any, where: str = "result") -> None:
    """Equal values in equal types, arrays with their dtypes; the times of tool calls may differ."""
    if isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray) and one.dtype == other.dtype and one.shape == other.shape, where
        one, other = one.tolist(), other.tolist()
    assert type(one) is type(other), f"{where}: {one!r} is no {type(other).__name__}"
    if isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one.keys() - {"seconds"}:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where}[{i}]")
    else:
        assert one == other, where


@functools.cache
def pair(env_id: str, mode: AutoresetMode, workers: int) -> tuple[TextVectorEnv, SyncVectorEnv]:
    def make() -> Any:
        return gymnasium.make(env_id, max_turns=3)

    return TextVectorEnv([make] * 3, mode, workers), SyncVectorEnv([make] * 3, autoreset_mode=mode)


@pytest.mark.parametrize("env_id", PLAYED)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", AutoresetMode)
@settings(max_examples=20 if FULL else 5, deadline=None)
@given(
    seed=st.one_of(st.integers(0, 99), st.lists(st.one_of(st.none(), st.integers(0, 99)), min_size=3, max_size=3)),
    turns=st.lists(st.tuples(*[st.sampled_from(ACTIONS)] * 3), max_size=8),
    mask=st.lists(st.booleans(), min_size=3, max_size=3).filter(any),
)
def test_the_same_as_gymnasiums_own(
    env_id: str, mode: AutoresetMode, workers: int, seed: Any, turns: Any, mask: list[bool]
) -> None:
    ours, theirs = pair(env_id, mode, workers)
    ours.reset(seed=0), theirs.reset(seed=0)  # slots without a seed go on from here
    assert_same(ours.reset(seed=seed), theirs.reset(seed=seed))
    for n, actions in enumerate(turns):
        mine, other = ours.step(actions), theirs.step(actions)
        assert_same(mine, other)
        over = mine[2] | mine[3]
        if mode is AutoresetMode.DISABLED and over.any():
            options = {"reset_mask": over, "split": "train"}
            assert_same(ours.reset(options=dict(options)), theirs.reset(options=dict(options)))
        elif n == 3:
            resets = [vector.reset(options={"reset_mask": np.array(mask)}) for vector in (ours, theirs)]
            assert_same(*resets)


@every_world
@pytest.mark.parametrize("workers", [0, 2])
def test_make_vec_takes_it_for_every_world(env_id: str, workers: int) -> None:
    vector = gymnasium.make_vec(f"agent_gym:{env_id}", num_envs=3, workers=workers, max_turns=2)
    assert type(vector) is TextVectorEnv and vector.spec is not None and vector.spec.id == env_id
    singles = [gymnasium.make(env_id, max_turns=2) for _ in range(3)]
    observations, infos = vector.reset(seed=[4, 5, 6])
    expected = [env.reset(seed=seed) for env, seed in zip(singles, (4, 5, 6), strict=True)]
    assert observations == tuple(text for text, _ in expected) and observations in vector.observation_space
    assert list(infos["task_id"]) == [info["task_id"] for _, info in expected]
    actions = tuple(env.unwrapped.expert_action() for env in singles)
    observations, rewards, *_ = vector.step(actions)
    steps = [env.step(action) for env, action in zip(singles, actions, strict=True)]
    assert observations == tuple(step[0] for step in steps) and list(rewards) == [step[1] for step in steps]
    vector.close()


def test_specs_go_through_json_and_keep_their_arguments() -> None:
    vector = gymnasium.make_vec("AgentR1/GSM8K-NoTool-v0", num_envs=2, autoreset_mode="SameStep", split="test")
    again = gymnasium.make_vec(EnvSpec.from_json(vector.spec.to_json()))
    assert type(again) is TextVectorEnv and again.num_envs == 2
    assert again.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP and again.get_attr("split") == ("test", "test")
    with pytest.raises(AttributeError, match="AgentR1/None-v0"):
        getattr(__import__("agent_gym.vector").vector, "AgentR1/None-v0")


def test_spaces_attributes_and_rendering() -> None:
    vector = TextVectorEnv([lambda: CountingEnv(render_mode="ansi")] * 3, workers=2)
    theirs = SyncVectorEnv([CountingEnv] * 3)
    assert vector.action_space == theirs.action_space and vector.observation_space == theirs.observation_space
    assert vector.single_action_space == theirs.single_action_space and vector.render_mode == "ansi"
    assert vector.action_space.sample() in vector.action_space
    vector.reset(seed=3)
    vector.set_attr("max_turns", [1, 2, 3])
    assert vector.get_attr("max_turns") == (1, 2, 3) and vector.call("expert_action") == ("on",) * 3
    assert vector.step(["a", "b", "c"])[3].tolist() == [True, False, False]
    assert [text.count("[agent]") for text in vector.render()] == [1, 1, 1]
    vector.close()
    vector.close()


@pytest.mark.parametrize("kind", [TextVectorEnv, functools.partial(TextVectorEnv, workers=2), AsyncVectorEnv])
def test_sampled_ids_get_through(kind: Any, tokenizer: Any) -> None:
    vector = kind([lambda: CountingEnv(tokenizer=tokenizer)] * 2)
    vector.reset(seed=0)
    _, rewards, _, _, infos = vector.step((Sampled("a", [5, 6]), Sampled("b", [7, 8, 9])))
    assert [list(ids[:n]) for ids, n in zip(infos["token_ids"], (2, 3), strict=True)] == [[5, 6], [7, 8, 9]]
    assert list(infos["reward_terms"]["turn"]) == list(rewards) == [0.25, 0.25]
    vector.close()


class MeetingEnv(CountingEnv):
    """Answers as soon as three of its kind are asked at the same time."""

    barrier = threading.Barrier(3)

    def respond(self, action: str) -> Reply:
        self.barrier.wait(timeout=20)
        return super().respond(action)


def test_workers_run_side_by_side_also_for_ids_of_others() -> None:
    entry_point = "agent_gym.vector:Toy/Meeting-v0"
    gymnasium.register("Toy/Meeting-v0", entry_point=MeetingEnv, vector_entry_point=entry_point)
    vector = gymnasium.make_vec("Toy/Meeting-v0", num_envs=3, workers=3)
    vector.reset(seed=0)
    for _ in range(3):
        assert not vector.step(["x"] * 3)[2].any()
    vector.close()


# Options, seeds and what is refused.


def test_options_for_all_and_for_each() -> None:
    vector = TextVectorEnv([CountingEnv] * 3)
    options = {"split": "test", "per_env": [{"index": 7}, None, {"split": "train", "index": 1}]}
    _, infos = vector.reset(seed=5, options=options)
    alone = CountingEnv().reset(seed=6, options={"split": "test"})[1]["task_id"]
    assert list(infos["task_id"]) == ["test/7", alone, "train/1"]
    assert set(options) == {"split", "per_env"}
    options = {"reset_mask": np.array([False, True, False]), "per_env": [None, {"index": 3}, None]}
    before = vector.step(["a"] * 3)[0]
    observations, infos = vector.reset(options=options)
    assert observations[0] == before[0] and observations[2] == before[2] and "Task 3" in observations[1]
    assert list(infos["task_id"]) == [None, "train/3", None] and list(infos["_task_id"]) == [False, True, False]
    assert set(options) == {"reset_mask", "per_env"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"seed": [1, 2]}, "2 seeds for 3"),
        ({"options": {"per_env": [{}]}}, "1 options.*for 3"),
        ({"options": {"reset_mask": [True, False, True]}}, "reset_mask.*numpy array of 3"),
        ({"options": {"reset_mask": np.array([1, 0, 1])}}, "reset_mask.*numpy array of 3"),
        ({"options": {"reset_mask": np.zeros(3, dtype=bool)}}, "at least one"),
        ({"options": {"per_env": [None, {"index": 10**9}, None]}}, "1000000000"),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_wrong_arguments_of_reset_are_named_and_harm_nothing(workers: int, arguments: Any, words: str) -> None:
    vector = TextVectorEnv([CountingEnv] * 3, workers=workers)
    vector.reset(seed=0)
    with pytest.raises(ConfigError, match=words):
        vector.reset(**arguments)
    assert vector.step(["x"] * 3)[0][0].startswith("1 ")
    vector.close()


def test_wrong_settings_and_actions_are_named() -> None:
    for arguments, words in (({"workers": -1}, "-1"), ({"autoreset_mode": "never"}, "'never'.*NextStep")):
        with pytest.raises(ConfigError, match=words):
            TextVectorEnv([CountingEnv], **arguments)
    with pytest.raises(ConfigError, match="at least 1"):
        TextVectorEnv([])
    vector = TextVectorEnv([CountingEnv] * 3)
    with pytest.raises(gymnasium.error.ResetNeeded):
        vector.step(["x"] * 3)
    vector.reset(seed=0)
    for actions in (["x"] * 2, "xxx", (), None, 5, iter(["a", "b", "c"])):
        with pytest.raises(ConfigError if hasattr(actions, "__len__") else TypeError, match="3 actions, one text"):
            vector.step(actions)
    vector = TextVectorEnv([CountingEnv] * 3, AutoresetMode.DISABLED)
    vector.reset(seed=0)
    vector.step(["x", "stop", "x"])
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"slots \[1\]"):
        vector.step(["x"] * 3)
    assert vector.envs[0].turn == 1  # no environment did a step


# Infos, merged by column.


def test_columns_of_several_types_lose_nothing() -> None:
    """Gymnasium would cut 0.5 to 0, and make the second column depend on which slot comes first."""
    arrays = batch_infos([{"s": np.float32(0.5), "v": np.array([1, 2])}, {"flag": True, "v": np.array([3, 4])}])
    assert arrays["s"].dtype == np.float32 and arrays["v"].tolist() == [[1, 2], [3, 4]]
    assert arrays["flag"].tolist() == [False, True] and arrays["flag"].dtype == bool
    merged = batch_infos([{"n": 1, "found": None, "x": {"a": 1}}, {"n": 0.5, "found": 0.5, "x": "text"}, {}])
    assert merged["n"].tolist() == [1.0, 0.5, 0.0] and merged["_n"].tolist() == [True, True, False]
    assert merged["found"].tolist() == [None, 0.5, None]
    assert merged["x"].tolist() == [{"a": 1}, "text", None]
    ragged = batch_infos([{"v": np.zeros(2)}, {"v": np.zeros(3)}])["v"]
    assert [len(value) for value in ragged] == [2, 3]


class RunningEnv(CountingEnv):
    """Hands over the same objects in every reply, and goes on changing them."""

    reply = Reply(messages=[{"role": "user", "content": ""}], terms={"turn": 0.0}, metrics={"turns": 0.0})
    log: ClassVar[list[str]] = []

    def respond(self, action: str) -> Reply:
        self.log.append(action)
        self.reply.terms["turn"] = self.reply.metrics["turns"] = float(len(self.log))
        self.reply.messages[0]["content"] = action  # type: ignore[index]
        self.reply.tool_calls = [ToolCall("add", {"log": self.log}, failed=action == "b")]
        return self.reply


def test_infos_that_are_kept_do_not_change() -> None:
    """Also where an environment fills one dict for the whole episode."""
    vector = TextVectorEnv([RunningEnv])
    vector.reset(seed=0)
    for n, infos in enumerate([vector.step([action])[-1] for action in "abc"]):
        (call,) = infos["tool_calls"][0]
        assert infos["metrics"]["turns"] == n + 1 and infos["reward_terms"]["turn"] == 0.25 * (n + 1)
        assert call["arguments"]["log"] == list("abc"[: n + 1]) and call["error"] is (n == 1)
        assert infos["messages"][0][1]["content"] == "abc"[n]


# Environments that break: the slot is named, and the others lose nothing.

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
