"""What every registered environment owes: it runs over the registry, so that a new entry is tested by itself."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tools import FULL
from toy_envs import WORLDS, encoder_of, every_id, every_world

import agent_gym
from agent_gym import Sampled, TextEnv
from agent_gym.certify import run_check
from agent_gym.certify.fuzz import HOSTILE, aimed
from agent_gym.certify.record import Subject
from agent_gym.formats.react import ReActParser
from agent_gym.formats.tags import TagParser
from agent_gym.images import Image, images_of
from agent_gym.registry import ENVS, EnvEntry
from agent_gym.rewards import final_answer, parse_number
from agent_gym.testing import check_returned, check_text_env, expert_episode, leaves, play
from agent_gym.tools import HermesParser
from agent_gym.transcript import check_tiling

# Registration.


def test_registry_rows_are_complete(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path))  # nothing is prepared there
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


def test_make_names_what_cannot_be_made() -> None:
    gymnasium.register("Toy/Bare-v0", entry_point=lambda: TextEnv({"train": [1]}))
    for env_id, kwargs, words in (
        ("AgentR1/GSM9K-v0", {}, "did you mean AgentR1/GSM8K-v0"),
        ("CartPole-v1", {}, r"no agent_gym\.TextEnv"),
        ("Toy/Bare-v0", {"size": 3}, "Toy/Bare-v0 takes no argument 'size'"),
    ):
        with pytest.raises(agent_gym.ConfigError, match=words):
            agent_gym.make(env_id, **kwargs)


@every_id
def test_the_checks_of_environments_pass(env_id: str) -> None:
    """Gymnasium's own without a warning, the same episode for the same seed, an expert that solves its tasks."""
    check_text_env(lambda: gymnasium.make(env_id, render_mode="ansi"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = agent_gym.make(env_id, max_turns=1)
        assert env.max_turns == 1 and env.spec is not None and env.spec.id == env_id
        env.reset(seed=0)
        # Where a turn can do nothing and not end the task, one turn is truncated; the checker takes that for an error.
        if env.step("x")[2]:
            check_env(env, skip_render_check=True)
    # Without a seed the stream goes on; with the seed again it starts again.
    runs = [[play(env, ["x"], seed=7), play(env, ["x"])] for _ in range(2)]
    assert runs[0] == runs[1]


DIGEST = """
import sys
from agent_gym.certify.contract import digest
from agent_gym.certify.record import Subject
for env_id in sys.argv[1:]:
    print(env_id, digest(Subject("agent_gym:" + env_id)))
"""


def test_an_id_with_its_module_plays_the_same_episodes_whatever_the_hash_seed() -> None:
    def digests(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", DIGEST, *WORLDS]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout

    first = digests("1")
    assert first.count("\n") == len(WORLDS)
    assert first == digests("31337")


@every_world
def test_nothing_global_changes_and_nothing_stays_behind(env_id: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other processes leave files in the usual one
    record = run_check("isolation", Subject(env_id))
    assert record.verdict == "pass", record


# Options.


@every_world
@pytest.mark.property
def test_options_pick_the_task(env_id: str) -> None:
    env = gymnasium.make(env_id)
    for split, tasks in env.unwrapped.tasks.items():
        if not FULL and split not in ("train", "test"):  # some others are dear to generate
            continue
        for index in (0, len(tasks) - 1):
            seen = [env.reset(seed=seed, options={"split": split, "index": index}) for seed in (0, 1)]
            assert seen[0][1]["task_id"] == f"{split}/{index}"
            assert seen[0][0] == seen[1][0]
        assert env.reset(seed=0, options={"split": split})[1]["task_id"].startswith(f"{split}/")
    index = np.int64(3)  # what a sampler hands over
    assert env.reset(options={"index": index})[1]["task_id"].endswith("/3")
    assert gymnasium.make(env_id, split="test").reset(seed=0)[1]["task_id"].startswith("test/")


ASKED: list[Any] = []  # tasks that were looked at; the variants of an environment may share theirs


@every_world
@pytest.mark.property
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
        for index in range(min(len(env.tasks[split]), 2_000 if FULL else 60)):
            observation, info = env.reset(seed=0, options={"split": split, "index": index})
            # ALFWorld's tasks also differ in where things lie, which is seen only when it is looked for, and those of a
            # bisection in the bad commit.
            hidden = str(getattr(getattr(env, "_game", None), "start", getattr(env, "_bad", "")))
            shown = observation, hidden, *(image.digest for image in images_of(info["messages"]))
            # Train is a stream, of which only the beginning is looked at here: it may repeat itself and nothing else.
            assert seen.get(shown, "train") == split == "train" or shown not in seen, f"{split}/{index}: {observation}"
            seen[shown] = split


# Gold answers and experts.


@every_id
def test_gold_is_of_the_task_alone_and_stating_it_wins(env_id: str) -> None:
    env, other = gymnasium.make(env_id).unwrapped, gymnasium.make(env_id).unwrapped
    tasks = [env.tasks["test"][index] for index in range(8)]
    golds = [env.gold(task) for task in tasks]  # before any reset
    for index, gold in enumerate(golds):
        env.reset(seed=index, options={"split": "test", "index": index})
        env.step("something else")
        assert json.dumps(env.gold(tasks[index])) == json.dumps(other.gold(tasks[index])) == json.dumps(gold)
        if not isinstance(gold, str | list) or any(name in env_id for name in ("ALFWorld", "PaperSearch", "Bargain")):
            continue  # what wins there is a way, and no answer at once
        stated = gold if isinstance(gold, str) else gold[0]
        answers = (f"<answer>\\boxed{{{stated}}}</answer>", f"<answer>{stated}</answer>", f"Action: Finish[{stated}]")
        ends = [play(env, [answer], seed=0, options={"split": "test", "index": index})[-1][-1] for answer in answers]
        assert any(end.get("is_success") for end in ends), gold
    assert len({json.dumps(gold) for gold in golds}) > 1


@every_world
@pytest.mark.property
def test_gold_never_shows(env_id: str) -> None:
    """Play badly on tasks whose gold answer could not stand anywhere by chance, and does not in the question."""
    if env_id == "AgentR1/Bisect-v0":
        pytest.skip("what is left may have that number, too; tests/test_bisect.py compares each answer as a whole")
    if env_id == "AgentR1/Bandit-v0":
        pytest.skip("the question names both arms")
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
        if checked == (25 if FULL else 8):
            return
    pytest.fail(f"only {checked} tasks have a gold answer that cannot occur otherwise")


@every_world
@pytest.mark.property
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_expert_solves_the_tasks(env_id: str, split: str) -> None:
    env = gymnasium.make(env_id)
    most = 20 if env_id == "AgentR1/Terminal-v0" else 100  # each task of the former starts a shell
    most = most if FULL else most // 8
    for index in range(min(most, len(env.unwrapped.tasks[split]))):
        for seed in range(8 if env_id == "AgentR1/FrozenLake-v0" else 1):  # the best player falls into holes, too
            *_, (_, reward, terminated, truncated, info) = expert_episode(
                env, seed=seed, options={"split": split, "index": index}
            )
            if info["is_success"]:
                break
        assert info["is_success"] and terminated and not truncated, f"{split}/{index}"
        if env_id == "AgentR1/Bargain-v0":
            assert reward > 0  # two divide what there is
            continue
        if env_id == "AgentR1/Bandit-v0":
            continue  # the better arm pays by chance
        # The first reward term is the outcome itself; what stands behind it is for the way there.
        assert reward >= env.unwrapped.weights[next(iter(type(env.unwrapped).reward_weights))] > 0


# Parsers.


def wire_formats(env: Any) -> list[Any]:
    """One parser of each class for the tools of an environment; those that write no JSON take one argument each."""
    if any(len(tool.parameters["properties"]) > 1 for tool in env.tools.values()):
        return [HermesParser()]
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
            with pytest.raises(agent_gym.ConfigError, match="brings its own parser"):
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


# Hostile actions: whatever a policy writes, every environment answers it, by contract and at once.


@every_world
@pytest.mark.property
def test_hostile_actions_never_raise(env_id: str, tokenizer: Any) -> None:
    """By default with tokens alone: without them the checks of every environment play some, too."""
    for kwargs in ({"tokenizer": encoder_of(env_id, tokenizer)}, *([{}] if FULL else [])):
        env = gymnasium.make(env_id, **kwargs).unwrapped
        for name, hostile in HOSTILE.items():
            # A policy hands over the ids it sampled; encoding a megabyte would measure the tokenizer.
            action = Sampled(aimed(env, hostile), [7, 7, 7], [-0.5] * 3) if kwargs else aimed(env, hostile)
            started = time.process_time()
            log = play(env, [action, action], seed=0)
            assert time.process_time() - started < 5, f"a policy keeps the machine busy by {name}"
            check_returned(env, log)
            # Whatever came back can be stored and sent to another process.
            for _, *_, info in log:
                json.dumps(info, allow_nan=False, default=Image.url).encode("utf-8")
            if kwargs:
                ids = [i for *_, info in log for i in info["token_ids"]]
                check_tiling([span for *_, info in log for span in info["token_spans"]], len(ids))
                assert ids == env.transcript.token_ids
        check_returned(env, expert_episode(env, seed=1))  # the next episode knows nothing of it


@every_world
@pytest.mark.property
@settings(max_examples=40 if FULL else 15)
@given(
    action=st.one_of(
        st.text(max_size=200),
        st.lists(
            st.sampled_from(
                ["<tool_call>", "</tool_call>", '{"name": "TOOL", "arguments": ', '{"ARGUMENT": "', "1+", "}}"]
                + ["(", ")", '"', "####", "<answer>", "</answer>", "\\ud800", "72", "\n", "<|im_end|>", "é"]
            ),
            max_size=15,
        ).map("".join),
    )
)
def test_fuzzed_actions_never_raise(env_id: str, action: str) -> None:
    env = made(env_id)
    check_returned(env, play(env, [aimed(env, action)] * 2, seed=0))


@functools.cache
def made(env_id: str) -> Any:
    return gymnasium.make(env_id).unwrapped
