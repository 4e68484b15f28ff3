"""Environments go through pickle, in the middle of an episode, too, and go on as if nothing had happened."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium
import pytest
from toy_envs import TwoToolEnv, encoder_of, every_world

from agent_gym import tool
from agent_gym.testing import play, without_times
from agent_gym.tools import HermesParser

CALL = HermesParser().render


def copies(env: Any) -> list[Any]:
    return [pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]


def goes_on(env: Any, actions: list[Any]) -> None:
    """Play the actions in an environment and in its copies, and then one more episode."""
    others = copies(env)
    for action in actions:
        expected = without_times([env.step(action)])
        for other in others:
            assert without_times([other.step(action)]) == expected
    after = play(env, ["x"])  # without a seed: the generator goes on, too
    assert all(play(other, ["x"]) == after for other in others)


@every_world
@pytest.mark.parametrize("tokens", [False, True])
def test_a_copy_goes_on_where_the_environment_stood(env_id: str, tokens: bool, tokenizer: Any) -> None:
    env = gymnasium.make(env_id, **({"tokenizer": encoder_of(env_id, tokenizer)} if tokens else {}))
    for other in copies(env):  # before the first episode
        assert play(other, [], seed=3) == play(env, [], seed=3)
    actions = []
    while True:
        actions.append(env.unwrapped.expert_action())
        if any(env.step(actions[-1])[2:4]):
            break
    for turn in {0, len(actions) // 2, len(actions) - 1}:
        env.reset(seed=3)
        for action in actions[:turn]:
            env.step(action)
        goes_on(env, actions[turn:])


def test_a_session_is_made_again_with_its_names() -> None:
    env = gymnasium.make("AgentR1/MathPython-v0")
    env.reset(seed=1)
    for code in ("import random\nx = 5", "x += 1\nrandom.random()", "1/0"):
        env.step(CALL("code_interpreter", {"code": code}))
    goes_on(env, [CALL("code_interpreter", {"code": "print(x, random.random())"}), "\\boxed{1}"])
    env.reset(seed=1)
    env.step(CALL("code_interpreter", {"code": "x = 5"}))
    env.step(CALL("code_interpreter", {"code": "import os\nos._exit(1)"}))  # which loses all names
    goes_on(env, [CALL("code_interpreter", {"code": "print(x)"})] * 2)


class Talking(TwoToolEnv):
    """Has a tool that is a method with a state."""

    def __init__(self) -> None:
        super().__init__()
        self.tools["remember"] = tool(self.remember)
        self.words: list[str] = []

    def remember(self, word: str) -> str:
        """Remember a word."""
        self.words.append(word)
        return " ".join(self.words)


def test_environments_with_tools_of_functions_go_on() -> None:
    env = Talking()
    env.reset(seed=0)
    env.step(CALL("remember", {"word": "a"}))
    for other in copies(env):
        turns = [CALL("remember", {"word": "b"}), CALL("add", {"a": 1}), "end"]
        assert [other.step(action)[0] for action in turns] == ["a b", "2", ""] and other.words == ["a", "b"]
        assert env.words == ["a"]  # a method's tool works on the copy that it belongs to
