"""`TextVectorEnv` gives what Gymnasium's `SyncVectorEnv` gives of the same environments, in every autoreset mode."""

from __future__ import annotations

import functools
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from contract import every_id, expert_episode
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import CountingEnv, TwoToolEnv
from vector_tools import assert_same

from agent_gym import ConfigError, Reply, Sampled
from agent_gym.tools import HermesParser
from agent_gym.vector import TextVectorEnv

CALL = HermesParser().render
ACTIONS = ["", "x", "stop", "right", "café ✓ π 😀", "<answer>72</answer>", "#### 3", "<tool_call>{</tool_call>"]
ACTIONS += [CALL("calculator", {"expression": text}) for text in ("48/2", "1/0", "2 **", "é")]
ACTIONS += [
    CALL("add", {"a": 1}) + CALL("rm", {}) + CALL("record", {"word": "é"}),
    CALL("env_step", {"command": "look"}),
]
PLAYED = ("AgentR1/GSM8K-v0", "AgentR1/GSM8K-NoTool-v0", "AgentR1/ALFWorld-v0", "Toy/Counting-v0", "Toy/TwoTools-v0")


@functools.cache
def pair(env_id: str, mode: AutoresetMode, workers: int) -> tuple[TextVectorEnv, SyncVectorEnv]:
    def make() -> Any:
        return gymnasium.make(env_id, max_turns=3)

    return TextVectorEnv([make] * 3, mode, workers), SyncVectorEnv([make] * 3, autoreset_mode=mode)


@pytest.mark.parametrize("env_id", PLAYED)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", AutoresetMode)
@settings(max_examples=25, deadline=None)
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


def test_the_expert_wins_in_every_slot_at_its_own_pace() -> None:
    vector = gymnasium.make_vec("AgentR1/GSM8K-v0", num_envs=8, autoreset_mode=AutoresetMode.SAME_STEP)
    vector.reset(seed=0, options={"per_env": [{"index": i} for i in range(8)]})
    single = gymnasium.make("AgentR1/GSM8K-v0")
    expected = [sum(step[1] for step in expert_episode(single, options={"index": i})[1:]) for i in range(8)]
    returns, over = np.zeros(8), np.zeros(8, dtype=bool)
    while not over.all():
        _, rewards, terminated, _, infos = vector.step([env.unwrapped.expert_action() for env in vector.envs])
        returns += np.where(over, 0, rewards)
        if terminated.any():
            assert infos["final_info"]["is_success"][terminated].all()
        over |= terminated
    assert list(returns) == expected


def test_specs_go_through_json_and_keep_their_arguments() -> None:
    vector = gymnasium.make_vec("AgentR1/GSM8K-NoTool-v0", num_envs=2, autoreset_mode="SameStep", split="test")
    again = gymnasium.make_vec(EnvSpec.from_json(vector.spec.to_json()))
    assert type(again) is TextVectorEnv and again.num_envs == 2
    assert again.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP and again.get_attr("split") == ("test", "test")
    assert gymnasium.make(gymnasium.make("AgentR1/GSM8K-v0").spec).reset(seed=1) is not None
    for mode in ("sync", "async"):
        other = gymnasium.make_vec("AgentR1/GSM8K-v0", num_envs=2, vectorization_mode=mode)
        assert not isinstance(other, TextVectorEnv)
        other.close()
    with pytest.raises(AttributeError, match="AgentR1/None-v0"):
        getattr(__import__("agent_gym.vector").vector, "AgentR1/None-v0")


def test_spaces_attributes_and_rendering() -> None:
    vector = TextVectorEnv([lambda: CountingEnv(render_mode="ansi")] * 3, workers=2)
    theirs = SyncVectorEnv([CountingEnv] * 3)
    assert vector.action_space == theirs.action_space and vector.observation_space == theirs.observation_space
    assert vector.single_action_space == theirs.single_action_space and vector.render_mode == "ansi"
    assert vector.action_space.sample() in vector.action_space
    vector.reset(seed=3)
    assert vector.np_random_seed == (3, 4, 5)
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


def test_gymnasiums_wrappers_find_what_they_look_for() -> None:
    made = [CountingEnv, TwoToolEnv]
    vector = DictInfoToList(RecordEpisodeStatistics(TextVectorEnv(made, AutoresetMode.SAME_STEP)))
    assert [info["task_id"] for info in vector.reset(seed=0)[1]] == ["train/31", "train/0"]
    infos = vector.step(("x", "right"))[-1]
    assert "episode" not in infos[0] and infos[1]["episode"]["r"] == 1.0
    assert [message["role"] for message in infos[0]["messages"]] == ["assistant", "user"]
    assert infos[1]["final_info"]["is_success"]


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
        ({"options": {"reset_mask": np.array([True, False])}}, "reset_mask.*numpy array of 3"),
        ({"options": {"reset_mask": np.array([1, 0, 1])}}, "reset_mask.*numpy array of 3"),
        ({"options": {"reset_mask": np.zeros(3, dtype=bool)}}, "at least one"),
        ({"options": {"idx": 3}}, "idx.*split, index, task"),
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
