"""`parser="react"` and `--policy react`: GSM8K, ALFWorld and WebShop in ReAct's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_tools import complaint

import agent_gym
from agent_gym import ConfigError
from agent_gym.cli.main import main
from agent_gym.formats.react import ReActParser
from agent_gym.rollout import read_trajectories

IDS = ["AgentR1/GSM8K-v0", "AgentR1/ALFWorld-v0", "AgentR1/WebShop-v0"]


@pytest.mark.parametrize("env_id", IDS)
def test_thoughts_actions_and_observations_solve_the_task(env_id: str) -> None:
    env: Any = agent_gym.make(env_id, parser="react")
    opening, info = env.reset(seed=1)
    assert "Thought: what you know" in opening and "<tool_call>" not in opening and "<answer>" not in opening
    assert info["stop"] == ["Observation:"] and ("Finish[answer]" in opening) == ("GSM8K" in env_id)
    over = False
    while not over:
        action = env.unwrapped.expert_action()
        assert action.startswith("Action: ")
        observation, _, terminated, truncated, info = env.step(f"Thought: This is next.\n{action}")
        over = terminated or truncated
        assert observation.startswith("Observation: ") or (over and not observation)
        assert [message["role"] for message in info["messages"]][-1:] != ["assistant"] or over
    assert info["is_success"]
    # The other form is read as before.
    plain, _ = agent_gym.make(env_id).reset(seed=1)
    assert "Thought:" not in plain


def test_finish_states_an_answer_also_by_a_parser_that_is_given() -> None:
    for text, success in (("Action: Finish[{}]", True), ("Thought: It is {}.", False), ("Action: Finish[-1]", False)):
        env: Any = agent_gym.make(IDS[0], parser=ReActParser({"calculator": "expression"}))
        env.reset(seed=1)
        _, _, terminated, _, info = env.step(text.replace("{}", env.unwrapped._golds[0]))
        assert terminated and info["is_success"] == success, text
    # Without a finish the turn is the answer, whatever it says.
    env = agent_gym.make(IDS[0], parser=ReActParser({"calculator": "expression"}, finish=None))
    env.reset(seed=1)
    assert env.step(f"<answer>{env.unwrapped._golds[0]}</answer>")[4]["is_success"]


def test_a_name_that_no_environment_knows_is_refused() -> None:
    for env_id, name in (("AgentR1/Support-v0", "react"), (IDS[0], "xml"), (IDS[1], "ReAct"), (IDS[2], "tags")):
        with pytest.raises(ConfigError, match=f"parser is '{name}', a name that this environment has not: leave it"):
            agent_gym.make(env_id, parser=name)


@pytest.mark.parametrize("env_id", IDS)
def test_policy_react_plays_by_the_argument(env_id: str, tiny_model: str, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("torch")
    words = ["--policy", "react", "--model", tiny_model, "--engine", "transformers", "--max_turn_tokens", "4"]
    words += ["--max_turns", "1"]
    assert main(["rollout", env_id, *words, "--episodes", "1", "--output", str(tmp_path / "t.jsonl")]) == 0
    (record,) = read_trajectories(tmp_path / "t.jsonl")
    assert record["spec"]["env_kwargs"] == {"parser": "react"} and "Thought: what you know" in json.dumps(record)
    capsys.readouterr()
    assert main(["eval", env_id, *words, "--episodes", "1"]) == 0
    assert "(react)" in capsys.readouterr().out


def test_where_there_is_no_react_the_policy_is_refused(tiny_model: str, capsys: Any) -> None:
    line = complaint(capsys, "eval", "AgentR1/Support-v0", "--policy", "react", "--model", tiny_model)
    assert "parser is 'react', a name that this environment has not" in line
