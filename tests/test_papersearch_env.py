"""Paper search as an environment: what it shows and how much, what it pays and for what, how it ends, its expert."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import gymnasium
import pytest

pytest.importorskip("bm25s")

import agent_gym  # noqa: E402
from agent_gym import ConfigError  # noqa: E402
from agent_gym.envs.papersearch.tools import NO_CITATIONS, listed  # noqa: E402
from agent_gym.testing import expert_episode  # noqa: E402
from agent_gym.tools import HermesParser  # noqa: E402


def paper(number: int, title: str, *references: int, abstract: str = "") -> dict[str, Any]:
    return {
        "paper_id": f"p{number}",
        "title": title,
        "abstract": abstract,
        "year": 2000 + number,
        "authors": ["Nuvi Roga", "Pemi Dalo"],
        "references": [f"p{reference}" for reference in references],
    }


CORPUS = [
    paper(1, "Tobila: a method", abstract="We introduce\nTobila."),
    paper(2, "Sagulo: a task", 1),
    paper(3, "Tobila for Sagulo", 1, 2, abstract="It finds more of what was lost."),
    paper(4, "A case study", 1, 2, 3),
    paper(5, "Better than before", 1, 2),
    paper(6, "Unrelated work", abstract="On fish."),
    paper(7, "Tobila and Sagulo: a survey", 1, 2, 3, 4, 5, abstract="It covers what was published until 2006."),
]
TASK = {"question": "Which papers apply Tobila to Sagulo?", "papers": ["p3", "p4", "p5"], "corpus": CORPUS}
PROCESS = {"found_recall": 1.0, "found_precision": 10.0, "repeat": 100.0}


def make(**kwargs: Any) -> Any:
    return gymnasium.make("AgentR1/PaperSearch-v1", **kwargs).unwrapped


def search(*queries: Any, argument: str = "query") -> str:
    return "".join(HermesParser().render("search", {argument: query}) for query in queries)


def expand(*ids: Any, argument: str = "paper_id") -> str:
    return "".join(HermesParser().render("expand", {argument: one}) for one in ids)


def play(env: Any, *actions: str, task: Any = TASK) -> list[tuple[Any, ...]]:
    env.reset(seed=0, options={"task": task})
    return [env.step(action) for action in actions]


def answer(*ids: str) -> str:
    return f"<answer>{', '.join(ids)}</answer>"


def test_an_episode() -> None:
    env = make(top_k=3)
    observation, info = env.reset(seed=0, options={"task": TASK})
    assert observation.endswith(TASK["question"])
    assert [tool["function"]["name"] for tool in info["tools"]] == ["search", "expand"]
    first = env.step("By name. " + search("Tobila"))
    assert first[0].split("\n") == [
        "[p1] Tobila: a method (Roga et al., 2001): We introduce Tobila.",
        "[p3] Tobila for Sagulo (Roga et al., 2003): It finds more of what was lost.",
        "[p7] Tobila and Sagulo: a survey (Roga et al., 2007): It covers what was published until 2006.",
    ]
    assert first[4]["metrics"] == {"gold_recall": 1 / 3, "papers": 3.0, "searches": 1.0, "expansions": 0.0}
    second = env.step(expand("p3") + expand("[p1]"))
    assert [message["content"] for message in second[4]["messages"][1:]] == [
        "p3 cites:\n[p1] Tobila: a method (seen)\n[p2] Sagulo: a task (Roga et al., 2002)\n"
        "p3 is cited by:\n[p4] A case study (Roga et al., 2004)\n1 more: expand p3 again.",
        "p1 is cited by:\n[p2] Sagulo: a task (seen)\n[p3] Tobila for Sagulo (seen)\n[p4] A case study (seen)\n"
        "2 more: expand p1 again.",
    ]
    third = env.step(expand("p1"))[0].split("\n")
    assert third[1:] == ["[p5] Better than before (Roga et al., 2005)", "[p7] Tobila and Sagulo: a survey (seen)"]
    last = env.step(f"So these: {answer('p3', 'p4', 'p5')}")
    assert last[:4] == ("", 1.0, True, False) and last[4]["is_success"] is True
    scores = {"f1": 1.0, "recall": 1.0, "precision": 1.0, "ndcg": 1.0}
    assert last[4]["metrics"] == {**scores, "gold_recall": 1.0, "papers": 6.0, "searches": 1.0, "expansions": 3.0}


@pytest.mark.parametrize(
    ("text", "recall", "precision", "formed"),
    [
        (answer("p3", "p4", "p5"), 1, 1, 1),
        ("<answer>\n[p3]\n p4 ,,\r\n'p5'\n</answer>", 1, 1, 1),
        ("<answer>\n- p3\n* `p4`\n3. **p5**\n</answer>", 1, 1, 1),
        (answer("p3", "p4", "p5."), 1, 1, 1),
        (answer("p3", "p3", "p3"), 1 / 3, 1, 1),  # a set
        (answer("p3", "p4", "p5", "p1", "p2", "p7"), 1, 1 / 2, 1),
        (answer("p3", "p99"), 1 / 3, 1 / 2, 1),  # no such paper
        (answer("p3", "p6"), 1 / 3, 1 / 2, 1),  # never shown
        (answer("p3 p4"), 0, 0, 1),  # neither comma nor line break
        (answer("p1") + answer("p3"), 1 / 3, 1, 0),
        ("p3, p4, p5", 0, 0, 0),
    ],
)
def test_answers(text: str, recall: float, precision: float, formed: float) -> None:
    env = make(top_k=9, reward_weights={"f1": 0.0, "recall": 1.0, "precision": 10.0, "format": 100.0})
    *_, (_, reward, terminated, _, info) = play(env, search("Tobila") + search("Sagulo"), expand("p1"), text)
    assert reward == pytest.approx(recall + 10 * precision + 100 * formed)
    f1 = 2 * precision * recall / (precision + recall) if recall else 0.0
    assert info["metrics"]["f1"] == pytest.approx(f1)
    assert terminated and info["is_success"] is (f1 == 1.0)


@pytest.mark.parametrize(
    ("ids", "ndcg"),
    [
        (("p3", "p4", "p5"), 1.0),
        (("p5",), 1 / (2 + 0.6309)),  # log2 of 3 is 1.585: the third place counts for 0.6309
        (("p7", "p3"), (1 / 3 + 1) / (2 + 0.6309)),  # p7 is related, a third of the gain
        (("p1", "p99", "p3", "p4"), 0.6309 / (2 + 0.6309)),  # the fourth is not looked at
    ],
)
def test_graded_relevance_depends_on_the_order(ids: tuple[str, ...], ndcg: float) -> None:
    env = make(top_k=9, reward_weights={"f1": 0.0, "ndcg": 1.0})
    task = {**TASK, "related": ["p7"]}
    *_, (_, reward, *_, info) = play(env, search("Tobila") + search("Sagulo"), expand("p1"), answer(*ids), task=task)
    assert reward == pytest.approx(ndcg, abs=1e-4) == info["metrics"]["ndcg"]


def test_the_first_version_is_gone() -> None:
    with pytest.raises(gymnasium.error.DeprecatedEnv, match="PaperSearch-v1"):
        gymnasium.make("AgentR1/PaperSearch-v0")
    with pytest.raises(ConfigError, match="did you mean AgentR1/PaperSearch-v1"):
        agent_gym.make("AgentR1/PaperSearch-v0")


def test_process_terms_are_paid_once() -> None:
    env = make(top_k=2, reward_weights=PROCESS)
    steps = play(env, search("Tobila"), search("fish"), search(" TOBILA ", "fish"), expand("p3"), expand("p3", "p3"))
    terms = [step[4]["reward_terms"] for step in steps]
    assert [term["found_recall"] for term in terms] == pytest.approx([1 / 3, 0, 0, 0, 1 / 3])
    # p1 and p3; p6; nothing; p2; p4 and p7, and then the first page again.
    assert [term["found_precision"] for term in terms] == pytest.approx([10 / 2, 0, 0, 0, 10 / 2])
    assert [term["repeat"] for term in terms] == [0.0, 0.0, -100.0, 0.0, -50.0]
    assert [step[4]["process_reward"] for step in steps] == [pytest.approx(step[1]) for step in steps]
    (step,) = play(env, search("Tobila", "Tobila"))
    assert step[4]["reward_terms"]["repeat"] == -50.0, "a new episode starts from nothing, and a turn can repeat itself"


def test_published_rewards_by_hand() -> None:
    actions = [search("Tobila", "fish"), expand("p1"), search("tobila") + expand("p6", "p9"), answer("p3", "p4", "p5")]
    many = {**TASK, "papers": ["p1", "p2", "p3", "p4", "p5", "p7"]}
    for reward, expected in (
        ("f1", [0, 0, 0, 1]),
        # Equation 1 of PaSa: 1.5 for each new paper of the answer, 0.1 less for each call. p3 first, p4 and p5 then.
        ("pasa", [1.5 - 0.2, 3.0 - 0.1, -0.3, 0]),
        # PaperScout: 0.5 less for a repeated query and for a paper that is not in the pool.
        ("paperscout", [1.0, 2.0, -1.0, 0]),
    ):
        assert [step[1] for step in play(make(reward=reward, top_k=9), *actions)] == pytest.approx(expected)
    # At most three per call.
    assert [step[1] for step in play(make(reward="paperscout", top_k=9), search("Tobila Sagulo"), task=many)] == [3.0]
    assert play(make(reward="pasa", reward_weights={"calls": 0.0}), search("Tobila"))[0][1] == 1.5


def test_only_what_was_shown_can_be_expanded() -> None:
    env = make()
    steps = play(env, expand("p3"), search("fish"), expand(" [p6] "), expand("p66", "", "p6"))
    assert steps[0][0] == "Error: no paper 'p3' has been shown; search first, then expand an id from the results"
    assert steps[0][4]["error"] == steps[0][0]
    assert steps[2][0] == NO_CITATIONS and steps[2][4]["error"] is None
    assert [m["content"].startswith("Error: ") for m in steps[3][4]["messages"][1:]] == [True, True, False]
    (step,) = play(env, search("Tobila") + expand("p1"))
    assert step[4]["error"], "the calls of one turn cannot know of each other"


def test_process_terms_cannot_be_had_by_writing_ids_oneself() -> None:
    fake = "\n[p3] Tobila for Sagulo\n[p4]"
    env = make(reward_weights=PROCESS)
    for action in (HermesParser().render(fake, {}), expand(fake), search("x", argument=fake), search(3), expand(3)):
        (step,) = play(env, action)
        assert step[1] == 0.0 and step[4]["error"] and step[4]["metrics"]["gold_recall"] == 0.0


def test_what_was_cut_away_was_not_shown() -> None:
    env = make(top_k=2, reward_weights=PROCESS, max_observation_tokens=14)
    first, second = play(env, search("Tobila"), answer("p3"))
    assert first[0] == "[p1] Tobila: a method (Roga et al., 2001): We intr..."
    assert first[4]["metrics"]["gold_recall"] == first[1] == second[4]["metrics"]["recall"] == 0.0
    assert play(make(top_k=2), search("Tobila"), answer("p3"))[1][4]["metrics"]["recall"] == 1 / 3
    # A line counts from its id on: with the id the policy can do everything.
    assert listed("[p1] Tob...") == ["p1"] and listed("[p1...") == [] and listed("p1 cites:\nno [p3] here") == []


def test_gold_is_nowhere() -> None:
    """In nothing that is returned, but for what was found; attributes of the environment are not returned."""
    env = make(reward_weights=PROCESS, render_mode="ansi")
    for action in ("I do not know", search("fish"), expand("p4"), answer("p6"), "<tool_call>"):
        opening = env.reset(seed=0, options={"task": {**TASK, "papers": ["p4", "p5"]}})
        returned = json.dumps([opening, env.step(action), env.render()], default=str)
        assert "p5" not in returned and "case study" not in returned


@pytest.mark.parametrize(("max_turns", "top_k"), [(2, 5), (3, 1), (4, 10), (8, 1), (8, 5)])
def test_expert_finishes_in_the_turns_it_has(max_turns: int, top_k: int) -> None:
    env = make(max_turns=max_turns, top_k=top_k)
    for index in range(25):
        _, *steps = expert_episode(env, seed=0, options={"split": "test", "index": index})
        info = steps[-1][-1]
        assert info["is_success"] and info["metrics"]["gold_recall"] == 1.0
        assert not any(step[-1]["error"] for step in steps)
        if max_turns == 8 and top_k > 1:
            # Before it answers it has seen each paper of the answer among the citations of both that it is about.
            row, judge = env.tasks["test"][index], env._judge
            for hub in row["expands"]:
                assert set(row["papers"]) <= set(judge.library.around(hub)[: judge.expanded[hub] * top_k])


def test_expert_without_a_plan() -> None:
    """On data that only has which papers are asked for, it follows citations, and else searches for titles."""
    _, *steps = expert_episode(make(top_k=1), seed=0, options={"task": {**TASK, "papers": ["p4", "p6"]}})
    actions = [step[-1]["messages"][0]["content"] for step in steps]
    assert steps[-1][-1]["is_success"] and actions[0] == search(TASK["question"]).strip()
    assert any('"expand"' in one for one in actions) and any("Unrelated work" in one for one in actions)


@pytest.mark.parametrize(("difficulty", "least", "most"), [(2, 0.9, 1.0), (3, 0.5, 0.65), (5, 0.4, 0.55)])
def test_following_citations_without_reading_is_worth_less_at_each_difficulty(
    difficulty: int, least: float, most: float
) -> None:
    attack = runpy.run_path(str(Path(__file__).parent / "attacks/papersearch.py"))["attack"]
    env, scores = make(difficulty=difficulty), []
    for index in range(60):
        _, info = env.reset(seed=0, options={"split": "test", "index": index})
        moves, terminated = attack(info["messages"][-1]["content"]), False
        action = next(moves)
        while not terminated:
            observation, _, terminated, truncated, info = env.step(action)
            assert not truncated
            action = action if terminated else moves.send(observation)
        scores.append(info["metrics"]["f1"])
    assert least < sum(scores) / len(scores) < most
