"""Environments go through pickle, in the middle of an episode, too, and go on as if nothing had happened."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any, ClassVar

import gymnasium
import pytest
from contract import encoder_of, every_id, play

from agent_gym import QuestionEnv, Reply, ToolEnv, tool
from agent_gym.envs.webshop.env import WebShopEnv
from agent_gym.testing import policy_texts, without_times
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


@every_id
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


GO_ON = """
import pickle, sys
from agent_gym.testing import without_times
env, actions = pickle.load(sys.stdin.buffer)
pickle.dump(without_times([env.step(action) for action in actions]), sys.stdout.buffer)
"""


@pytest.mark.parametrize("env_id", ["AgentR1/GSM8K-v0", "AgentR1/HotpotQA-v0", "AgentR1/PaperSearch-v0"])
def test_a_copy_goes_on_in_a_fresh_process(env_id: str) -> None:
    env = gymnasium.make(env_id)
    env.reset(seed=1)
    env.step(env.unwrapped.expert_action())
    action = env.unwrapped.expert_action()
    sent = pickle.dumps((env, [action, "x"]))
    done = subprocess.run([sys.executable, "-c", GO_ON], input=sent, capture_output=True, check=True, timeout=120)
    assert pickle.loads(done.stdout) == without_times([env.step(action), env.step("x")])


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


def test_a_shop_goes_on_between_a_product_and_its_purchase() -> None:
    env = WebShopEnv()
    env.reset(seed=2)
    while "Buy Now" not in env.expert_action() and "buy now" not in env.expert_action():
        env.step(env.expert_action())
    goes_on(env, [env.expert_action()])


# Environments of others, with tools made of functions.


@tool
def shout(word: str) -> str:
    """Say a word loudly.

    Args:
        word: which.
    """
    return word.upper()


def whisper(word: str) -> str:
    """Say a word softly.

    Args:
        word: which.
    """
    return word.lower()


class Talking(ToolEnv):
    """Has a tool of each kind: decorated, a plain function, and a method with a state."""

    reward_weights: ClassVar[dict[str, float]] = {}

    def __init__(self) -> None:
        super().__init__({"train": ["q"]}, tools=[shout, tool(whisper), tool(self.remember)])
        self.words: list[str] = []

    def begin(self, task: Any) -> str:
        self.words = []
        return str(task)

    def remember(self, word: str) -> str:
        """Remember a word.

        Args:
            word: which.
        """
        self.words.append(word)
        return " ".join(self.words)

    def answer(self, text: str) -> Reply:
        return Reply(terminated=True)


def test_environments_with_tools_of_functions_go_on() -> None:
    env = Talking()
    env.reset(seed=0)
    env.step(CALL("remember", {"word": "a"}))
    turns = [CALL("remember", {"word": "b"}), CALL("shout", {"word": "c"}) + CALL("whisper", {"word": "D"}), "end"]
    for other in copies(env):
        observations = [other.step(action)[0] for action in turns]
        assert observations == ["a b", "C\nd", ""] and other.words == ["a", "b"]
        assert env.words == ["a"]  # a method's tool works on the copy that it belongs to
    asked = QuestionEnv([{"question": "q", "answer": "C"}], [shout, whisper])
    log = play(asked, [turns[1], "<answer>C</answer>"], seed=0)
    asked.reset(seed=0)
    goes_on(asked, policy_texts(log))


def test_a_tool_of_a_local_function_says_so() -> None:
    @tool
    def local() -> str:
        """Do nothing."""
        return ""

    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(local)
    assert copy.deepcopy(local) is local and copy.deepcopy(shout) is shout
    assert pickle.loads(pickle.dumps(shout)).run({"word": "a"}).text == "A"
