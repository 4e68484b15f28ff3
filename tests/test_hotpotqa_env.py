"""HotpotQA as an environment: what it shows and how much, what it pays and for what, how it ends, its expert."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import pytest

pytest.importorskip("bm25s")

from agent_gym import ConfigError  # noqa: E402
from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.search import Document, Hit, Retriever  # noqa: E402
from agent_gym.search.bm25 import BM25Retriever  # noqa: E402
from agent_gym.search.corpus import Corpus  # noqa: E402
from agent_gym.search.engines import Engines  # noqa: E402
from agent_gym.tools import HermesParser  # noqa: E402

CONTEXT = [
    ["Tobila", ["Tobila is a film directed by Nuvi Roga.", " It is set in Dorema."]],
    ["Nuvi Roga", ["Nuvi Roga is a director born in Sagulo.", " Roga works for Pemi."]],
    ["Sagulo", ["Sagulo is a city: Goldwort."]],
    ["Pemi", ["Pemi is a company."]],
]
TASK = {
    "question": "In which city was the director of the film Tobila born?",
    "answer": "Zanzibarrow",  # deliberately in no paragraph: it occurs nowhere unless it leaks
    "supporting_facts": [["Tobila", 0], ["Nuvi Roga", 0]],
    "context": CONTEXT,
}
PROCESS = {"new_gold": 1.0, "fact_recall": 10.0, "repeat": 100.0}


def make(name: str = "HotpotQA", **kwargs: Any) -> Any:
    return gymnasium.make(f"AgentR1/{name}-v0", **kwargs).unwrapped


def search(*queries: Any, tool: str = "search", argument: str = "query") -> str:
    return "".join(HermesParser().render(tool, {argument: query}) for query in queries)


def play(env: Any, *actions: str, task: Any = TASK) -> list[tuple[Any, ...]]:
    env.reset(seed=0, options={"task": task})
    return [env.step(action) for action in actions]


class Recorder:
    """A retriever that keeps what it is asked and finds the same documents for everything."""

    def __init__(self, documents: Sequence[Document] = ()) -> None:
        self.documents = list(documents)
        self.asked: list[tuple[list[str], int]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.asked.append((list(queries), k))
        return [[Hit(document, 1.0) for document in self.documents[:k]] for _ in queries]


def test_an_episode() -> None:
    env = make(render_mode="ansi")
    observation, info = env.reset(seed=0, options={"task": TASK})
    assert observation.endswith(TASK["question"])
    assert [tool["function"]["name"] for tool in info["tools"]] == ["search"]
    first, second = env.step("First the film. " + search("Tobila")), env.step(search("Nuvi Roga"))
    assert first[0].split("\n")[0] == "[1] Tobila: Tobila is a film directed by Nuvi Roga. It is set in Dorema."
    assert second[0].startswith("[1] Nuvi Roga: Nuvi Roga is a director born in Sagulo. Roga works for Pemi.\n[2] ")
    assert first[4]["metrics"] == {"gold_recall": 0.5, "searches": 1.0}
    last = env.step("So it is <answer>the Zanzibarrow!</answer>")
    assert last[:4] == ("", 1.0, True, False) and last[4]["is_success"] is True
    assert last[4]["reward_terms"] == {"em": 1.0, "f1": 0.0, "sub_em": 0.0, "format": 0.0}
    assert last[4]["metrics"] == {"em": 1.0, "f1": 1.0, "sub_em": 1.0, "gold_recall": 1.0, "searches": 2.0}


@pytest.mark.parametrize(
    ("answer", "em", "f1", "sub_em", "formed"),
    [
        ("<answer>zanzibarrow</answer>", 1, 1, 1, 1),
        ("<answer>Zanzibarrow city</answer>", 0, 2 / 3, 1, 1),
        ("<answer>London</answer><answer>Zanzibarrow</answer>", 1, 1, 1, 0),
        ("<answer>Zanzibarrow</answer> I think", 1, 1, 1, 0),
        ("#### Zanzibarrow", 0, 0, 0, 0),  # only the tag counts
        ("Zanzibarrow", 0, 0, 0, 0),
        ("", 0, 0, 0, 0),
    ],
)
def test_answers(answer: str, em: float, f1: float, sub_em: float, formed: float) -> None:
    env = make(reward_weights={"f1": 10.0, "sub_em": 100.0, "format": 1000.0})
    ((_, reward, terminated, _, info),) = play(env, answer)
    assert reward == pytest.approx(em + 10 * f1 + 100 * sub_em + 1000 * formed)
    assert terminated and info["is_success"] is bool(em), "only EM is success"


def test_process_terms_are_paid_once() -> None:
    env = make(top_k=1, reward_weights=PROCESS)
    steps = play(env, search("Tobila"), search("Pemi", "tobila "), search("Nuvi Roga"), search("Nuvi Roga") * 2)
    terms = [step[4]["reward_terms"] for step in steps]
    assert [term["new_gold"] for term in terms] == [0.5, 0.0, 0.5, 0.0]
    assert [term["fact_recall"] for term in terms] == [5.0, 0.0, 5.0, 0.0]
    assert [term["repeat"] for term in terms] == [0.0, -50.0, 0.0, -100.0]  # case and spaces do not make a query new
    assert [step[4]["process_reward"] for step in steps] == [step[1] for step in steps]
    assert [step[4]["metrics"]["gold_recall"] for step in steps] == [0.5, 0.5, 1.0, 1.0]
    (step,) = play(env, search("Tobila", "Tobila"))
    assert step[4]["reward_terms"]["repeat"] == -50.0, "a new episode starts from nothing, and a turn can repeat itself"


def test_process_terms_cannot_be_had_by_writing_titles_oneself() -> None:
    fake = "\n[1] Tobila: Tobila is a film directed by Nuvi Roga."
    env = make(reward_weights=PROCESS, tools=("search", "lookup"))
    named = HermesParser().render(fake, {})
    for action in (named, search(fake, tool="lookup", argument="title"), search("x", argument=fake), search(3)):
        (step,) = play(env, action)
        assert step[1] == 0.0 and step[4]["error"] and step[4]["metrics"]["gold_recall"] == 0.0


def test_what_was_cut_away_was_not_shown() -> None:
    env = make(top_k=1, reward_weights=PROCESS, max_passage_tokens=5)
    (step,) = play(env, search("Tobila"))
    assert step[0] == "[1] Tobila: Tob..."
    assert step[4]["reward_terms"] == {"new_gold": 0.5, "fact_recall": 0.0, "repeat": 0.0}


def test_presets_in_an_episode() -> None:
    think = "<think>hm</think>"
    good, wrong = think + "<answer>Zanzibarrow</answer>", think + "<answer>Dorema</answer>"
    rewards = {}
    for reward in ("em", "search_r1", "steppo", "agent_r1"):
        env = make(reward=reward, max_turns=3)
        for name, actions in {
            "right": [think + search("Tobila"), good],
            "wrong": [think + search("Tobila"), wrong],
            "bare": ["Zanzibarrow"],
            "stalled": [think + search("Tobila")] * 3,
        }.items():
            steps = play(env, *actions)
            assert all(step[1] == 0.0 for step in steps[:-1])
            rewards[reward, name] = steps[-1][1]
    assert [rewards["em", name] for name in ("right", "wrong", "bare", "stalled")] == [1, 0, 0, 0]
    assert [rewards["search_r1", name] for name in ("right", "wrong", "bare", "stalled")] == [1, 0, 0, 0]
    assert [rewards["steppo", name] for name in ("right", "wrong", "bare", "stalled")] == [1, 0, 1, 0]
    assert [rewards["agent_r1", name] for name in ("right", "wrong", "bare", "stalled")] == [1, 0, -1, 0]
    env = make(reward="agent_r1", reward_weights={"floor": 0.0})
    assert play(env, good)[0][4]["reward_terms"]["graded_answer"] == 1.0 and play(env, good)[0][1] == 1.5


def test_a_prefilled_thought_counts_as_the_turns(tokenizer: Any) -> None:
    thinking = ChatRenderer(tokenizer)
    thinking.prefill = "<think>\n"  # what the templates of thinking models put in front of every turn
    for renderer, reward in ((thinking, 0.5), (ChatRenderer(tokenizer), -1.0)):
        ((_, got, *_),) = play(make(reward="agent_r1", tokenizer=renderer), "so</think><answer>Zanzibarrow</answer>")
        assert got == reward


def test_calls_of_a_turn_are_one_search() -> None:
    recorder = Recorder([Document("a", "Tobila", "one"), Document("b", "", "two\nlines")])
    assert isinstance(recorder, Retriever)
    env = make(retriever=recorder, top_k=2)
    recorder = env._searched.retriever  # gym.make may have copied it
    (step,) = play(env, search("x", "y", "", "x" * 10_000))
    assert recorder.asked == [(["x", "y", "", "x" * 10_000], 2)]
    assert [message["content"] for message in step[4]["messages"][1:]] == ["[1] Tobila: one\n[2] two lines"] * 4
    assert step[4]["metrics"]["searches"] == 4.0


def test_lookup() -> None:
    env = make(tools=("search", "lookup"))
    (step,) = play(env, search("nuvi  ROGA", "Nuvi", tool="lookup", argument="title"))
    found, missing = (message["content"] for message in step[4]["messages"][1:])
    assert found == "[1] Nuvi Roga: Nuvi Roga is a director born in Sagulo. Roga works for Pemi."
    assert missing == "Error: no paragraph has the title 'Nuvi'"


def test_gold_is_nowhere() -> None:
    """In nothing that is returned, whatever is searched for; attributes of the environment are not returned."""
    tries = ["", search("Zanzibar"), search(TASK["question"]), "<answer>5</answer>", "<tool_call>"]
    tries += ["Action: Search[Zanzibar]", "Finish[5]", "Action:"]
    for kwargs in ({}, {"reward": "agent_r1", "name": "HotpotQA-ReAct"}, {"reward_weights": PROCESS}):
        env = make(render_mode="ansi", **kwargs)
        for action in tries:
            returned = [env.reset(seed=0, options={"task": TASK}), env.step(action), env.render()]
            text = json.dumps(returned, default=str)
            assert "Zanzibarrow" not in text and "supporting" not in text


@pytest.mark.parametrize("max_turns", [1, 2, 3, 6])
@pytest.mark.parametrize("name", ["HotpotQA", "HotpotQA-ReAct"])
def test_expert_finishes_in_the_turns_it_has(name: str, max_turns: int) -> None:
    env = make(name, max_turns=max_turns)
    for index in range(12):
        env.reset(seed=0, options={"split": "test", "index": index})
        over, turns, calls = False, 0, 0
        while not over:
            action = env.expert_action()
            assert name == "HotpotQA" or action.startswith("Thought: ")
            *_, terminated, truncated, info = env.step(action)
            over, turns, calls = terminated or truncated, turns + 1, calls + len(info["tool_calls"])
        titles = {title for title, _ in env.tasks["test"][index]["supporting_facts"]}
        assert terminated and info["is_success"] and turns == min(len(titles) + 1, max_turns)
        if max_turns > 1:
            assert calls == len(titles) and info["metrics"]["gold_recall"] == 1.0


def test_an_index_in_a_folder_is_opened_with_its_corpus(tmp_path: Path) -> None:
    corpus = Corpus.build(
        tmp_path / "corpus", [Document("1", "Tobila", "A film."), Document("2", "Pemi", "A company.")]
    )
    BM25Retriever(corpus).save(tmp_path / "index")
    settings = {"retriever": str(tmp_path / "index"), "corpus": str(tmp_path / "corpus")}
    assert play(make(**settings), search("film"))[0][0] == "[1] Tobila: A film."
    assert make(**settings)._searched.retriever is make(**settings)._searched.retriever
    with pytest.raises(ConfigError, match="needs corpus="):
        make(retriever=str(tmp_path / "index"))


@pytest.mark.parametrize(
    "task",
    [{"question": "q"}, "q", {**TASK, "answer": 3}, {**TASK, "supporting_facts": [3]}, {**TASK, "context": [["A"]]}]
    + [{**TASK, "context": []}, {**TASK, "context": None}, {**TASK, "supporting_facts": [["Tobila", "0"]]}],
)
def test_a_task_of_another_shape_is_named(task: Any) -> None:
    with pytest.raises(ConfigError, match="context"):
        make().reset(options={"task": task})


def test_engines_are_made_once_and_forgotten_in_time() -> None:
    engines, made, barrier = Engines(maxsize=2), [], threading.Barrier(8)

    def make_one(name: str) -> Any:
        made.append(name)
        return Recorder()

    def ask(_: int) -> Any:
        barrier.wait()
        return engines.get("a", lambda: make_one("a"))

    with ThreadPoolExecutor(8) as pool:
        assert len({id(engine) for engine in pool.map(ask, range(8))}) == 1
    for name in "bacab":
        engines.get(name, lambda name=name: make_one(name))
    assert made == ["a", "b", "c", "b"], "b was used longest ago when c came"
