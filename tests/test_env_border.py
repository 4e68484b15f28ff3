"""The border of an environment: what its author returns, or a caller hands over, is checked where it crosses it."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from contract import IDS, every_id
from toy_envs import CountingEnv

from agent_gym import ConfigError, EnvFailure, QuestionEnv, Reply, Sampled, TextEnv, Tool, ToolEnv, ToolResult
from agent_gym.chat import ChatRenderer
from agent_gym.policies import ScriptedPolicy
from agent_gym.rewards import MAX_REWARD
from agent_gym.rollout import EpisodeSpec, Runner
from agent_gym.tools import HermesParser


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
    *(float("nan"), float("inf"), -float("inf"), np.float32("nan"), np.float64("inf"), Decimal("NaN"), Decimal("sNaN")),
    *(None, "x", "1.0", b"1", 1j, np.complex64(1), 10**400, Fraction(10**400), [1.0], {}, (), object(), Rude()),
    *(np.array([1.0, 2.0]), np.array([1.0]), np.array("1"), np.array(None)),
]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ["a", "b", "idle"])
def test_a_term_that_is_no_finite_number_is_a_failure_with_a_name(name: str, value: Any) -> None:
    with pytest.raises(EnvFailure, match=rf"reward term '{name}' is .*task train/2 of Toy/Judged-v0.*finite number"):
        stepped(Reply(terms={name: value}))
    with pytest.raises(EnvFailure, match=r"metric 'm' is .*task train/2 of Toy/Judged-v0.*finite number"):
        stepped(Reply(metrics={"m": value}))


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
        ({"a": 1e300}, r"reward term 'a' of weight 1 is 1e\+300"),
        ({"b": 1e308}, "reward term 'b' of weight 10 is inf"),
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
    (Reply(metrics=1.0), r"metrics in .*is 1\.0 \(float\).*dict"),
    (Reply(metrics={1: 2.0}), "metrics in .*dict from names"),
    (Reply(text=None), r"text in .*is None .*a text, or what agent_gym\.images\.parts makes"),
    (Reply(text=[{"type": "image", "image": np.zeros((2, 2, 3), np.uint8)}]), "text in "),
    (Reply(text=[{"type": "text", "text": 3}]), "text in "),
    (Reply(terminated="yes"), "terminated in .*'yes'.*True or False"),
    (Reply(success=0.5), r"success in .*0\.5.*True or False"),
    (Reply(error=ValueError("x")), r"error in .*ValueError\('x'\).*text or None"),
    (Reply(tool_calls=[{"name": "x"}]), "tool_calls in .*list of ToolCall"),
    (Reply(messages="hello"), "messages in .*'hello'.*role and content"),
    (Reply(messages=[{"content": "hello"}]), "messages in "),
    (Reply(messages=[{"role": "user"}]), "the content of a message in .*None"),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "words"), WRONG_REPLIES)
def test_what_respond_returns_is_checked(reply: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        stepped(reply)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("begins", [None, 5, b"q", {"question": "q"}, ["q"], [{"type": "text"}]])
def test_what_begin_returns_is_checked(begins: Any) -> None:
    env = Judged(begins)
    with pytest.raises(ConfigError, match=r"what Judged\.begin returned is .*a text, or what agent_gym\.images"):
        env.reset(seed=0)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")


class Returning(Tool):
    """Returns what it was made with."""

    def __init__(self, results: Any) -> None:
        super().__init__("get", "Get.", {"type": "object", "properties": {}})
        self.results = results

    def run(self, arguments: Any) -> Any:
        return self.results


class Calling(ToolEnv):
    reward_weights: ClassVar[dict[str, float]] = {"a": 1.0}

    def __init__(self, results: Any = None, answers: Any = None, **kwargs: Any) -> None:
        super().__init__({"train": ["q"]}, tools=[Returning(results)], **kwargs)
        self.answers = answers

    def begin(self, task: Any) -> str:
        return str(task)

    def answer(self, text: str) -> Any:
        return self.answers

    def score_calls(self, calls: Any, results: Any) -> Any:
        return {"a": sum(result.reward or 0.0 for result in results)}


CALL = HermesParser().render("get", {})


def test_what_tools_and_answer_return_is_checked() -> None:
    def step(action: str, *args: Any) -> Any:
        env = Calling(*args)
        env.reset(seed=0)
        return env.step(action)

    for wrong in (None, "text", 3, ("text", True)):
        with pytest.raises(ConfigError, match=r"tool 'get' returned .*must return an agent_gym\.ToolResult"):
            step(CALL, wrong)
        with pytest.raises(ConfigError, match=r"Calling\.answer returned .*must return an agent_gym\.Reply"):
            step("x", None, wrong)
    with pytest.raises(ConfigError, match="text in the ToolResult of tool 'get' is 5"):
        step(CALL, ToolResult(5))  # type: ignore[arg-type]
    for value in (float("nan"), "x", 10**400):
        with pytest.raises(EnvFailure, match=r"the reward of tool 'get' is .*task train/0 of Calling"):
            step(CALL, ToolResult("x", reward=value))  # type: ignore[arg-type]
    _, reward, *_, info = step(CALL, ToolResult("x", reward=np.float32(0.5), metrics={"m": np.int64(2)}))  # type: ignore
    assert type(reward) is float and reward == 0.5 and info["metrics"] == {"m": 2.0}
    json.dumps(info)


# What callers hand over.


class Loud(str):
    """A text of another class."""

    def __str__(self) -> str:
        raise RuntimeError("use me as I am")


@pytest.mark.parametrize("action", [None, 5, b"abc", ["a"], ("a",), 1.5, np.array("a"), object()])
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


def test_texts_of_other_classes_are_texts() -> None:
    for action in (Loud("café"), np.str_("café"), Sampled("café", [1])):
        env = CountingEnv()
        env.reset(seed=0)
        *_, info = env.step(action)
        assert type(info["messages"][0]["content"]) is str and info["messages"][0]["content"] == "café"


@every_id
def test_wrong_arguments_name_those_there_are(env_id: str) -> None:
    with pytest.raises(ConfigError, match=r"no argument 'max_turn' \(did you mean 'max_turns'\?\); allowed: .*split"):
        gymnasium.make(env_id, max_turn=3)
    for kwargs, words in (
        ({"max_turns": "four"}, "max_turns is 'four'; it must be a whole number of at least 1"),
        ({"max_turns": 2.5}, r"max_turns is 2\.5"),
        ({"max_turns": None}, "max_turns is None"),
        ({"tokenizer": "gpt2"}, "tokenizer is 'gpt2'; it must be a loaded tokenizer"),
        ({"system_prompt": 3}, "system_prompt is 3; it must be a text or None"),
    ):
        with pytest.raises(ConfigError, match=words):
            gymnasium.make(env_id, **kwargs)
    term = next(iter(gymnasium.make(env_id).unwrapped.weights))
    for weight in (float("nan"), "1", None, float("inf")):
        with pytest.raises(ConfigError, match=f"the weight of '{term}' is .*finite number"):
            gymnasium.make(env_id, reward_weights={term: weight})


def test_arguments_are_those_of_the_whole_class() -> None:
    with pytest.raises(
        ConfigError, match=r"GSM8KEnv takes no argument 'dta' \(did you mean 'data'\?\); allowed: data, use_"
    ) as e:
        gymnasium.make(IDS[0], dta="x")
    allowed = str(e.value).partition("allowed: ")[2].split(", ")
    assert {"data", "parser", "max_calls_per_turn", "max_turns", "reward_weights", "tokenizer"} <= set(allowed)
    assert not {"tasks", "tools", "kwargs", "self", "unknown"} & set(allowed)


def test_a_score_that_is_no_number_is_named() -> None:
    for value in NO_NUMBERS:
        env = QuestionEnv([{"question": "?", "answer": "1"}], score=lambda stated, row, value=value: value)
        env.reset(seed=0)
        with pytest.raises(EnvFailure, match=r"what the function score returned is .*task train/0 of QuestionEnv"):
            env.step("<answer>1</answer>")


# In a rollout.


class Sometimes(CountingEnv):
    """Has a term that is no number in some tasks, and hands numpy's numbers over in all."""

    terms: ClassVar[dict[int, Any]] = {1: float("nan"), 3: None, 5: 1e300}

    def begin(self, task: Any) -> str:
        self.task = task
        return super().begin(task)

    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        reply.terms |= {"turn": self.terms.get(self.task, np.float32(0.5))}
        reply.metrics |= {"seen": np.int64(3)}
        return reply


class Rescaled(gymnasium.Wrapper):
    """Makes another number of each reward."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = self.env.step(action)
        return observation, float("nan"), *rest


gymnasium.register("Toy/Sometimes-v0", entry_point=Sometimes)
gymnasium.register("Toy/Rescaled-v0", entry_point=lambda **kwargs: Rescaled(CountingEnv(**kwargs)))


def rolled_out(env_id: str, tokenizer: Any, **kwargs: Any) -> list[Any]:
    policy = ScriptedPolicy(
        lambda episode: "go" if episode.turns < 3 else "stop", ChatRenderer.of(tokenizer).encode_action
    )
    runner = Runner(policy, tokenizer, **kwargs)
    try:
        return runner.run_share([EpisodeSpec(env_id, split="train", index=index) for index in range(6)])
    finally:
        runner.close()


@pytest.mark.parametrize("env_processes", [0, 1])
def test_a_rollout_loses_the_episode_and_says_which(env_processes: int, tokenizer: Any) -> None:
    episodes = rolled_out("Toy/Sometimes-v0", tokenizer, env_processes=env_processes)
    for index, episode in enumerate(episodes):
        if index in Sometimes.terms:
            assert re.search(rf"reward term 'turn' .*task train/{index} of Toy/Sometimes-v0", str(episode.failure))
            assert math.isnan(episode.reward)
        else:
            assert episode.failure is None and episode.reward == 4 * 0.125 + 1.0
        json.dumps([step.metrics | step.reward_terms for step in episode.steps], allow_nan=False)


def test_the_reward_of_a_wrapper_is_checked(tokenizer: Any) -> None:
    for episode in rolled_out("Toy/Rescaled-v0", tokenizer):
        assert "the reward is nan (float) in Toy/Rescaled-v0, turn 0" in str(episode.failure)
