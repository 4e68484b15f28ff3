"""Agents that act in the world of an environment: their episodes are those of the policy that plays there alone."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest
from process_tools import until
from rollout_tools import scripted

from agent_gym import make
from agent_gym.errors import EnvFailure
from agent_gym.evaluate import make_specs
from agent_gym.gateway import agent_env
from agent_gym.rollout import Budget, Episode, Runner

pytest.importorskip("openai")
NOT_SAMPLED = "AgentR1/GSM8K-v0"


async def player(client: Any, task: Any, last: str | None = "<answer>") -> str:
    talk = [*task["messages"]]
    while True:
        answer = await client.chat.completions.create(model="m", messages=talk)
        text = answer.choices[0].message.content
        if last and last in text:
            return text
        talk += [{"role": "assistant", "content": text}, {"role": "tool", "content": task["step"](text)}]


async def blind(client: Any, task: Any) -> None:
    """Acts with whatever the policy says, and never ends by itself."""
    await player(client, task, last=None)


def stubborn(client: Any, task: Any) -> None:
    """The same, and takes errors of its tool for answers, as harnesses do; in a thread, which nothing can cancel."""
    talk = [*task["messages"]]
    while True:
        text = client.chat.completions.create(model="m", messages=talk).choices[0].message.content
        try:
            answer = task["step"](text)
        except Exception as error:
            answer = str(error)
        talk += [{"role": "assistant", "content": text}, {"role": "tool", "content": answer}]


def play(tokenizer: Any, env: tuple[str, Any], write: Callable[[Episode], str], count: int = 4) -> list[Episode]:
    with closing(Runner(scripted(tokenizer, write), tokenizer, Budget(max_turn_tokens=400, max_tokens=6000))) as runner:
        return runner.run_share(make_specs(*env, split="train", episodes=count))


CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "1+1"}}</tool_call>'


def write(episode: Episode) -> str:
    """Solve one task, give up another, and calculate without end in the third, which the world has to stop."""
    env = episode.env.unwrapped
    return [str(getattr(env, "_world", env).expert_action()), "No idea.", CALL][episode.spec.index % 3]


@pytest.mark.parametrize("agent", [player, blind, stubborn])
def test_an_episode_is_that_of_the_world(tokenizer: Any, agent: Any) -> None:
    """The tasks that are not solved count, too: no mean may be one over the survivors."""
    episodes = play(tokenizer, agent_env(agent, world=NOT_SAMPLED, world_kwargs={"max_turns": 5}), write)
    same = play(tokenizer, (NOT_SAMPLED, {"max_turns": 5}), write)
    for mine, its in zip(episodes, same, strict=True):
        assert mine.failure is None, mine.failure
        assert (mine.reward, mine.success, mine.terminated) == (its.reward, its.success, its.terminated)
        assert (mine.truncation, mine.turns, len(mine.rows)) == (its.truncation, its.turns, 1)
        assert mine.steps[-1].metrics == its.steps[-1].metrics
    assert [(one.success, one.truncated) for one in episodes[:3]] == [(True, False), (False, False), (False, True)]


def test_a_world_that_fails_fails_the_episode_whatever_the_agent_makes_of_it(tokenizer: Any) -> None:
    world = {"world": "Toy/Broken-v0", "world_kwargs": {"how": "failure", "tasks": (1,)}}
    good, bad = play(tokenizer, agent_env(stubborn, **world), lambda e: str(e.env.unwrapped._world.expert_action()), 2)
    assert good.success and good.turns == 4
    assert bad.failure and "the index is gone" in bad.failure.message and math.isnan(bad.reward)


def test_the_world_says_of_what_kind_its_tasks_are(tokenizer: Any) -> None:
    env = agent_env(blind, world="AgentR1/ALFWorld-v0", world_kwargs={"max_turns": 1})
    (mine,) = play(tokenizer, env, lambda episode: "look", 1)
    (its,) = play(tokenizer, ("AgentR1/ALFWorld-v0", {}), lambda episode: "look", 1)
    assert mine.categories == its.categories and set(its.categories) == {"task_type"}


def test_what_the_world_has_paid_stays_where_a_limit_ends_the_episode(tokenizer: Any) -> None:
    world = {"reward_weights": {"call": 0.1}}
    for limits in (Budget(max_turns=3), Budget(max_tokens=600)):
        for env in (agent_env(blind, world=NOT_SAMPLED, world_kwargs=world), (NOT_SAMPLED, world)):
            policy = scripted(tokenizer, lambda episode: "<tool_call>{")
            with closing(Runner(policy, tokenizer, limits)) as runner:
                (episode,) = runner.run(make_specs(*env, split="train", episodes=1))
            assert episode.truncated and [step.reward for step in episode.steps] == [-0.1] * episode.turns
            assert [step.process_reward for step in episode.steps] == [-0.1] * episode.turns, "of the world's terms"


def test_the_world_has_the_metrics_and_the_gold(tokenizer: Any) -> None:
    world = ("AgentR1/HotpotQA-v0", {"reward": "em"})
    agent_id, kwargs = agent_env(player, world=world[0], world_kwargs=world[1])
    (mine,) = play(tokenizer, (agent_id, kwargs), lambda episode: "<answer>nobody</answer>", 1)
    (its,) = play(tokenizer, world, lambda episode: "<answer>nobody</answer>", 1)
    assert {"em", "f1"} <= set(its.steps[-1].metrics) and mine.steps[-1].metrics == its.steps[-1].metrics
    support = make(agent_id, **{**kwargs, "world": "AgentR1/Support-v0", "world_kwargs": {}})
    task = support.tasks["train"][0]
    assert support.gold(task) == make("AgentR1/Support-v0").gold(task)


def test_an_agent_that_outlives_its_episode_acts_in_no_other(tokenizer: Any) -> None:
    """The environment is used again, and its world with it."""
    acts, errors = [], []
    over = threading.Event()

    def agent(client: Any, task: Any) -> None:
        acts.append(task["step"])
        with suppress(Exception):
            while True:
                client.chat.completions.create(model="m", messages=task["messages"])
        if len(acts) == 1:
            over.wait(60)
        try:
            acts[0]("stop")
        except EnvFailure as error:
            errors.append(str(error))

    env_id, kwargs = agent_env(agent, world="Toy/Counting-v0")
    env = make(env_id, **kwargs, max_turns=2)
    with closing(env):
        for number in range(2):
            env.reset(seed=0)
            if number:
                over.set()
                until(lambda: errors)
            env.step("on")
            *_, terminated, truncated, _ = env.step("on")
            assert truncated and not terminated
            env.unwrapped.on_truncated()
        until(lambda: len(errors) == 2)
    assert all("is over" in error for error in errors)


def test_an_action_that_is_no_text_is_the_mistake_of_the_agent(tokenizer: Any) -> None:
    def agent(client: Any, task: Any) -> str:
        client.chat.completions.create(model="m", messages=task["messages"])
        with pytest.raises(TypeError, match="the policy's text"):
            task["step"](None)
        return "stop"

    (episode,) = play(tokenizer, agent_env(agent, world="Toy/Counting-v0"), lambda episode: "on", 1)
    assert episode.failure is None and episode.terminated and episode.turns == 1
