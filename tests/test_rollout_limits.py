"""Every way an episode can go wrong or run out of something, none of which may touch another episode."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from typing import Any

import pytest
from rollout_tools import check_episode, counting, expert, roll, scripted
from toy_envs import SlowWriter

from agent_gym import ConfigError, RolloutError
from agent_gym.rollout import Budget, EpisodeSpec, Runner

# Failures.


@pytest.mark.parametrize("when", [-1, 0, 2])
@pytest.mark.parametrize(
    ("how", "words"),
    [("crash", "RuntimeError: a bug"), ("failure", "EnvFailure: the index is gone"), ("exit", "SystemExit: 3")],
)
def test_a_crashed_environment_is_one_failed_episode(tokenizer: Any, when: int, how: str, words: str) -> None:
    specs = counting(9, "Toy/Broken-v0", how=how, when=when, tasks=(4, 7))
    episodes = roll(tokenizer, specs, workers=3)
    for i, episode in enumerate(episodes):
        if i in (4, 7):
            assert episode.failure is not None and str(episode.failure).startswith(words)
            assert math.isnan(episode.reward) and not episode.success
            assert len(episode.steps) == max(0, when) and episode.env is None
        else:
            check_episode(episode, tokenizer)
            assert episode.success and episode.failure is None


@pytest.mark.parametrize("when", [-1, 1])
def test_a_users_mistake_surfaces_at_once(tokenizer: Any, when: int) -> None:
    policy = scripted(tokenizer)
    runner = Runner(policy, tokenizer)
    with pytest.raises(ConfigError, match="'colour' is 'loud'"):
        runner.run(counting(5, "Toy/Broken-v0", how="config", when=when, tasks=(3,)))
    assert policy.pending == 0
    runner.close()


@pytest.mark.parametrize(
    ("env_id", "kwargs", "words"),
    [
        ("Toy/Cuonting-v0", {}, "did you mean Toy/Counting-v0"),
        ("CartPole-v1", {}, "TextEnv"),
        ("Toy/Counting-v0", {"colour": 1}, "colour"),
        ("Toy/Counting-v0", {"max_turns": 0}, "max_turns"),
    ],
)
def test_environments_that_cannot_be_made(tokenizer: Any, env_id: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        roll(tokenizer, [EpisodeSpec(env_id, kwargs)])
    with pytest.raises(ConfigError, match="out of range"):
        roll(tokenizer, [*counting(2), EpisodeSpec("Toy/Counting-v0", index=10**6)])


def test_a_policy_that_raises_ends_the_rollout_and_leaves_nothing_behind(tokenizer: Any) -> None:
    def act(episode: Any) -> str:
        if episode.spec.index == 3 and len(episode.steps) == 1:
            raise KeyboardInterrupt
        return expert(episode)

    policy = SlowWriter(act, scripted(tokenizer)._encode)
    runner = Runner(policy, tokenizer)
    with pytest.raises(KeyboardInterrupt):
        runner.run(counting(6))
    assert policy.pending == 0 and policy.aborted
    # The same runner goes on as if nothing had happened.
    policy.text = expert
    assert all(episode.success for episode in runner.run(counting(6)))
    runner.close()


# Budgets.


def test_turn_budget(tokenizer: Any) -> None:
    (episode,) = roll(tokenizer, counting(1), budget=Budget(max_turns=2))
    check_episode(episode, tokenizer)
    assert len(episode.steps) == 2 and episode.truncation == "turns" and not episode.success
    # The environment's own limit is the same thing.
    (episode,) = roll(tokenizer, counting(1, max_turns=3))
    check_episode(episode, tokenizer)
    assert len(episode.steps) == 3 and episode.truncation == "turns"


def test_token_budget_of_a_turn(tokenizer: Any) -> None:
    (episode,) = roll(tokenizer, counting(1), lambda episode: "many words " * 9, Budget(max_turn_tokens=5))
    check_episode(episode, tokenizer)
    assert [(step.finish_reason, step.stop - step.start) for step in episode.steps] == [("length", 5)] * 8
    # A turn that was cut off is closed by the world.
    row, end = episode.rows[0], tokenizer.convert_tokens_to_ids("<|im_end|>")
    for step in episode.steps:
        assert row.token_ids[step.stop] == end and not row.action_mask[step.stop]


def test_token_budget_of_an_episode(tokenizer: Any) -> None:
    full = roll(tokenizer, counting(1), lambda episode: "so " * 20)[0]
    lengths = set()
    for limit in range(full.rows[0].prompt_length + 1, full.steps[-1].start, 7):
        (episode,) = roll(tokenizer, counting(1), lambda episode: "so " * 20, Budget(max_tokens=limit))
        check_episode(episode, tokenizer)
        assert episode.truncation == "tokens"
        assert len(episode.rows[0].token_ids) <= limit
        assert episode.rows[0].token_ids == full.rows[0].token_ids[: len(episode.rows[0].token_ids)] or (
            episode.steps[-1].finish_reason == "length"
        )
        lengths.add(len(episode.steps))
    assert len(lengths) > 3
    # The environment's own end lets no huge last answer through to the trainer's memory.
    act = lambda episode: "x" * 300  # noqa: E731 - echoed by the environment
    full = roll(tokenizer, counting(1, max_turns=1), act)[0]
    limit = full.steps[0].stop + 20
    assert len(full.rows[0].token_ids) > limit
    (episode,) = roll(tokenizer, counting(1, max_turns=1), act, Budget(max_tokens=limit))
    check_episode(episode, tokenizer)
    assert len(episode.rows[0].token_ids) == limit and len(episode.steps) == 1


def test_a_prompt_over_the_budget_is_a_failure_and_not_a_wrong_answer(tokenizer: Any) -> None:
    with pytest.raises(RolloutError, match="the prompt has .* tokens, max_tokens is 5"):
        roll(tokenizer, counting(2), budget=Budget(max_tokens=5))


def test_time_budget_of_a_slow_policy(tokenizer: Any) -> None:
    class Dawdler(SlowWriter):
        def poll(self) -> Any:
            time.sleep(0.002)
            return super().poll()

    policy = Dawdler(lambda episode: "word " * (1 if not episode.steps else 10_000), scripted(tokenizer)._encode)
    runner = Runner(policy, tokenizer, Budget(max_seconds=1.5, max_turn_tokens=10**6, max_tokens=10**6))
    episodes = runner.run(counting(3))
    runner.close()
    for episode in episodes:
        check_episode(episode, tokenizer)
        assert episode.truncation == "seconds" and len(episode.steps) == 1 and 1.5 <= episode.seconds < 15
    assert policy.pending == 0 and len(policy.aborted) == 3


def test_a_hung_environment_is_given_up(tokenizer: Any) -> None:
    """More of them than may be alive at a time: they do not use up the workers."""
    specs = counting(6, "Toy/Broken-v0", how="hang", when=1, tasks=(0, 2))
    runner = Runner(scripted(tokenizer), tokenizer, Budget(max_seconds=1.0), workers=2, max_live=2)
    for _ in range(2):
        episodes = runner.run(specs)
        assert [episode.success for episode in episodes] == [False, True, False, True, True, True]
        for episode in (episodes[0], episodes[2]):
            assert str(episode.failure) == "EnvFailure: no answer from the environment in 1.0 s"
            assert math.isnan(episode.reward)
    runner.close()


def test_a_hung_thread_does_not_keep_the_process_alive() -> None:
    code = "import time; from agent_gym.rollout.env_threads import Worker; Worker('w').submit(lambda: time.sleep(60))"
    subprocess.run([sys.executable, "-c", code], timeout=30, check=True)


@pytest.mark.parametrize("bad", [{"max_turn_tokens": 0}, {"max_tokens": -1}, {"max_turns": 0}, {"max_seconds": 0.0}])
def test_budgets_must_be_positive(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Budget(**bad)
