"""The checks for environments of other people: they pass what is right and name what is wrong."""

from __future__ import annotations

import gymnasium
import pytest

from agent_gym import QuestionEnv, Reply, TextEnv
from agent_gym.testing import check_text_env


class Right(TextEnv):
    reward_weights = {"found": 1.0, "effort": 0.5}
    process_terms = frozenset({"effort"})

    def __init__(self, **kwargs):
        super().__init__({"train": list(range(20))}, max_turns=3, **kwargs)

    def begin(self, task):
        self.wanted = task
        return f"Say {task}."

    def respond(self, action):
        over = action == str(self.wanted)
        return Reply("" if over else "no", terms={"found": float(over), "effort": 0.1}, terminated=over, success=over)

    def expert_action(self):
        return str(self.wanted)


class Unsolved(Right):
    def expert_action(self):
        return "x"


class Restless(Right):
    tasks_played = 0

    def begin(self, task):
        Restless.tasks_played += 1
        return super().begin(task) + f" Task {Restless.tasks_played}."


class Greedy(Right):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 1.0, *rest


class Secretive(Right):
    def step(self, action):
        *rest, info = super().step(action)
        info["metrics"]["env"] = self
        return *rest, info


def test_what_is_right_passes() -> None:
    check_text_env(Right)
    check_text_env(lambda: gymnasium.make("AgentR1/GSM8K-v0"))
    check_text_env(lambda: QuestionEnv([{"question": "?", "answer": 1}]), expert=False)


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        (Unsolved, "the expert did not solve"),
        (Restless, "(?i)different|deterministic"),
        (Greedy, "do not sum to the reward"),
        (Secretive, r"info.metrics.env is a Secretive"),
        (
            lambda: QuestionEnv([{"question": "?", "answer": 1}]),
            "no expert; give it one, or check it with expert=False",
        ),
    ],
)
def test_what_is_wrong_is_named(env, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_text_env(env)
