"""HotpotQA as an environment: what it shows and how much, what it pays for what, how it ends, its expert."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("bm25s")

from agent_gym import ConfigError  # noqa: E402
from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.envs.hotpotqa.scoring import REWARDS, TERMS, graded_answer, response_em, turn_format  # noqa: E402
from agent_gym.rewards import exact_match, f1_score  # noqa: E402
from agent_gym.search import Document, Hit, Retriever  # noqa: E402
from agent_gym.search.bm25 import BM25Retriever  # noqa: E402
from agent_gym.search.corpus import Corpus  # noqa: E402
from agent_gym.search.engines import Engines  # noqa: E402
from agent_gym.testing import expert_episode  # noqa: E402
from agent_gym.tools import HermesParser  # noqa: E402

TASK = {
    "question": "In which city was the director of the film Tobila born?",
    "answer": "Zanzibarrow",  # deliberately in no paragraph: it occurs nowhere unless it leaks
    "supporting_facts": [["Tobila", 0], ["Nuvi Roga", 0]],
    "context": [
        ["Tobila", ["Tobila is a film directed by Nuvi Roga.", " It is set in Dorema."]],
        ["Nuvi Roga", ["Nuvi Roga is a director born in Sagulo.", " Roga works for Pemi."]],
        ["Sagulo", ["Sagulo is a city: Goldwort."]],
        ["Pemi", ["Pemi is a company."]],
    ],
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
    assert last[4]["metrics"] == {"em": 1.0, "f1": 1.0, "sub_em": 1.0, "gold_recall": 1.0, "searches": 2.0}


@pytest.mark.parametrize(
    ("answer", "em", "f1", "sub_em", "formed"),
    [
        ("<answer>zanzibarrow</answer>", 1, 1, 1, 1),
        ("<answer>Zanzibarrow city</answer>", 0, 2 / 3, 1, 1),
        ("<answer>London</answer><answer>Zanzibarrow</answer>", 1, 1, 1, 0),
        ("<answer>Zanzibarrow</answer> I think", 1, 1, 1, 0),
        ("#### Zanzibarrow", 0, 0, 0, 0),  # only the tag counts
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


@pytest.mark.parametrize(
    ("reward", "right", "wrong", "bare", "stalled"),
    [("em", 1, 0, 0, 0), ("search_r1", 1, 0, 0, 0), ("steppo", 1, 0, 1, 0), ("agent_r1", 1, 0, -1, 0)],
)
def test_presets_in_an_episode(reward: str, right: int, wrong: int, bare: int, stalled: int) -> None:
    call, answer = "<think>hm</think>" + search("Tobila"), "<think>hm</think><answer>{}</answer>".format
    episodes = [[call, answer("Zanzibarrow")], [call, answer("Dorema")], ["Zanzibarrow"], [call] * 3]
    rewards = [[step[1] for step in play(make(reward=reward, max_turns=3), *actions)] for actions in episodes]
    assert rewards == [[0, right], [0, wrong], [bare], [0, 0, stalled]]
    weights = dict.fromkeys(make(reward=reward).weights, 0.0) | {"em": 0.5}
    assert play(make(reward=reward, reward_weights=weights), answer("Zanzibarrow"))[0][1] == 0.5


def test_a_prefilled_thought_counts_as_the_turns(tokenizer: Any) -> None:
    thinking = ChatRenderer(tokenizer)
    thinking.prefill = "<think>\n"  # what the templates of thinking models put in front of every turn
    for renderer, reward in ((thinking, 0.5), (ChatRenderer(tokenizer), -1.0)):
        ((_, got, *_),) = play(make(reward="agent_r1", tokenizer=renderer), "so</think><answer>Zanzibarrow</answer>")
        assert got == reward


@pytest.mark.parametrize("form", [{"protocol": "react"}, {"calls": "react"}])
def test_a_turn_of_react_that_goes_on_with_another_question_is_the_answer(form: dict[str, str]) -> None:
    turn = " I know.\nAction 1: Finish[{}]\nQuestion: Were A and B?\nThought 1: hm.\nAction 1: {}\n"
    for stated, em in (("Zanzibarrow", 1.0), ("Pemi", 0.0)):
        for behind in ("Search[A]", "Finish[Zanzibarrow]"):
            [(_, reward, terminated, _, info)] = play(make(**form), turn.format(stated, behind))
            assert (reward, terminated, info["metrics"]["em"]) == (em, True, em)


def test_calls_of_a_turn_are_one_search() -> None:
    recorder = Recorder([Document("a", "Tobila", "one"), Document("b", "", "two\nlines")])
    assert isinstance(recorder, Retriever)
    env = make(retriever=recorder, top_k=2)
    recorder = env._retriever  # gym.make may have copied it
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


@pytest.mark.parametrize("max_turns", [1, 2, 6])
@pytest.mark.parametrize("name", ["HotpotQA", "HotpotQA-ReAct"])
def test_expert_finishes_in_the_turns_it_has(name: str, max_turns: int) -> None:
    env = make(name, max_turns=max_turns)
    for index in range(12):
        _, *steps = expert_episode(env, seed=0, options={"split": "test", "index": index})
        titles = {title for title, _ in env.tasks["test"][index]["supporting_facts"]}
        info = steps[-1][-1]
        assert info["is_success"] and len(steps) == min(len(titles) + 1, max_turns)
        calls = sum(len(step[-1]["tool_calls"]) for step in steps)
        assert max_turns == 1 or (calls == len(titles) and info["metrics"]["gold_recall"] == 1.0)


def test_an_index_in_a_folder_is_opened_with_its_corpus(tmp_path: Path) -> None:
    corpus = Corpus.build(tmp_path / "corpus", [Document("1", "Tobila", "A film."), Document("2", "Pemi", "A firm.")])
    BM25Retriever(corpus).save(tmp_path / "index")
    env = make(retriever=str(tmp_path / "index"), corpus=str(tmp_path / "corpus"))
    assert play(env, search("film"))[0][0] == "[1] Tobila: A film."
    with pytest.raises(ConfigError, match="needs corpus="):
        make(retriever=str(tmp_path / "index"))


@pytest.mark.parametrize(
    "task",
    [{"question": "q"}, "q", {**TASK, "answer": {}}, {**TASK, "supporting_facts": [3]}, {**TASK, "context": [["A"]]}]
    + [{**TASK, "context": []}, {**TASK, "context": None}, {**TASK, "supporting_facts": [["Tobila", "0"]]}],
)
def test_a_task_of_another_shape_is_named(task: Any) -> None:
    with pytest.raises(ConfigError, match="context|names no answer|no column 'answer'|columns question, answer"):
        make().reset(options={"task": task})


def test_engines_are_made_once_and_forgotten_in_time() -> None:
    engines, made, barrier = Engines(maxsize=2), [], threading.Barrier(8)

    def get(name: str) -> Any:
        return engines.get(name, lambda: made.append(name) or Recorder())

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: (barrier.wait(), get("a"))[1], range(8)))) == 1
    for name in "bacab":
        get(name)
    assert made == ["a", "b", "c", "b"], "b was used longest ago when c came"


# What an answer is worth, by hand: the official metrics, and the published rewards of papers.


@pytest.mark.parametrize(
    ("prediction", "gold", "f1"),
    [
        ("yes it is", "yes", 0),  # a closed answer shares no words with a longer one
        ("noanswer", "no answer", 0),
        ("New New York", "New York", 0.8),
    ],
)
def test_official_answers(prediction: str, gold: str, f1: float) -> None:
    assert (exact_match(prediction, gold), f1_score(prediction, gold)[0]) == (0, pytest.approx(f1))


CALL = '<think>where?</think>\n<tool_call>{"name": "search"}</tool_call>'
GOOD = "<think>so</think> <answer>Paris</answer>"


@pytest.mark.parametrize(
    ("turns", "reward"),
    [
        ([GOOD], -1 + 0.5 + 1),  # no call: half of the format
        ([CALL, GOOD], -1 + 1 + 1),
        ([CALL, CALL, "Paris"], -1 + 1 + 0.2),  # and cannot be lost again; the answer is only somewhere in the turn
        ([CALL, CALL], -1 + 0.5),  # out of turns: the last block is a call and no answer
        ([CALL.replace("where", "Paris")], -1),  # the gold answer, but no format that would let it count
        (["<answer>Paris</answer>"], -1),  # no thought: no format, and the right answer is worth nothing
        ([CALL, GOOD.replace("Paris", "London") + "<answer>Paris</answer>"], -1 + 1 + 0.2),  # the first answer counts
    ],
)
def test_agent_r1_by_hand(turns: list[str], reward: float) -> None:
    found = [sum(TERMS[term](turns, [gold]) for term in REWARDS["agent_r1"]) for gold in ("Paris", "Par")]
    assert found == pytest.approx([reward] * 2), "a part of the answer is enough, so that unknown is right for no"


TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "Paris", " ", "\n", "x"]


@given(st.lists(st.lists(st.sampled_from(TAGS), max_size=9).map("".join), min_size=1, max_size=4))
def test_linear_scans_are_the_papers_regular_expressions(turns: list[str]) -> None:
    tags = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    formed = "^<think>(.*?)</think>(.*?)<{0}>(.*?)</{0}>$".format
    calls = [turn for turn in turns[:-1] if all(turn.count(tag) == 1 for tag in tags)]
    score = 0.5 * sum(bool(re.search(formed("tool_call"), turn, re.S)) for turn in calls)
    score = min(score + 0.5 * bool(re.search(formed("answer"), turns[-1], re.S)), 1.0)
    first = re.search(r"<answer>(.*?)</answer>", turns[-1], re.S)
    answer = 1.0 if first and "paris" in first[1].lower() else 0.2 * ("paris" in turns[-1].lower())
    assert turn_format(turns, ["Paris"]) == score
    assert graded_answer(turns, ["Paris"]) == (answer if score >= 0.5 else 0.0)
    # StepPO reads tags in any case.
    found = re.findall(r"<answer>(.*?)</answer>", turns[-1], re.S)
    em = max(exact_match((found[-1] if found else turns[-1]).strip(), gold) for gold in ("Rome", "Paris"))
    assert response_em(turns, ["Rome", "Paris"]) == response_em([turns[-1].upper()], ["Rome", "Paris"]) == em
