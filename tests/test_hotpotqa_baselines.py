"""HotpotQA's baselines: direct, naive RAG, ReAct. The same tasks, terms and limits, seen and called in other ways."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import pytest

pytest.importorskip("bm25s")

from test_hotpotqa_env import PROCESS, TASK, Recorder, play, search  # noqa: E402

from agent_gym.cli.main import main  # noqa: E402
from agent_gym.envs.hotpotqa.scoring import REWARDS  # noqa: E402
from agent_gym.search import Document  # noqa: E402
from agent_gym.search.base import TokenLimit  # noqa: E402

IDS = [f"AgentR1/HotpotQA-{name}v0" for name in ("Direct-", "NaiveRAG-", "ReAct-", "")]
DIRECT, RAG, REACT, TOOLS = IDS
PASSAGES = [Document("1", "Nuvi Roga", "Nuvi Roga is a director born in Sagulo."), Document("2", "Other", "Text.")]


def make(env_id: str, **kwargs: Any) -> Any:
    return gymnasium.make(env_id, **kwargs).unwrapped


def step(thought: str, *actions: str) -> str:
    return "\n".join([f"Thought: {thought}", *(f"Action: {action}" for action in actions)])


def opening(env: Any, task: Any = TASK) -> str:
    return env.reset(seed=0, options={"task": task})[1]["messages"][-1]["content"]


def test_what_each_setting_shows_before_the_first_turn() -> None:
    assert opening(make(DIRECT)) == opening(make(REACT)) == opening(make(TOOLS)) == TASK["question"]
    passages, _, question = opening(make(RAG, top_k=2)).rpartition("\n\n")
    assert question == TASK["question"]
    assert [line.split(":")[0] for line in passages.split("\n")] == ["[1] Tobila", "[2] Nuvi Roga"]
    prompts = {env_id: make(env_id).system_prompt for env_id in IDS}
    assert len(set(prompts.values())) == 4 and "passages" in prompts[RAG] and "search" not in prompts[DIRECT]
    both = make(TOOLS, retrieve_question=True).system_prompt
    assert both.startswith(prompts[TOOLS]) and "passages" in both


def test_the_one_turn_settings_take_every_turn_as_the_answer() -> None:
    for env_id, recall in ((DIRECT, 0.0), (RAG, 1.0)):
        for action, success in (("<answer>the Zanzibarrow</answer>", True), (search("Tobila"), False)):
            ((observation, reward, terminated, _, info),) = play(make(env_id), action)
            assert (observation, reward, terminated, info["is_success"]) == ("", float(success), True, success)
            assert info["metrics"]["gold_recall"] == recall and info["metrics"]["searches"] == 0.0
            assert info["metrics"]["f1"] == float(success) and info["tool_calls"] == []


def test_passages_keep_to_their_limits(tokenizer: Any) -> None:
    words = Recorder([Document(str(n), f"Title {n}", "many words " * 200) for n in range(5)])
    for kwargs in ({}, {"tokenizer": tokenizer}):
        for limit in (1, 9, 60, 1000):
            env = make(RAG, retriever=words, max_passage_tokens=30, max_observation_tokens=limit, top_k=5, **kwargs)
            passages = opening(env).removesuffix(f"\n\n{TASK['question']}")
            count = TokenLimit(env.renderer).count
            *whole, last = passages.split("\n")
            assert count(passages) <= limit and all(count(line) <= 30 for line in whole)
    assert opening(make(RAG, retriever=Recorder())).startswith("No results.\n\n")


def test_searching_pays_nothing_for_what_stands_before_the_question() -> None:
    env = make(TOOLS, retrieve_question=True, retriever=Recorder(PASSAGES), reward_weights=PROCESS)
    first, second = play(env, search("Nuvi Roga"), search("Nuvi Roga"))
    assert first[4]["reward_terms"] == {"new_gold": 0.0, "fact_recall": 0.0, "repeat": 0.0}
    assert first[4]["metrics"] == {"gold_recall": 0.5, "searches": 1.0}
    assert second[4]["reward_terms"]["repeat"] == -100.0


def test_a_react_episode() -> None:
    env = make(REACT, tools=("search", "lookup"), top_k=1)
    _, info = env.reset(seed=0, options={"task": TASK})
    assert info["stop"] == ["Observation:"] and len(info["tools"]) == 2
    assert "Search[query]" in info["messages"][0]["content"] and "Lookup[title]" in info["messages"][0]["content"]
    first = env.step(step("The film.", "Search[Tobila]") + "\nObservation: [1] Nuvi Roga: made up")
    second = env.step(step("Two things.", "lookup[nuvi roga]", "Search[Pemi]"))
    third = env.step(step("Hm.", "Fly[home]"))
    last = env.step(step("So.", "Finish[the Zanzibarrow!]"))
    assert first[0] == "Observation: [1] Tobila: Tobila is a film directed by Nuvi Roga. It is set in Dorema."
    found = [line.split(" is ")[0] for line in second[0].split("\n")]
    assert found == ["Observation: [1] Nuvi Roga: Nuvi Roga", "Observation: [1] Pemi: Pemi"]
    assert [message["role"] for message in second[4]["messages"]] == ["assistant", "user"]
    assert [call["name"] for call in second[4]["tool_calls"]] == ["lookup", "search"]
    assert third[0] == "Observation: Error: unknown tool 'Fly'; available: search, lookup" and third[4]["error"]
    assert last[:4] == ("", 1.0, True, False) and last[4]["is_success"]
    assert [each[4]["metrics"]["gold_recall"] for each in (first, second, last)] == [0.5, 1.0, 1.0]
    assert last[4]["metrics"]["searches"] == 3.0


@pytest.mark.parametrize("reward", REWARDS)
def test_both_formats_earn_the_same(reward: str) -> None:
    """Turn by turn and term by term, whether the answer is right, wrong, badly formed, or never comes."""
    think, weights = "<think>hm</think>", {**PROCESS, "f1": 3.0, "sub_em": 5.0, "format": 7.0}
    answers = {
        step("hm", "Finish[Zanzibarrow]"): f"{think}<answer>Zanzibarrow</answer>",
        step("hm", "Finish[Dorema Zanzibarrow]"): f"{think}<answer>Dorema Zanzibarrow</answer>",
        step("hm", "Finish[x]", "Finish[Zanzibarrow]"): f"{think}<answer>x</answer> Finish[Zanzibarrow]",
        "Finish[Zanzibarrow] I think": "<answer>Zanzibarrow</answer> I think",
        "Zanzibarrow": "Zanzibarrow",
        step("hm", "Search[Tobila]"): think + search("Tobila"),
    }
    for acted, called in answers.items():
        acts = [step("hm", "Search[Tobila]"), step("hm", "Search[Pemi]", "Search[tobila]"), acted]
        calls = [think + search("Tobila"), think + search("Pemi", "tobila"), called]
        settings = {"reward": reward, "reward_weights": weights, "max_turns": 3, "top_k": 1}
        react, hermes = play(make(REACT, **settings), *acts), play(make(TOOLS, **settings), *calls)
        for one, other in zip(react, hermes, strict=True):
            assert one[4]["reward_terms"] == pytest.approx(other[4]["reward_terms"]), acted
            assert one[1:4] == (pytest.approx(other[1]), *other[2:4]) and one[4]["metrics"] == other[4]["metrics"]


def test_a_template_that_prints_tools_is_not_asked_to_in_react(tokenizer: Any) -> None:
    """Or the policy would read of two formats; and an observation is no answer to a call of the template's own form."""
    shown = {}
    for env_id in (TOOLS, REACT):
        env = make(env_id, tokenizer=tokenizer)
        _, info = env.reset(seed=0, options={"task": TASK})
        answer = env.step(search("Tobila") if env_id == TOOLS else "Action: Search[Tobila]")[4]
        shown[env_id] = tokenizer.decode([*info["token_ids"], *answer["token_ids"]])
        assert [tool["function"]["name"] for tool in info["tools"]] == ["search"]
    assert '"parameters"' in shown[TOOLS] and "<tool_response>" in shown[TOOLS]
    assert '"parameters"' not in shown[REACT] and "tool_" not in shown[REACT]
    assert "<|im_start|>user\nObservation: [1] Tobila" in shown[REACT]


@pytest.mark.parametrize("env_id", IDS)
def test_the_expert_who_answers_at_once_says_what_can_be_read(env_id: str) -> None:
    env = make(env_id, top_k=2)
    opening(env)
    answer = env.expert_action("direct")
    assert ("Zanzibarrow" if env_id == RAG else "unknown") in answer
    assert env.step(answer)[4]["is_success"] is (env_id == RAG)
    env.reset(seed=0, options={"split": "test", "index": 0})  # where a search for the question does not suffice
    assert "unknown" in env.expert_action("direct")


def test_the_table_of_a_paper_is_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    metrics = ["env/gold_recall", "tool/search/calls"]
    assert main(["eval", *IDS, "AgentR1/GSM8K-v0", "--expert", "--episodes", "8", "--metrics", *metrics]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    columns = dict(zip(re.split("  +", head), re.split("  +", row), strict=True))
    assert {"HotpotQA-Direct EM", "HotpotQA-Direct F1", "HotpotQA-ReAct tool/search/calls", "GSM8K"} < set(columns)
    assert "GSM8K EM" not in columns and columns["HotpotQA EM"].startswith("100.0%")
    assert "HotpotQA-Direct tool/search/calls" not in columns, "no tool, no column"
    recalls = [float(columns[f"HotpotQA{name} env/gold_recall"].split()[0]) for name in ("-Direct", "-NaiveRAG", "")]
    assert recalls[0] == 0 < recalls[1] < 1 == recalls[2]
