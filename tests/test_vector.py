"""`TextVectorEnv` gives what Gymnasium's `SyncVectorEnv` gives of the same environments, in every autoreset mode."""

from __future__ import annotations

import functools
import threading
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from contract import every_id
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import CountingEnv

from agent_gym import ConfigError, Reply, Sampled
from agent_gym.tools import HermesParser, ToolCall
from agent_gym.vector import TextVectorEnv, batch_infos

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
@settings(max_examples=20, deadline=None)
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


@every_id
@pytest.mark.parametrize("workers", [0, 2])
def test_make_vec_takes_it_for_every_id(env_id: str, workers: int) -> None:
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
    assert vector.envs[0].turn == 1  # nobody did a step


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
