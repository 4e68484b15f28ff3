"""A person at the keyboard: the short forms, and the game as a whole through real pipes."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import pytest

import agent_gym  # noqa: F401  (registers the ids)
from agent_gym import ConfigError
from agent_gym.cli.play import Outcome, play_episode, tool_call

ENV_ID = "AgentR1/GSM8K-v0"
TASK = {"question": "Two halves of 48 and 3 more?", "answer": "48/2 = <<48/2=24>>24, 24+3 = <<24+3=27>>27\n#### 27"}
SEARCH = {
    "name": "search",
    "parameters": {"properties": {"query": {"type": "string"}, "k": {"type": "integer"}}, "required": ["query"]},
}


def game(*lines: str, **kwargs: object) -> tuple[Outcome, str]:
    """Play one task with these lines typed; return the outcome and what the screen showed."""
    shown: list[str] = []
    typed = iter(lines)
    env = gymnasium.make(ENV_ID, **kwargs)
    outcome = play_episode(env, lambda: next(typed, None), shown.append, options={"task": TASK})
    return outcome, "\n".join(shown)


def test_the_short_form_of_a_call_is_played_in_the_environments_own_format() -> None:
    outcome, screen = game("/calculator 48/2", "/calculator 24+3", "<answer>27</answer>")
    assert outcome == Outcome(True, pytest.approx(1.1), 3)
    assert '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48/2"}}\n</tool_call>' in screen
    assert "--- world\n24\n" in screen and "answer +1.00" in screen and "solved" in screen


def test_the_expert_can_play_every_turn() -> None:
    outcome, _ = game("/expert", "/expert", "/expert")
    assert outcome.success and outcome.turns == 3


def test_the_gold_answer_is_never_shown_to_a_person_either() -> None:
    outcome, screen = game("<answer>5</answer>")
    assert outcome.success is False
    assert "27" not in screen and "not solved" in screen


def test_a_turn_of_several_lines_and_one_that_begins_with_a_slash() -> None:
    _, screen = game('"""', "/calculator is a command", '<answer>27</answer>"""')
    assert "reward +1.10" in screen
    outcome, _ = game('"""<answer>27</answer>"""')
    assert outcome.success


def test_what_cannot_be_played_is_explained_and_costs_no_turn() -> None:
    outcome, screen = game("", "   ", "/calc 1", "/calculator {broken", "/help", "<answer>27</answer>")
    assert outcome.turns == 1
    assert "there is no /calc here; known: /calculator, /expert" in screen
    assert "/calculator: not valid JSON" in screen


@pytest.mark.parametrize("last", [["/quit"], []])
def test_leaving_early_is_neither_success_nor_failure(last: list[str]) -> None:
    outcome, screen = game("/calculator 1+1", *last)
    assert outcome == Outcome(None, 0.0, 1)
    assert "left after 1 turn" in screen


def test_running_out_of_turns_says_so() -> None:
    outcome, screen = game("/calculator 1", "/calculator 2", max_turns=2)
    assert outcome.success is False and "out of turns" in screen


@pytest.mark.parametrize(
    ("argument", "arguments"),
    [
        ("who wrote it", '{"query": "who wrote it"}'),
        ("7", '{"query": "7"}'),
        ('{"query": "a", "k": 3}', '{"query": "a", "k": 3}'),
    ],
)
def test_the_argument_goes_to_the_only_required_one(argument: str, arguments: str) -> None:
    assert f'"arguments": {arguments}' in tool_call(gymnasium.make(ENV_ID), {"search": SEARCH}, "search", argument)


def test_arguments_that_cannot_be_told_apart_are_asked_for_as_json() -> None:
    both = {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}
    both["parameters"]["required"] = ["a", "b"]
    with pytest.raises(ConfigError, match=r'write /add \{"a": "...", "b": "..."\}'):
        tool_call(gymnasium.make(ENV_ID), {"add": both}, "add", "1 2")


def test_the_command_plays_through_a_pipe() -> None:
    typed = "/expert\n" * 8
    command = [sys.executable, "-m", "agent_gym", "play", ENV_ID, "--seed", "3", "--split", "test"]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "> /expert" in done.stdout and "done: solved, reward +1.10" in done.stdout
    assert subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60).stdout == done.stdout
