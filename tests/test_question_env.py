"""An environment from questions and functions, and ids of other packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import agent_gym
from agent_gym import ConfigError, EnvEntry, QuestionEnv
from agent_gym.cli.main import main
from agent_gym.registry import entries
from agent_gym.tool_env import same_answer

QUESTIONS = [
    {"question": "What is the capital of the country that makes Gouda?", "answer": "Amsterdam"},
    {"question": "How many letters has the capital of France?", "answer": 5},
]


def country_of(cheese: str) -> str:
    """Tell where a cheese is made.

    Args:
        cheese: its name.
    """
    return {"Gouda": "the Netherlands"}.get(cheese, "unknown")


def capital_of(country: str) -> str:
    """Tell the capital of a country.

    Args:
        country: its name.
    """
    return {"the Netherlands": "Amsterdam", "France": "Paris"}.get(country, "unknown")


def make(**kwargs):
    return gymnasium.wrappers.PassiveEnvChecker(QuestionEnv(QUESTIONS, [country_of, capital_of], **kwargs))


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_two_sources_then_an_answer() -> None:
    env = make()
    observation, info = env.reset(options={"index": 0})
    assert "Gouda" in observation and [one["function"]["name"] for one in info["tools"]] == ["country_of", "capital_of"]
    assert env.step(call("country_of", cheese="Gouda"))[0] == "the Netherlands"
    assert env.step(call("capital_of", country="the Netherlands"))[0] == "Amsterdam"
    _, reward, terminated, _, info = env.step("It is <answer>amsterdam.</answer>")
    assert (reward, terminated, info["is_success"]) == (1.0, True, True)
    assert info["metrics"] == {"em": 1.0, "f1": 1.0}
    env.reset(options={"index": 0})
    assert env.step("<answer>old Amsterdam</answer>")[4]["metrics"] == {"em": 0.0, "f1": pytest.approx(2 / 3)}
    for text, paid in (("<answer>5.0</answer>", 1.0), ("<answer>6</answer>", 0.0), ("five", 0.0)):
        env.reset(options={"index": 1})
        assert env.step(text)[1] == paid  # numbers compare as numbers
    check_env(QuestionEnv(QUESTIONS, [country_of]))


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("-5", ["- 5", "-5.0", "\u22125"], ["5", ".", ""]),
        ("1.5", ["1.50"], ["15"]),
        ("3/4", ["3/4."], ["34", "3 4"]),
        ("12:30", ["(12:30)"], ["1230"]),
        ("July 4, 1776", ["july 4 1776."], ["July 41776"]),
        ("the 1972-73 season", ["1972-73 season"], ["197273 season"]),
        ("[0, 1)", ["[0, 1)"], ["(0, 1]"]),
        ("C++", ["c++.", "`C++`"], ["C", "C#"]),
        ("GPT-4", ["GPT4"], ["GPT-5", "4", "level 4"]),
        ("Apollo 11", ["It was Apollo 11.", "apollo-11"], ["11", "Gemini 11"]),
        ("H2O", ["H2O"], ["2", "CO2"]),
        ("\\sqrt{5}", ["sqrt(5)"], ["5"]),
        ("x = 5", ["5", "the root is 5"], ["6"]),
        ("66", ["route 66"], ["67"]),
        ("in 1947", ["1947"], ["1948"]),
        ("16,000 and 20,000", ["$16000 and $20000"], ["16 and 20"]),
        ("7:30 p.m.", ["7:30 pm!"], ["7:30 am"]),
        ("B", ["\\(B\\)", "[B]"], ["\\(C\\)"]),
        ("C", ["(C)", "c:"], ["C++", "A, C", "A C"]),
        ("A", ["a", "(A)", "A.", "**A**"], ["", ".", "the", "()", "B"]),
        ("A, C", ["A, C."], ["C"]),
        ("Vitamin A", ["vitamin a."], ["vitamin"]),
        (".", ["."], ["", "()"]),
        ("", [], ["", ".", "the"]),
        ("U.S.A.", ["the USA"], [""]),
        ("The A-Team", ["A-team", "**A-Team**", "\u201cThe A\u2011Team\u201d"], ["team"]),
        ("1939-1945", ["1939\u20131945"], ["19391945"]),
        ("(2, 3)", ["(2,3)", "2,3"], ["(3,2)", "23"]),
        ("A,C", ["A, C"], ["AC"]),
        ("O'Brien", ["O\u2019Brien"], ["Brien"]),
    ],
)
def test_what_is_the_same_answer(gold: str, right: list[str], wrong: list[str]) -> None:
    row = {"question": "?", "answer": gold}
    paid = {text: same_answer(text, row) for text in (*right, *wrong)}
    assert paid == {**dict.fromkeys(right, 1.0), **dict.fromkeys(wrong, 0.0)}


def test_a_score_of_ones_own_sees_the_row() -> None:
    env = QuestionEnv({"test": QUESTIONS}, score=lambda stated, row: len(stated) / len(str(row["answer"])))
    env.reset(options={"index": 0})
    _, reward, *_, info = env.step("<answer>Amst</answer>")
    assert reward == pytest.approx(4 / 9) and not info["is_success"]


@pytest.mark.parametrize(
    ("questions", "words"),
    [([], "no questions"), ([{"question": "?"}], "'train', row 0: no column 'answer'"), ({"test": [{}]}, "'test'")],
)
def test_rows_that_are_no_questions(questions, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        QuestionEnv(questions)


def test_register_lists_and_makes(capsys: pytest.CaptureFixture[str]) -> None:
    kwargs = {"questions": QUESTIONS, "tools": [country_of, capital_of]}
    entry = EnvEntry(
        "Mine/Cheese-v0", "agent_gym:QuestionEnv", "cheese", ("country_of", "capital_of"), "two rows", kwargs
    )
    before = entries()
    agent_gym.register(entry)
    try:
        agent_gym.register(entry)
        assert entries() == [*before, entry]
        envs = gymnasium.make_vec("Mine/Cheese-v0", num_envs=3)
        observations, _ = envs.reset(seed=0)
        assert len(observations) == 3 and type(envs).__name__ == "TextVectorEnv"
        assert main(["list"]) == 0 and "Mine/Cheese-v0" in capsys.readouterr().out
    finally:
        agent_gym.registry._registered.pop("Mine/Cheese-v0")
        gymnasium.registry.pop("Mine/Cheese-v0")
    with pytest.raises(ConfigError, match="Namespace/Name-v0"):
        agent_gym.register(EnvEntry("Cheese", "agent_gym:QuestionEnv", "", (), ""))


def test_plugins_are_found_where_they_are_installed(tmp_path: Path) -> None:
    """What pip writes for a package with entry points, one that works and one that does not."""
    for name, code in (
        ("good", "import agent_gym\nagent_gym.register(agent_gym.EnvEntry('Good/Task-v0', 'm:C', 's', (), 'd'))"),
        ("bad", "import nothing_of_this_name"),
    ):
        (tmp_path / f"{name}_pack.py").write_text(code)
        info = tmp_path / f"{name}_pack-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-pack\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[agent_gym.envs]\n{name} = {name}_pack\n")
    code = "import agent_gym; print('Good/Task-v0' in agent_gym.list_envs())"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(tmp_path)!r}); {code}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "True\n", done.stderr
    assert "plugin 'bad' (bad_pack) are missing: ModuleNotFoundError" in done.stderr
