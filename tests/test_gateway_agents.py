"""How agents run and end: functions and programs, results and rewards, worlds, and what happens when one dies."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gateway_tools import play_agent, run
from process_tools import until
from rollout_tools import roll, scripted

from agent_gym.dependencies import install_command
from agent_gym.errors import ConfigError
from agent_gym.evaluate import make_specs
from agent_gym.gateway import agent_env, place_of, thing_at
from agent_gym.judges.questions import Case
from agent_gym.rollout import Budget, from_record, replay, to_record
from agent_gym.rollout.trajectories import to_line
from agent_gym.viewer.page import opening_of

pytest.importorskip("openai")

ASK = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
# Programs that ask, without any package.
ASKS = """
import json, os, sys, urllib.request
def ask(words):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": words}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
"""
ONCE = (
    ASKS
    + """
text = ask(sys.argv[1])
open("note.txt", "w").write(text)
print("got", text)
"""
)
FOREVER = (
    ASKS
    + """
open(sys.argv[1], "w").write(str(os.getpid()))
words = "a"
while True:
    ask(words)
    words += " a" * int(sys.argv[2])
"""
)


async def polite(client: Any, task: Any) -> str:
    answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": task["question"]}])
    return str(answer.choices[0].message.content)


def long_words(task: Any, result: str, transcript: Any) -> float:
    return float(len(result)) / 10


def test_the_reward_sees_task_result_and_transcript(tokenizer: Any) -> None:
    seen: list[Any] = []

    def reward(*about: Any) -> bool:
        seen.append(about)
        return True

    (episode,) = play_agent(polite, tokenizer, [{"question": "Who?"}], reward, scripted(tokenizer, lambda e: "me"))
    talk = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "me"}]
    assert seen == [({"question": "Who?"}, "me", talk)]
    assert (episode.reward, episode.success, episode.terminated) == (1.0, True, True)
    assert episode.messages == talk


def test_the_transcript_has_each_message_of_conversations_in_turns_once(tokenizer: Any) -> None:
    def agent(client: Any, task: Any) -> None:
        talks: dict[str, list[Any]] = {"a": [], "b": []}
        for number in range(3):
            for name, talk in talks.items():
                talk.append({"role": "user", "content": f"{name}{number}"})
                answer = client.chat.completions.create(model="m", messages=talk).choices[0].message.content
                talk.append({"role": "assistant", "content": f"{answer} "})

    seen: list[Any] = []
    policy = scripted(tokenizer, lambda episode: f"Turn {len(episode.steps)}")
    (episode,) = play_agent(agent, tokenizer, [{}], lambda *about: seen.append(about[2]) or 1.0, policy)
    said = [f"{name}{number}" for number in range(3) for name in "ab"]
    talk = [text for k, asked in enumerate(said) for text in (asked, f"Turn {k}")]
    assert [one["content"] for one in episode.messages] == talk == [one["content"] for one in seen[0]]
    assert len(episode.rows) == 2


def test_examples_in_the_first_prompt_are_no_turns_of_the_policy(tokenizer: Any) -> None:
    talk = [("system", "Be brief."), ("user", "1+1?"), ("assistant", "2"), ("user", "2+2?")]
    opening = [{"role": role, "content": text} for role, text in talk]

    def agent(client: Any, task: Any) -> None:
        answer = client.chat.completions.create(model="m", messages=opening).choices[0].message.content
        more = [{"role": "assistant", "content": answer}, {"role": "user", "content": "Sure?"}]
        client.chat.completions.create(model="m", messages=[*opening, *more])

    (episode,) = play_agent(agent, tokenizer, [{}], policy=scripted(tokenizer, lambda episode: "4"))
    record = json.loads(to_line(to_record(episode)))
    assert episode.initial_messages == from_record(record).initial_messages == list(opening_of(record)) == opening
    case = Case.of(episode)
    assert case.opening[-1] == ("user", "2+2?"), "what a judge sees"
    assert [turn.action for turn in case.turns] == ["4", "4"]
    assert replay(record, trusted=True) == []


def test_what_an_agent_does_to_its_task_stays_in_its_episode(tokenizer: Any) -> None:
    """The members of a group share a task, and an agent may well go on with the conversation that it found there."""
    lengths: list[int] = []

    def agent(client: Any, task: Any) -> str:
        lengths.append(len(task["messages"]))
        answer = client.chat.completions.create(model="m", messages=task["messages"])
        task["messages"] += [{"role": "assistant", "content": answer.choices[0].message.content}]
        return str(task.pop("answer"))

    rows = [{"messages": [{"role": "user", "content": "a"}], "answer": "b"}]
    for _ in range(2):
        (episode,) = play_agent(agent, tokenizer, rows)
        assert episode.failure is None
    assert lengths == [1, 1] and rows == [{"messages": [{"role": "user", "content": "a"}], "answer": "b"}]


def test_functions_of_modules_have_names_and_others_are_kept() -> None:
    assert place_of(math.sqrt) == "math:sqrt" and thing_at("os:path.join") is os.path.join
    assert place_of(polite) == f"{__name__}:polite"
    local = place_of(lambda: 1)
    assert local.startswith("object:") and thing_at(local)() == 1
    for wrong in ("math", "math:nothing", "no_such_module:x", "object:999999"):
        with pytest.raises(ConfigError):
            thing_at(wrong)
    rows = [{"question": "x"}]
    assert agent_env(polite, rows)[1]["tasks"] == agent_env(polite, rows)[1]["tasks"]


def test_a_program_gets_what_its_command_names_and_nothing_else(tokenizer: Any, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(ONCE)
    folders: list[Path] = []

    def reward(task: Any, result: Any, transcript: Any) -> float:
        folders.append(result.folder)
        return float((result.folder / "note.txt").read_text() == "fine" and result.text == "got fine\n")

    task = {"question": "How are you; rm -rf $HOME?", "answer": "secret"}
    command = [sys.executable, str(script), "{question}"]
    (episode,) = play_agent(command, tokenizer, [task], reward, scripted(tokenizer, lambda e: "fine"))
    assert episode.reward == 1.0 and episode.messages[0]["content"] == task["question"]
    assert not folders[0].exists()
    command = [sys.executable, "-c", "import os, sys; sys.exit('secret' in str(os.environ) + str(sys.argv))"]
    (episode,) = play_agent(command, tokenizer, [task])
    assert episode.failure and "exit code" not in episode.failure.message  # it ended well, without a request


@pytest.mark.parametrize(
    "code, reason",
    [
        (ONCE + "sys.exit('out of luck')", "exit code 1: out of luck"),
        (ONCE + "os.kill(os.getpid(), 9)", "killed by signal 9"),
        ("raise SystemExit(3)", "before its first request"),
    ],
)
def test_a_program_that_dies_fails_its_episode(tokenizer: Any, code: str, reason: str) -> None:
    (episode,) = play_agent([sys.executable, "-c", code, "{question}"], tokenizer, [{"question": "q"}])
    assert episode.failure and reason in episode.failure.message and math.isnan(episode.reward)


def test_a_function_that_raises_fails_its_episode_alone(tokenizer: Any) -> None:
    async def agent(client: Any, task: Any) -> None:
        await client.chat.completions.create(**ASK)
        if task["bad"]:
            raise LookupError("lost")

    good, bad = play_agent(agent, tokenizer, [{"bad": False}, {"bad": True}])
    assert good.reward == 1.0 and good.failure is None
    assert bad.failure and "LookupError: lost" in bad.failure.message and "test_gateway_agents" in bad.failure.where


def test_without_what_serves_agents_the_extra_is_named() -> None:
    code = "import sys; sys.modules['starlette'] = None; import agent_gym.gateway.env"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert f"ConfigError: this needs the package 'starlette': {install_command('serve')}" in done.stderr


def test_an_async_function_in_a_plain_one_is_named_as_the_cause(tokenizer: Any) -> None:
    async def agent(client: Any, task: Any, words: str) -> None:
        await client.chat.completions.create(**ASK)

    (episode,) = play_agent(lambda client, task: agent(client, task, "a"), tokenizer, [{}])
    assert episode.failure and "a coroutine, which nothing awaits" in episode.failure.message


def test_a_reward_that_is_no_number_fails_the_episode(tokenizer: Any) -> None:
    for reward in (lambda *_: math.nan, lambda *_: 1 / 0):
        (episode,) = play_agent(polite, tokenizer, [{"question": "q"}], reward)
        assert episode.failure and math.isnan(episode.reward)


def test_an_agent_that_is_silent_fails_its_episode_and_is_stopped(tokenizer: Any) -> None:
    stopped: list[str] = []

    async def agent(client: Any, task: Any) -> None:
        try:
            await client.chat.completions.create(**ASK)
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            stopped.append("agent")
            raise

    (episode,) = play_agent(agent, tokenizer, [{}], patience_s=0.3)
    assert episode.failure and "0.3 s" in episode.failure.message
    until(lambda: stopped)


@pytest.mark.parametrize("limit", ["turns", "tokens"])
def test_a_limit_stops_the_agent_and_keeps_the_episode(tokenizer: Any, tmp_path: Path, limit: str) -> None:
    limits = {"turns": Budget(max_turn_tokens=5, max_turns=3), "tokens": Budget(max_turn_tokens=5, max_tokens=200)}
    more = "0" if limit == "turns" else "60"
    command = [sys.executable, "-c", FOREVER, str(tmp_path / "pid"), more]
    (episode,) = play_agent(command, tokenizer, [{}], budget=limits[limit])
    assert episode.failure is None and episode.truncated and episode.truncation == limit
    assert episode.steps and episode.reward == 0.0
    pid = (tmp_path / "pid").read_text()
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_key_is_good_for_its_episode_only(tokenizer: Any) -> None:
    import openai

    keys: list[tuple[str, str]] = []

    def agent(client: Any, task: Any) -> str:
        keys.append((str(client.base_url), client.api_key))
        with pytest.raises(openai.AuthenticationError):
            client.with_options(base_url=str(client.base_url).replace(client.api_key, "guess")).chat.completions.create(
                **ASK
            )
        for url, key in keys[:-1]:
            with pytest.raises(openai.AuthenticationError):
                client.with_options(base_url=url, api_key=key).chat.completions.create(**ASK)
        with pytest.raises(openai.NotFoundError, match="chat/completions"):
            client.embeddings.create(model="m", input="x")
        return str(client.models.list().data[0].id + client.chat.completions.create(**ASK).choices[0].message.content)

    for _ in range(2):
        episode, result = run(agent, tokenizer, ["!"])
        assert episode.failure is None and result == "policy!"
    assert len({key for _, key in keys}) == 2 and min(len(key) for _, key in keys) >= 20


def test_mistakes_are_found_before_an_episode(tokenizer: Any) -> None:
    for wrong in (
        {"agent": "nowhere:x", "tasks": [{}], "reward": long_words},
        {"agent": polite, "tasks": [{}]},
        {"agent": polite},
        {"agent": polite, "tasks": [{}], "reward": long_words, "world": "AgentR1/GSM8K-v0"},
        {"agent": polite, "tasks": "missing.jsonl", "reward": long_words},
        {"agent": polite, "tasks": [{}], "reward": long_words, "colour": "red"},
        {"agent": 5, "tasks": [{}], "reward": long_words},
        {"agent": ["no-such-program"], "tasks": [{}], "reward": long_words},
        {"agent": ["echo", "{query}"], "tasks": [{}], "reward": long_words},
    ):
        with pytest.raises(ConfigError):
            env_id, kwargs = agent_env(**wrong)
            roll(tokenizer, make_specs(env_id, kwargs, split="train"))
    with pytest.raises(ConfigError, match="append"):
        env_id, kwargs = agent_env(_twice, [{}], long_words)
        roll(tokenizer, make_specs(env_id, kwargs, split="train"), lambda e: "x", context="window:1")


async def _twice(client: Any, task: Any) -> str:
    for _ in range(3):
        await client.chat.completions.create(**ASK)
    return ""
