"""What every registered environment owes: it runs over the registry, so that a new entry is tested by itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from contract import IDS, check_returned, every_id, expert_episode, leaves, play
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import agent_gym
from agent_gym import Sampled, TextEnv
from agent_gym.formats.react import ReActParser
from agent_gym.formats.tags import TagParser
from agent_gym.images import images_of
from agent_gym.registry import ENVS, EnvEntry
from agent_gym.rewards import final_answer, parse_number
from agent_gym.tools import HermesParser

# Registration.


def test_registry_rows_are_complete() -> None:
    ids = agent_gym.list_envs()
    assert len(set(ids)) == len(ids) > 0 and ids[: len(ENVS)] == [entry.id for entry in ENVS]
    for entry in ENVS:
        assert isinstance(entry, EnvEntry)
        assert re.fullmatch(r"AgentR1/[A-Za-z0-9-]+-v\d+", entry.id)
        assert entry.summary and entry.data
        if entry.needs is not None:
            argument = re.match(r"\w+=", entry.needs)
            with pytest.raises(agent_gym.ConfigError, match=argument[0] if argument else entry.needs):
                gymnasium.make(entry.id)
            continue
        tools = [schema["function"]["name"] for schema in gymnasium.make(entry.id).unwrapped.tool_schemas]
        assert tuple(tools) == entry.tools


@every_id
def test_make_returns_a_text_env_by_type(env_id: str) -> None:
    env = agent_gym.make(env_id, max_turns=3)
    assert isinstance(env, TextEnv) and env.max_turns == 3 and env.spec is not None and env.spec.id == env_id
    env.close()


def test_make_names_what_cannot_be_made() -> None:
    gymnasium.register("Toy/Bare-v0", entry_point=lambda: TextEnv({"train": [1]}))
    for env_id, kwargs, words in (
        ("AgentR1/GSM8k-v0", {}, "did you mean AgentR1/GSM8K-v0"),
        ("CartPole-v1", {}, r"no agent_gym\.TextEnv"),
        ("Toy/Bare-v0", {"size": 3}, "Toy/Bare-v0 takes no argument 'size'"),
    ):
        with pytest.raises(agent_gym.ConfigError, match=words):
            agent_gym.make(env_id, **kwargs)


def test_module_form_registers_by_itself() -> None:
    code = f"import gymnasium; [gymnasium.make('agent_gym:' + i).reset(seed=0) for i in {IDS!r}]"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Gymnasium's own checks. No warning is excused.


@every_id
def test_check_env_without_warnings(env_id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(env_id, render_mode="ansi").unwrapped)
        short = gymnasium.make(env_id, max_turns=1).unwrapped
        short.reset(seed=0)
        # Where a turn can do nothing and not end the task, one turn is truncated; the checker takes that for an error.
        if short.step("x")[2]:
            check_env(short, skip_render_check=True)


@every_id
def test_made_env_steps_without_warnings(env_id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(env_id)  # with Gymnasium's passive checker, which looks at the first reset and step
        check_returned(env.unwrapped, expert_episode(env, seed=3))


# Determinism.


@every_id
def test_same_seed_same_episode(env_id: str) -> None:
    first, second = gymnasium.make(env_id), gymnasium.make(env_id)
    expert_episode(second, seed=99)  # an earlier episode must leave no trace
    second.unwrapped.np_random.random(5)
    for seed in range(5):
        actions = [info["messages"][0]["content"] for *_, info in expert_episode(first, seed=seed)[1:]]
        assert play(first, actions, seed=seed) == play(second, actions, seed=seed)
    # Without a seed the stream goes on; with the seed again it starts again.
    runs = [[play(env, ["x"], seed=7), play(env, ["x"]), play(env, ["x"])] for env in (first, second)]
    assert runs[0] == runs[1]


@every_id
def test_seeds_reach_many_tasks(env_id: str) -> None:
    env = gymnasium.make(env_id)
    assert len({env.reset(seed=seed)[1]["task_id"] for seed in range(40)}) >= 30


DIGEST = """
import hashlib, sys, gymnasium, agent_gym
for env_id in sys.argv[1:]:
    env, said = gymnasium.make(env_id), []
    for seed in range(8):
        observation, info = env.reset(seed=seed)
        said += [observation, repr(info)]
        over = False
        while not over:
            observation, reward, terminated, truncated, info = env.step(env.unwrapped.expert_action())
            said += [observation, repr(reward), repr(info["messages"]), repr(info["spans"])]
            over = terminated or truncated
    print(env_id, hashlib.sha256("\\0".join(said).encode()).hexdigest())
"""


def test_same_episode_in_fresh_processes_whatever_the_hash_seed() -> None:
    def digest(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", DIGEST, *IDS]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout

    first = digest("1")
    assert first.count("\n") == len(IDS)
    assert first == digest("31337")


@every_id
def test_global_generators_are_left_alone(env_id: str) -> None:
    import random

    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    expert_episode(gymnasium.make(env_id), seed=0)
    assert (random.random(), np.random.random()) == expected


# Options.


@every_id
def test_options_pick_the_task(env_id: str) -> None:
    env = gymnasium.make(env_id)
    for split, tasks in env.unwrapped.tasks.items():
        for index in (0, len(tasks) - 1):
            seen = [env.reset(seed=seed, options={"split": split, "index": index}) for seed in (0, 1)]
            assert seen[0][1]["task_id"] == f"{split}/{index}"
            assert seen[0][0] == seen[1][0]
        assert env.reset(seed=0, options={"split": split})[1]["task_id"].startswith(f"{split}/")
    index = np.int64(3)  # what a sampler hands over
    assert env.reset(options={"index": index})[1]["task_id"].endswith("/3")
    assert gymnasium.make(env_id, split="test").reset(seed=0)[1]["task_id"].startswith("test/")


ASKED: list[Any] = []  # tasks that were looked at; the variants of an environment may share theirs


@every_id
def test_no_question_is_asked_twice(env_id: str) -> None:
    """What the policy sees first, images included: different for each task of an evaluation, and in no other split."""
    env = gymnasium.make(env_id).unwrapped
    if any(env.tasks is tasks for tasks in ASKED):
        pytest.skip("another id has the same tasks")
    ASKED.append(env.tasks)
    seen: dict[Any, str] = {}
    for split in sorted({"train", "validation", "test"} | {name for name in env.tasks if name.startswith("unseen")}):
        if split not in env.tasks:
            continue
        for index in range(min(len(env.tasks[split]), 2_000)):
            observation, info = env.reset(seed=0, options={"split": split, "index": index})
            # ALFWorld's tasks also differ in where things lie, which is seen only when it is looked for.
            hidden = str(getattr(getattr(env, "_game", None), "start", ""))
            shown = observation, hidden, *(image.digest for image in images_of(info["messages"]))
            # Train is a stream, of which only the beginning is looked at here: it may repeat itself and nothing else.
            assert seen.get(shown, "train") == split == "train" or shown not in seen, f"{split}/{index}: {observation}"
            seen[shown] = split


# Vector environments.


@every_id
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_vector_envs_return_what_single_envs_do(env_id: str, mode: AutoresetMode, kind: Any) -> None:
    """Default arguments, three copies, a fourth env each as the reference, with Unicode in the actions."""
    made = [lambda: gymnasium.make(env_id, max_turns=2)] * 3
    singles = [make() for make in made]
    vector = kind(made, autoreset_mode=mode)
    action = HermesParser().render("café ✓ π 😀", {}) + " naïve\n"
    over = [False] * 3
    observations, _ = vector.reset(seed=[4, 5, 6])
    assert tuple(observations) == tuple(env.reset(seed=seed)[0] for env, seed in zip(singles, (4, 5, 6), strict=True))
    for turn in range(6):
        # The second copy answers at once, so that the copies end at different times.
        actions = tuple("<answer>1</answer>" if i == 1 and turn % 2 == 0 else action for i in range(3))
        observations, rewards, terminated, truncated, infos = vector.step(actions)
        for i, env in enumerate(singles):
            if mode is AutoresetMode.NEXT_STEP and over[i]:
                expected = (env.reset()[0], 0.0, False, False)
                over[i] = False
            else:
                expected = env.step(actions[i])[:4]
                over[i] = expected[2] or expected[3]
                if mode is AutoresetMode.SAME_STEP and over[i]:
                    assert infos["final_obs"][i] == expected[0]
                    assert infos["final_info"]["is_success"][i] in (True, False)
                    expected = (env.reset()[0], *expected[1:])
            assert (observations[i], rewards[i], terminated[i], truncated[i]) == expected
    vector.close()


def test_vector_env_under_spawn() -> None:
    """A fresh interpreter per worker: the id must be found, and spaces and actions must pickle."""
    env_id = IDS[0]
    vector = gymnasium.make_vec(
        f"agent_gym:{env_id}", num_envs=1, vectorization_mode="async", vector_kwargs={"context": "spawn"}
    )
    observations, _ = vector.reset(seed=2)
    assert observations[0] == gymnasium.make(env_id).reset(seed=2)[0]
    assert not observations[0].startswith("0000")
    vector.step((Sampled("x", [1, 2], [-0.5, -0.5]),))
    vector.close()


# Gold answers and experts.


@every_id
def test_gold_never_shows(env_id: str) -> None:
    """Play badly on tasks whose gold answer could not stand anywhere by chance, and does not in the question."""
    env = gymnasium.make(env_id)
    checked = 0
    for index in range(400):
        options = {"split": "train", "index": index}
        observation, info = env.reset(seed=0, options=options)
        last = expert_episode(env, seed=0, options=options)[-1][-1]["messages"][0]["content"]
        gold = final_answer(last) or last
        # A last action that states no answer, such as a command, has its digits by chance.
        number = parse_number(gold) if gold != last else None
        if len(gold) < 3 or gold in observation or gold in ("yes", "no"):
            continue
        checked += 1
        broken = ["<tool_call>{</tool_call>", HermesParser().render("rm", {}), "<answer>-1</answer>"]
        for actions in (["I do not know."], broken):
            for text, *_, info in play(env, actions, seed=0, options=options):
                assert gold not in text
                for where, value in leaves({**info, "spans": []}):
                    assert gold not in value if isinstance(value, str) else number is None or value != number, where
        if checked == 25:
            return
    pytest.fail(f"only {checked} tasks have a gold answer that cannot occur otherwise")


@every_id
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_expert_solves_the_tasks(env_id: str, split: str) -> None:
    env = gymnasium.make(env_id)
    for index in range(100):
        *_, (_, reward, terminated, truncated, info) = expert_episode(
            env, seed=0, options={"split": split, "index": index}
        )
        assert info["is_success"] and terminated and not truncated, f"{split}/{index}"
        # The first reward term is the outcome itself; what stands behind it is for the way there.
        assert reward >= env.unwrapped.weights[next(iter(type(env.unwrapped).reward_weights))] > 0


@every_id
def test_expert_is_deterministic_and_stays_out_of_info(env_id: str) -> None:
    env = gymnasium.make(env_id).unwrapped
    _, info = env.reset(seed=0)
    planned = env.expert_action()
    assert planned == env.expert_action()
    assert planned not in json.dumps(info, default=str)


# Parsers.


def wire_formats(env: Any) -> list[Any]:
    """One parser of each class for the tools of an environment, each of which has one argument."""
    arguments = {tool.name: next(iter(tool.parameters["properties"])) for tool in env.tools.values()}
    if "code_interpreter" in arguments:  # ReAct has no line breaks in an argument
        return [HermesParser(), TagParser(arguments)]
    return [HermesParser(), TagParser(arguments), ReActParser(arguments)]


@every_id
def test_parser_is_an_argument_of_every_environment_with_tools(env_id: str, tokenizer: Any) -> None:
    known = gymnasium.make(env_id).unwrapped
    if not getattr(known, "tools", None):
        pytest.skip("it has no tools")
    for parser in wire_formats(known):
        if env_id == "AgentR1/HotpotQA-ReAct-v0":
            with pytest.raises(agent_gym.ConfigError, match="brings a parser of its own"):
                gymnasium.make(env_id, parser=parser)
            continue
        for kwargs in ({}, {"tokenizer": tokenizer}):
            env = gymnasium.make(env_id, parser=parser, **kwargs)
            log = expert_episode(env, seed=3)
            check_returned(env.unwrapped, log)
            assert log[-1][-1]["is_success"] and log[0][-1]["stop"] == list(parser.stop)
            assert any(info["tool_calls"] for *_, info in log[1:])
            if not parser.in_templates:  # the policy reads how calls are written
                assert parser.instructions(env.unwrapped.tool_schemas) in log[0][-1]["messages"][0]["content"]
