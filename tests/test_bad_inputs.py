"""Mistakes of those who write or use an environment in Python: one line that names the value and the cure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest

import agent_gym
from agent_gym import ConfigError, QuestionEnv, Reply, TextEnv
from agent_gym.cli.main import main

ROWS = [{"question": "a", "answer": "b"}]


class Fine(TextEnv):
    reward_weights = {"right": 1.0}

    def begin(self, task: Any) -> str:
        return "Go."

    def respond(self, action: str) -> Reply:
        return Reply(terminated=True)


class Silent(TextEnv):
    def begin(self, task: Any) -> str:
        return "Go."


class Forgetful(Fine):
    def __init__(self, **kwargs: Any) -> None:
        self.mine = kwargs


def scored(value: Any) -> Any:
    env = QuestionEnv(ROWS, score=lambda stated, row: value)
    env.reset(seed=0)
    return env.step("<answer>b</answer>")


@pytest.mark.parametrize(
    ("do", "words"),
    [
        (lambda: Fine({"train": [1]}).reset(options="test"), r"options of reset is 'test' \(str\); it must be a dict"),
        (lambda: Fine({"train": [1]}).reset(options=["split"]), r"options of reset is \['split'\] \(list\)"),
        (lambda: Fine([1, 2]), r"tasks of Fine is \[1, 2\] \(list\); it must be a dict by split: {'train': "),
        (lambda: Fine("train"), "tasks of Fine is 'train'"),
        (lambda: Fine(5), "tasks of Fine is 5"),
        (lambda: Fine({}), "tasks of Fine has no split"),
        (lambda: Fine({"train": 5}), r"split 'train' of the tasks of Fine is 5 \(int\); it must be a list"),
        (lambda: Fine({"train": {1, 2}}), "split 'train' of the tasks of Fine is {1, 2}"),
        (lambda: Fine({"train": "rows.jsonl"}), "split 'train' of the tasks of Fine is 'rows.jsonl'"),
        (lambda: Silent({"train": [1]}), r"Silent does not define respond\(action\)"),
        (lambda: Forgetful().reset(), r"Forgetful.__init__ does not call the one of its base: super\(\)\."),
        (lambda: Forgetful().step("x"), "Forgetful.__init__ does not call"),
        (lambda: agent_gym.make(Forgetful), "Forgetful.__init__ does not call"),
        (lambda: agent_gym.make(QuestionEnv), "QuestionEnv-v0 cannot be made without questions; give it: make"),
        (lambda: scored(7), r"score returned 7 in task train/0 of QuestionEnv; it must be a number from 0 to 1"),
        (lambda: scored(-0.5), "score returned -0.5"),
        (lambda: QuestionEnv(ROWS, score=5), r"score is 5 \(int\); it must be a function of a stated answer and"),
        (lambda: QuestionEnv(ROWS, score=lambda stated: 1.0), "score cannot be called with two arguments: too many"),
    ],
)
def test_a_mistake_is_one_line_with_its_cure(do: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        do()
    assert "\n" not in str(raised.value)


def test_what_is_right_is_taken() -> None:
    assert scored(True)[1] == scored(1)[1] == 1.0 and scored(0.5)[-1]["is_success"] is False
    assert QuestionEnv(ROWS, score=lambda stated, row, more=1: 1.0) and Fine({"train": range(3)}).reset(seed=0)
    assert agent_gym.make(QuestionEnv, questions=ROWS).reset(seed=0)[0].endswith("\n\na")


def test_a_step_before_the_first_reset_says_so() -> None:
    env = Fine({"train": [1]})
    with pytest.raises(gymnasium.error.ResetNeeded, match="no episode has begun: call reset"):
        env.step("x")
    env.reset(seed=0)
    env.step("x")
    with pytest.raises(gymnasium.error.ResetNeeded, match="the episode is over: call reset"):
        env.step("x")


@pytest.mark.parametrize("command", ["info", "certify", "eval"])
def test_an_empty_id_is_an_unknown_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, ""]) == 2
    assert "unknown environment ''; known here: AgentR1/GSM8K-v0" in capsys.readouterr().err
