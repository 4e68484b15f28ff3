"""GSM8K as an environment: what it shows, what it pays, how it ends, and what its expert does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agent_gym import ConfigError
from agent_gym.envs.gsm8k.calculator import calculate
from agent_gym.envs.gsm8k.env import annotated_steps, gold_answer
from agent_gym.envs.gsm8k.protocols import checked, strict_match
from agent_gym.rewards import parse_number
from agent_gym.testing import expert_episode
from agent_gym.tools import HermesParser

ROW = {
    "question": "Ann has 48 eggs, eats half of them, and buys 24 more. How many is that?",
    "answer": "She has 48/2 = <<48/2=24>>24 left.\nThat is 24+24 = <<24+24=48>>48.\n#### 1,918,273",
}
GOLD = "1918273"  # deliberately not what the annotations give: it occurs nowhere unless it leaks


def make(no_tool: bool = False, **kwargs: Any) -> Any:
    return gymnasium.make("AgentR1/GSM8K-NoTool-v0" if no_tool else "AgentR1/GSM8K-v0", **kwargs).unwrapped


def call(expression: str) -> str:
    return HermesParser().render("calculator", {"expression": expression})


def play(env: Any, *actions: str, task: Any = ROW) -> list[tuple[Any, ...]]:
    env.reset(seed=0, options={"task": task})
    return [env.step(action) for action in actions]


def test_an_episode() -> None:
    env = make()
    observation, info = env.reset(seed=0, options={"task": ROW})
    assert observation.endswith(ROW["question"]) and "calculator" in observation
    assert [tool["function"]["name"] for tool in info["tools"]] == ["calculator"]
    first, second, last = play(env, "Half of them: " + call("48/2"), call("24+24"), f"So <answer>{GOLD}</answer>")
    assert (first[0], second[0], last[0]) == ("24", "48", "")
    assert [step[1] for step in (first, second, last)] == pytest.approx([0, 0, 1.1])
    assert [step[2] for step in (first, second, last)] == [False, False, True]
    assert first[4]["reward_terms"] == {"call": 0.0}
    assert last[4]["reward_terms"] == pytest.approx({"answer": 1.0, "format": 0.1})
    assert last[4]["is_success"] is True


@pytest.mark.parametrize(
    ("answer", "correct", "formed"),
    [
        ("<answer>1918273</answer>", 1, 1),
        ("<answer>$1,918,273.00</answer>", 1, 1),
        ("#### 1,918,273 eggs", 1, 0),  # right, but not in the form that is asked for
        ("<answer>1918273</answer>, I think.", 1, 0),
        ("<answer>1918274</answer>", 0, 1),
        ("<answer></answer>", 0, 0),
        ("1918273", 0, 0),
    ],
)
def test_answers(answer: str, correct: int, formed: int) -> None:
    for env in (make(), make(no_tool=True)):
        ((observation, reward, terminated, truncated, info),) = play(env, answer)
        assert reward == pytest.approx(correct + 0.1 * formed)
        assert (observation, terminated, truncated) == ("", True, False)
        assert info["is_success"] is bool(correct), "the format alone is no success"


def test_the_process_term_looks_at_the_calls_alone() -> None:
    env = make(reward_weights={"call": 0.5})
    good, mixed, bad = play(env, call("1+1"), call("1+1") + call("1/0"), "<tool_call>{</tool_call>")
    assert [step[1] for step in (good, mixed, bad)] == [0.0, -0.25, -0.5]
    # A call that computes the gold answer earns no more than any other: the tool tells nothing about correctness.
    (step,) = play(env, call(GOLD))
    assert step[1] == 0.0 and step[0] == GOLD


def test_no_tool_version() -> None:
    env = make(no_tool=True)
    observation, info = env.reset(seed=0, options={"task": ROW})
    assert info["tools"] == [] and "calculator" not in observation and env.max_turns == 1
    assert "<answer></answer>" in observation
    sizes = {split: len(tasks) for split, tasks in env.tasks.items()}
    assert sizes == {"train": 20_000, "validation": 1_000, "test": 1_000}
    # A call is an answer like any other there, and a wrong one.
    ((text, reward, terminated, _, info),) = play(env, call("48/2"))
    assert (text, reward, terminated, info["tool_calls"]) == ("", 0.0, True, [])


@pytest.mark.parametrize(
    ("turn", "gold", "right"),
    [
        ("#### 72", "72", 1),
        ("#### 71 or #### 72", "72", 1),  # of several the last
        ("#### 72 or #### 71", "72", 0),
        ("#### -1,234", "-1234", 1),
        ("#### 72.", "72", 0),
        ("#### 72.0", "72", 0),
        ("####72", "72", 0),
        ("#### $72", "72", 0),
        ("#### 72\n" + "x" * 292, "72", 1),  # within the last 300 characters
        ("#### 72\n" + "x" * 293, "72", 0),
    ],
)
def test_the_match_of_verls_protocol_is_of_texts(turn: str, gold: str, right: int) -> None:
    assert strict_match(turn, gold) == right


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("72", "1.0"), ("#### 72", "1.0"), ("so 71, no, 72 .", "1.0"), ("72.", "0.0"), (".", "0.0"), ("none", "0")],
)
def test_what_agent_r1s_tool_says(answer: str, reward: str) -> None:
    assert checked(answer, "72").text.endswith(f" reward={reward}")


def test_expert_follows_the_annotations() -> None:
    env = make()
    env.reset(seed=0, options={"task": ROW})
    actions = []
    for _ in range(3):
        actions.append(env.expert_action())
        env.step(actions[-1])
    assert actions == [call("48/2"), call("24+24"), f"<answer>{GOLD}</answer>"]
    env.reset(seed=0, options={"task": ROW})
    assert env.expert_action("direct") == f"<answer>{GOLD}</answer>"


@pytest.mark.parametrize("max_turns", [1, 2, 4, 8])
@pytest.mark.parametrize("n_calls", [0, 1, 3, 9])
def test_expert_finishes_in_the_turns_it_has(max_turns: int, n_calls: int) -> None:
    """By several calls per turn where it must."""
    task = {"question": "q", "answer": "".join(f"<<{i}+0={i}>>" for i in range(n_calls)) + "#### 5"}
    env = make(max_turns=max_turns, max_calls_per_turn=9)
    env.reset(seed=0, options={"task": task})
    calls, over, turns = [], False, 0
    while not over:
        *_, terminated, truncated, info = env.step(env.expert_action())
        calls += [record["arguments"]["expression"] for record in info["tool_calls"]]
        over, turns = terminated or truncated, turns + 1
    assert terminated and info["is_success"]
    assert calls == ([f"{i}+0" for i in range(n_calls)] if max_turns > 1 else [])
    assert turns == min(n_calls + 1, max_turns)


def test_reading_worked_answers() -> None:
    assert annotated_steps(ROW["answer"]) == [("48/2", "24"), ("24+24", "48")]
    assert annotated_steps("no marks") == [] and annotated_steps("<<=5>><<5>>< <1=1>>") == []
    assert gold_answer("#### 1,000") == "1000" and gold_answer("a #### 1\n#### 2 ") == "2"


def test_a_task_of_another_shape_is_named() -> None:
    for task in ({"question": "q"}, "q", {"question": None, "answer": "#### 1"}):
        with pytest.raises(ConfigError, match="column 'answer'|question is empty|must be an object"):
            make().reset(options={"task": task})


@pytest.mark.parametrize("answer", ["seven", "It is half.\n#### 3/4"])
def test_an_answer_that_no_number_matches_is_named(answer: str) -> None:
    with pytest.raises(ConfigError, match="is not one number, so that no answer could be right"):
        make().reset(options={"task": {**ROW, "answer": answer}})
    make(protocol="verl").reset(options={"task": {**ROW, "answer": answer}})  # it compares texts


@pytest.mark.parametrize("answer", [72, 72.0, [72, "72"]])
def test_an_answer_may_be_a_number(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"question": "1+1?", "answer": answer}))
    env = make(data=str(path))
    env.reset(seed=0)
    assert env.step(env.expert_action())[4]["is_success"]
    env.reset(seed=0)
    assert env.step("<answer>72</answer>")[4]["is_success"]


def test_data_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    env = make(data=str(path))
    assert env.reset(seed=0)[1]["task_id"] == "test/0", "the only split there is"
    assert env.step(f"#### {GOLD}")[4]["is_success"]
    with pytest.raises(ConfigError, match="unknown split 'train'; this environment has: test; choose one by split"):
        make(data=str(path), split="train")


# The complete GSM8K, where its rows are on this machine.

# Test row 319 writes the same number in another way: <<3/4=3/4>>.
DISAGREEING = {"test": [(319, "3/4", "3/4", "0.75")], "train": []}


@pytest.mark.parametrize(("split", "rows"), [("test", 1319), pytest.param("train", 7473, marks=pytest.mark.slow)])
def test_expert_and_calculator_solve_the_real_rows(gsm8k_folder: Path, split: str, rows: int) -> None:
    """Each annotation is the number that the calculator gives, with the exceptions above; each answer is one number."""
    env = gymnasium.make("AgentR1/GSM8K-v0", data=str(gsm8k_folder)).unwrapped
    assert len(env.tasks[split]) == rows
    unsolved, failed_calls, disagreeing = [], [], []
    for index, row in enumerate(env.tasks[split]):
        assert parse_number(gold_answer(row["answer"])) is not None, index
        for expression, value in annotated_steps(row["answer"]):
            number = parse_number(calculate(expression))
            if number is None or number != parse_number(value):
                disagreeing.append((index, expression, value, calculate(expression)))
        log = expert_episode(env, options={"split": split, "index": index})
        failed_calls += [call for *_, info in log[1:] for call in info["tool_calls"] if call["error"]]
        unsolved += [] if log[-1][-1]["is_success"] else [index]
    print(f"GSM8K {split}: {rows - len(unsolved)} of {rows} solved; not solved: {unsolved or 'none'}")
    assert len(unsolved) <= 0.02 * rows, unsolved
    assert not failed_calls and disagreeing == DISAGREEING[split]
