"""The checks for environments of other people: they pass what is right and name what is wrong."""

from __future__ import annotations

import signal
import sqlite3
from typing import Any, ClassVar

import gymnasium
import pytest

from agent_gym import EnvFailure, QuestionEnv, Reply, TextEnv, ToolEnv, ToolResult, tool
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
        (lambda: QuestionEnv([{"question": "?", "answer": 1}]), "no expert; give it one, or check it"),
    ],
)
def test_what_is_wrong_is_named(env, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_text_env(env)


# Threads.


class Sql(ToolEnv):
    """Keeps a connection, which belongs to the thread that made it: one of each environment, or one of all."""

    reward_weights: ClassVar[dict[str, float]] = {"answer": 1.0}
    shared: ClassVar[sqlite3.Connection | None] = None

    def __init__(self, share: bool = False, catch: bool = False, **kwargs: Any) -> None:
        super().__init__({"train": list(range(20))}, tools=[tool(self.look)], **kwargs)
        self.share, self.catch, self.db = share, catch, None

    def begin(self, task: Any) -> str:
        self.task = task
        if self.db is None:
            self.db = type(self).shared if self.share and type(self).shared else sqlite3.connect(":memory:")
            type(self).shared = self.db if self.share else None
        return "Look."

    def look(self) -> str | ToolResult:
        """Look."""
        try:
            return str(self.db.execute("select 1").fetchone()[0])
        except sqlite3.Error as error:
            if not self.catch:
                raise
            return ToolResult("Error: " + str(error).partition(" The object")[0], error=True)

    def answer(self, text: str) -> Reply:
        return Reply(terms={"answer": 1.0}, terminated=True, success=True)

    def expert_action(self) -> str:
        return self.parser.render("look", {}) if self.turn == 0 else "done"


class OfTheMainThread(Right):
    def begin(self, task):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return super().begin(task)


def test_an_environment_may_hold_what_belongs_to_its_thread_and_nothing_that_belongs_to_another() -> None:
    check_text_env(Sql)
    with pytest.raises(ValueError, match="only works in main thread") as raised:
        check_text_env(OfTheMainThread)
    assert "not the main one" in raised.value.__notes__[0]
    # The main thread makes the shared one: it goes on living, so that no thread of a check gets its number.
    Sql.shared = sqlite3.connect(":memory:")
    with pytest.raises(EnvFailure, match="tool 'look' broke: ProgrammingError: SQLite objects created in a thread"):
        check_text_env(lambda: Sql(share=True))
    with pytest.raises(
        AssertionError, match="of 1 tool calls of the expert failed; the first, of 'look': Error: SQLite"
    ):
        check_text_env(lambda: Sql(share=True, catch=True))
