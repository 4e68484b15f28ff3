"""Failures, time, turns and scheduling under each context policy, and policies that a user writes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cli_tools import complaint
from rollout_tools import counting, expert, play, roll, roll_random, scripted
from toy_envs import CountingEnv, SlowWriter

from agent_gym.cli.main import main
from agent_gym.evaluate import summarize
from agent_gym.rollout import Budget, Runner, read_trajectories, replay, to_record
from agent_gym.rollout.contexts import NewContext

POLICIES = pytest.mark.parametrize("context", ["append", "window:1", "summarize:400"])


@POLICIES
def test_turns_count_actions(tokenizer: Any, context: str) -> None:
    budget = Budget(20, 500, max_turns=5)
    episodes, _ = roll_random(tokenizer, counting(3, max_turns=9), context, budget)
    for episode in episodes:
        assert episode.turns == 5 and episode.truncation == "turns"
        assert episode.steps[-1].kind == "act", "no summary is asked for when nothing will follow it"
    assert summarize(episodes).metrics["episode/turns"] == 5, "summaries are no turns"
    assert any(len(episode.steps) > 5 for episode in episodes) == context.startswith("summarize")


@POLICIES
def test_time_runs_out_in_the_middle(tokenizer: Any, context: str) -> None:
    """While the model is at its sixth turn: what was there stays, and a prompt without an answer goes."""

    class Silent(SlowWriter):
        def poll(self) -> Any:
            held = {key: entry for key, entry in self.running.items() if len(entry[0].episode.steps) == 5}
            if len(held) == len(self.running):
                time.sleep(0.01)
            self.running = {key: entry for key, entry in self.running.items() if key not in held}
            done = super().poll()
            self.running |= held
            return done

    policy = Silent(lambda episode: "word", scripted(tokenizer)._encode)
    episodes = play(policy, tokenizer, counting(3, max_turns=20), Budget(20, 600, max_seconds=3.0), context=context)
    assert policy.pending == 0 and len(policy.aborted) == 3
    for episode in episodes:
        assert episode.truncation == "seconds" and episode.failure is None and len(episode.steps) == 5
        assert len(episode.rows) == 1 + episode.steps[-1].row
        assert replay(to_record(episode)) == []


class _Stuck:
    """Makes the second context only when it is let go."""

    tokens = None

    def __init__(self) -> None:
        self.go, self.done = threading.Event(), threading.Event()

    def is_due(self, episode: Any, budget: Budget) -> bool:
        return len(episode.steps) == 2 and episode.spec.index == 0

    def rewrite(self, episode: Any, renderer: Any, budget: Budget) -> Any:
        self.env = episode.env
        self.go.wait(30)
        self.done.set()
        return NewContext(list(episode.rows[0].token_ids[:5]))


def test_a_late_context_changes_nothing(tokenizer: Any) -> None:
    context = _Stuck()
    runner = Runner(scripted(tokenizer), tokenizer, Budget(max_seconds=1.0), context=context, workers=2)
    late, fine = runner.run(counting(2))
    # The policy and the environment did what they had to, so this is no failure.
    assert late.truncation == "seconds" and len(late.steps) == 2 and late.failure is None and late.env is None
    record = to_record(late)
    # The thread may still be reading the environment, so that no other episode may get it.
    used: list[Any] = []
    runner.policy._act = lambda episode: (used.append(episode.env), expert(episode))[1]  # type: ignore[attr-defined]
    assert all(episode.success for episode in runner.run(counting(4)[1:]))
    context.go.set()
    assert context.done.wait(30)
    assert all(episode.success for episode in runner.run(counting(4)[1:]))
    assert used and context.env is not None and all(env is not context.env for env in used)
    assert to_record(late) == record and fine.success
    runner.close()


class _Opening:
    """Shows the opening alone."""

    tokens = None

    def is_due(self, episode: Any, budget: Budget) -> bool:
        return True

    def rewrite(self, episode: Any, renderer: Any, budget: Budget) -> Any:
        return NewContext(renderer.prompt(episode.initial_messages, episode.tools))


def test_rows_keep_to_the_budget(tokenizer: Any) -> None:
    # An answer that no row had room for must not reach the trainer's memory by way of a row that ended with it.
    specs = counting(1, "Toy/Wordy-v0", lengths=(10, 2000, 10), max_turns=5)
    (episode,) = roll(tokenizer, specs, lambda episode: "on", Budget(20, 300), context=_Opening())
    assert episode.turns == 5 and [len(row.token_ids) for row in episode.rows][1] == 300
    assert len(episode.rows) == 5 and max(len(row.token_ids) for row in episode.rows) == 300


def test_the_situation_holds_the_history() -> None:
    env = CountingEnv(system_prompt="Be brief.")
    env.reset(seed=0, options={"task": "T"})
    opening = env.state_prompt()
    assert [message["role"] for message in opening] == ["system", "user"] and env.history() == ""
    answers = [env.step("one")[0], env.step("two")[0]]
    assert env.history() == f"1. You: one\n   Answer: {answers[0]}\n2. You: two\n   Answer: {answers[1]}"
    assert env.state_prompt()[1]["content"] == f"{opening[1]['content']}\n\nWhat happened so far:\n{env.history()}"


# The command line.


def test_the_command_line_takes_a_context_and_its_expert_writes_summaries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "t.jsonl"
    limits = ["--context", "summarize", "--max_tokens", "420", "--max_turn_tokens", "100"]
    arguments = ["rollout", "AgentR1/GSM8K-v0", "--expert", "--episodes", "12", "--output", str(output), *limits]
    assert main([*arguments, "--env_kwargs", '{"system_prompt": ""}']) == 0
    records = list(read_trajectories(output))
    summaries = [step["action"] for record in records for step in record["steps"] if step["kind"] == "summary"]
    assert summaries and all(text.startswith("1. You: ") for text in summaries)
    assert all(replay(record) == [] for record in records)
    for bad, words in (("windw", "known: append, window:TURNS"), ("budget:99999", "max_tokens is 4096")):
        assert words in complaint(capsys, "eval", "AgentR1/GSM8K-v0", "--model", "./nope", "--context", bad)
