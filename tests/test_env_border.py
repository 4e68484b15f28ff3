"""The border of an environment: what its author returns, or a caller hands over, is checked where it crosses it."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from rollout_tools import counting, roll
from toy_envs import CountingEnv, every_id

from agent_gym import ConfigError, EnvFailure, QuestionEnv, Reply, RolloutError, TextEnv
from agent_gym.reply import MAX_REWARD


class Judged(TextEnv):
    """Returns what it was made with."""

    reward_weights: ClassVar[dict[str, float]] = {"a": 1.0, "b": 10.0, "idle": 0.0}
    process_terms = frozenset({"b"})

    def __init__(self, begins: Any = "q", responds: Any = None, **kwargs: Any) -> None:
        super().__init__({"train": range(3)}, **kwargs)
        self.begins, self.responds = begins, responds

    def begin(self, task: Any) -> Any:
        return self.begins

    def respond(self, action: str) -> Any:
        return self.responds


gymnasium.register("Toy/Judged-v0", entry_point=Judged)


def stepped(reply: Any, **kwargs: Any) -> Any:
    env = gymnasium.make("Toy/Judged-v0", disable_env_checker=True, **kwargs).unwrapped
    env.responds = reply
    env.reset(options={"index": 2})
    return env.step("x")


class Rude:
    """A number that cannot be had."""

    def __float__(self) -> float:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")


NO_NUMBERS = [
    *(float("nan"), -float("inf"), np.float32("nan"), Decimal("sNaN"), None, "1.0", b"1", 1j, 10**400, [1.0], {}),
    *(Rude(), np.array([1.0]), np.array("1"), np.array(None)),
]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_is_no_finite_number_is_a_failure_with_a_name(value: Any) -> None:
    where = "task train/2 of Toy/Judged-v0.*finite number"
    for name in ("a", "idle"):
        with pytest.raises(EnvFailure, match=rf"reward term '{name}' is .*{where}"):
            stepped(Reply(terms={name: value}))
    with pytest.raises(EnvFailure, match=rf"metric 'm' is .*{where}"):
        stepped(Reply(metrics={"m": value}))
    env = QuestionEnv([{"question": "?", "answer": "1"}], score=lambda stated, row: value)
    env.reset(seed=0)
    with pytest.raises(EnvFailure, match=r"what the function score returned is .*task train/0 of QuestionEnv"):
        env.step("<answer>1</answer>")


NUMBERS = [0.5, np.float32(0.5), np.float16(0.5), np.longdouble(0.5), np.array(0.5), Decimal("0.5"), Fraction(1, 2)]


def test_every_kind_of_number_becomes_a_float(tokenizer: Any) -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(0.5), torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True)]
    for value in (*NUMBERS, *tensors):
        reply = Reply(terms={"a": value, "b": value}, metrics={"m": value}, success=np.bool_(True), terminated=True)
        for kwargs in ({}, {"tokenizer": tokenizer}):
            _, reward, terminated, _, info = stepped(reply, **kwargs)
            assert type(reward) is type(info["process_reward"]) is float and terminated is True
            assert (reward, info["process_reward"], info["reward_terms"]) == (5.5, 5.0, {"a": 0.5, "b": 5.0})
            assert info["metrics"] == {"m": 0.5} and info["is_success"] is True
            assert {type(number) for number in (*info["reward_terms"].values(), *info["metrics"].values())} == {float}
            json.dumps(info, allow_nan=False)
    for value in (True, np.bool_(True), np.int8(1), 1):
        assert stepped(Reply(terms={"a": value}))[4]["reward_terms"] == {"a": 1.0}


def test_sums_and_sizes_that_no_trainer_can_square_are_failures() -> None:
    for terms, words in (
        ({"a": 1e300}, r"reward term 'a' is 1e\+300 \(float\), which its weight of 1 "),
        ({"b": 1e308}, r"reward term 'b' is 1e\+308 \(float\), which its weight of 10 "),
        ({"a": -0.6e15, "b": -0.06e15}, "the reward is -1200000000000000"),
    ):
        with pytest.raises(EnvFailure, match=rf"{words}.*task train/2 of Toy/Judged-v0.*1e\+15 at most"):
            stepped(Reply(terms=terms))
    rewards = np.array([MAX_REWARD, -MAX_REWARD] * 512, dtype=np.float32)  # what is allowed can be normalised
    assert np.isfinite(((rewards - rewards.mean()) / rewards.std()) @ rewards)
    assert stepped(Reply(terms={"idle": 1e300}, metrics={"bytes": 1e300}))[1] == 0.0  # what pays nothing may be large


def test_a_failed_step_ends_the_episode() -> None:
    env = Judged(responds=Reply(terms={"a": float("nan")}))
    env.reset(seed=0)
    with pytest.raises(EnvFailure):
        env.step("x")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")
    env.responds = Reply("fine")
    env.reset(seed=0)
    assert env.step("x")[0] == "fine"


WRONG_REPLIES = [
    *((value, r"Judged\.respond returned .*must return an agent_gym\.Reply") for value in (None, "x", ("x", 1), Reply)),
    (Reply(terms={"c": 1.0}), "term 'c' is not in reward_weights of Judged; allowed: a, b, idle"),
    (Reply(terms=None), "terms in the Reply of Judged.respond is None .*dict from names to numbers"),
    (Reply(text=None), r"text in .*is None .*a text, or what agent_gym\.images\.parts makes"),
    (Reply(text=[{"type": "image", "image": np.zeros((2, 2, 3), np.uint8)}]), "text in "),
    (Reply(success=0.5), r"success in .*0\.5.*True or False"),
    (Reply(error=ValueError("x")), r"error in .*ValueError\('x'\).*text or None"),
    (Reply(tool_calls=[{"name": "x"}]), "tool_calls in .*list of ToolCall"),
    (Reply(messages="hello"), "messages in .*'hello'.*role and content"),
    (Reply(messages=[{"role": "user"}]), "the content of a message in .*None"),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "words"), WRONG_REPLIES)
def test_what_respond_returns_is_checked(reply: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        stepped(reply)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("begins", [None, {"question": "q"}, ["q"], [{"type": "text"}]])
def test_what_begin_returns_is_checked(begins: Any) -> None:
    env = Judged(begins)
    with pytest.raises(ConfigError, match=r"what Judged\.begin returned is .*a text, or what agent_gym\.images"):
        env.reset(seed=0)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")


# What callers hand over.


@pytest.mark.parametrize("action", [None, b"abc", ["a"], np.array("a")])
def test_an_action_is_a_text(action: Any) -> None:
    for env in (CountingEnv(), gymnasium.make("Toy/Counting-v0", disable_env_checker=True)):
        env.reset(seed=0)
        with pytest.raises(TypeError, match=r"an action is the policy's text, a str, but step got"):
            env.step(action)
        assert env.step("x")[0].startswith("1 ")  # no turn was lost
    vector = gymnasium.make_vec("AgentR1/GSM8K-NoTool-v0", num_envs=2)
    vector.reset(seed=0)
    with pytest.raises(TypeError, match=r"an action is the policy's text, a str, but step got"):
        vector.step(["x", action])
    assert not vector.step(["x", "x"])[1].any()


@every_id
def test_wrong_arguments_name_those_of_the_whole_class(env_id: str) -> None:
    with pytest.raises(ConfigError, match=r"no argument 'max_turn' \(did you mean 'max_turns'\?\); allowed: ") as e:
        gymnasium.make(env_id, max_turn=3)
    allowed = str(e.value).partition("allowed: ")[2].split(", ")
    assert {"split", "reward_weights", "tokenizer"} <= set(allowed)
    assert not {"tasks", "kwargs", "self", "unknown"} & set(allowed)


def test_arguments_of_a_wrong_type_are_named() -> None:
    env_id = "AgentR1/GSM8K-v0"
    for kwargs, words in (
        ({"max_turns": "four"}, "max_turns is 'four'; it must be a whole number of at least 1"),
        ({"max_turns": 2.5}, r"max_turns is 2\.5"),
        ({"tokenizer": "gpt2"}, "the tokenizer of 'gpt2' cannot be loaded"),
        ({"system_prompt": 3}, "system_prompt is 3; it must be a text or None"),
    ):
        with pytest.raises(ConfigError, match=words):
            gymnasium.make(env_id, **kwargs)
    for weight in (float("nan"), "1"):
        with pytest.raises(ConfigError, match="the weight of 'answer' is .*finite number"):
            gymnasium.make(env_id, reward_weights={"answer": weight})


class Rescaled(gymnasium.Wrapper):
    """Makes another number of each reward."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = self.env.step(action)
        return observation, float("nan"), *rest


gymnasium.register("Toy/Rescaled-v0", entry_point=lambda **kwargs: Rescaled(CountingEnv(**kwargs)))


def test_the_reward_of_a_wrapper_is_checked(tokenizer: Any) -> None:
    with pytest.raises(RolloutError, match=r"the reward is nan \(float\) in Toy/Rescaled-v0, turn 0"):
        roll(tokenizer, counting(1, "Toy/Rescaled-v0"))
