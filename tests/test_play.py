"""A person at the keyboard: the short forms, and the game as a whole."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agent_gym import ConfigError
from agent_gym.cli.main import main
from agent_gym.cli.play import tool_call

ENV_ID = "AgentR1/GSM8K-v0"
TASK = {"question": "Two halves of 48 and 3 more?", "answer": "48/2 = <<48/2=24>>24, 24+3 = <<24+3=27>>27\n#### 27"}
Game = Callable[..., str]


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Game:
    """Play the task with these lines typed, and return what the screen shows."""

    def play(*lines: str, **kwargs: Any) -> str:
        data = tmp_path / "task.jsonl"
        data.write_text(json.dumps(TASK))
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert main(["play", ENV_ID, "--env_kwargs", json.dumps({"data": str(data), **kwargs})]) == 0
        return capsys.readouterr().out

    return play


def test_the_short_form_of_a_call_is_played_in_the_environments_own_format(game: Game) -> None:
    screen = game("/calculator 48/2", "/calculator 24+3", "<answer>27</answer>")
    assert '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48/2"}}\n</tool_call>' in screen
    assert "--- world\n24\n" in screen and "answer +1.00" in screen and "done: solved, reward +1.10, 3 turns" in screen


def test_a_turn_of_several_lines_and_one_that_begins_with_a_slash(game: Game) -> None:
    assert "reward +1.10" in game('"""', "/calculator is a command", '<answer>27</answer>"""')
    assert "left after 0 turns" in game('"""', "<answer>27</answer>")


def test_what_cannot_be_played_is_explained_and_costs_no_turn(game: Game) -> None:
    screen = game("", "   ", "/calc 1", "/calculator {broken", "/help", "<answer>27</answer>")
    assert "there is no /calc here; known: /calculator, /expert" in screen
    assert "/calculator: not valid JSON" in screen and screen.count("/TOOL ARGUMENT") == 2
    assert screen.rstrip().endswith(", 1 turn")


def test_how_a_game_ends(game: Game) -> None:
    for last in (["/quit"], []):
        screen = game("/calculator 1+1", *last)
        assert screen.rstrip().endswith("left after 1 turn, reward so far +0.00") and "solved" not in screen
    assert "out of turns: not solved" in game("/calculator 1", "/calculator 2", max_turns=2)
    screen = game("<answer>5</answer>")
    assert "27" not in screen and "done: not solved" in screen, "the gold answer is never shown"


SEARCH = {"properties": {"query": {"type": "string"}, "k": {"type": "integer"}}, "required": ["query"]}


def test_the_argument_goes_to_the_only_required_one_and_several_have_to_be_json() -> None:
    env, tools = gymnasium.make(ENV_ID), {"search": {"name": "search", "parameters": SEARCH}}
    for argument, arguments in (("7", '{"query": "7"}'), ('{"query": "a", "k": 3}', '{"query": "a", "k": 3}')):
        assert f'"arguments": {arguments}' in tool_call(env, tools, "search", argument)
    parameters = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
    with pytest.raises(ConfigError, match=r'write /add \{"a": "...", "b": "..."\}'):
        tool_call(env, {"add": {"name": "add", "parameters": parameters}}, "add", "1 2")
