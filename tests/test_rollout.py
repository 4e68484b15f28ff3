"""The rollout loop: rows, order, scheduling, seeds, limits, and failures that may not touch another episode."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from typing import Any

import pytest
from rollout_tools import RandomWriter, check_episode, counting, expert, play, roll, scripted
from toy_envs import GatedEnv, SlowWriter

from agent_gym import ConfigError, RolloutError
from agent_gym.policies import ScriptedPolicy
from agent_gym.rollout import Budget, EpisodeSpec, Runner, derive_seed


def test_results_come_in_the_order_of_the_specs(tokenizer: Any) -> None:
    specs, rows = counting(40), []
    assert roll(tokenizer, []) == []
    for live, workers in ((512, 32), (3, 2), (1, 1)):
        runner = Runner(scripted(tokenizer), tokenizer, max_live=live, workers=workers)
        episodes, stats = runner.run(specs), runner.stats
        runner.close()
        rows.append([episode.rows for episode in episodes])
        assert stats.sampled_tokens == sum(episode.sampled_tokens for episode in episodes) > 0
        assert 0 <= stats.engine_seconds + stats.wait_seconds <= stats.wall_seconds
        assert [episode.spec for episode in episodes] == specs
        assert [episode.task_id for episode in episodes] == [f"train/{i}" for i in range(40)]
        for episode in episodes:
            check_episode(episode, tokenizer)
            assert episode.success and episode.terminated and episode.reward == pytest.approx(1.75)
            assert [m["role"] for m in episode.messages][:3] == ["system", "user", "assistant"]
            assert [step.action for step in episode.steps] == ["on", "on", "on", "stop"]
            assert all(step.finish_reason == "stop" for step in episode.steps)
    assert rows[0] == rows[1] == rows[2], "threads share one tokenizer"


def test_inline_answers_and_stop_strings(tokenizer: Any) -> None:
    """The turn stops behind the stop string, so that the answer continues the same turn."""
    seen: list[Any] = []

    class Recorder(ScriptedPolicy):
        def submit(self, request: Any) -> None:
            seen.append(request)
            super().submit(request)

    policy = Recorder(lambda episode: "a<b></go> never heard", scripted(tokenizer)._encode)
    (episode,) = play(policy, tokenizer, counting(1, "Toy/Inline-v0"), Budget(30, 900), t=0.5)
    check_episode(episode, tokenizer)
    assert episode.stop == ("</go>",) and episode.truncation == "turns"
    assert [step.finish_reason for step in episode.steps] == ["stop_string"] * 8
    assert [step.action for step in episode.steps] == ["a<b></go>"] * 8
    row = episode.rows[0]
    body = tokenizer.decode(row.token_ids[row.prompt_length :])
    assert "<|im_" not in body and body.startswith("a<b></go>1 ")
    # The requests carry prompt and parameters.
    assert len({request.id for request in seen}) == len(seen) == len(episode.steps)
    for request, step in zip(seen, episode.steps, strict=True):
        assert request.prompt_ids == row.token_ids[: step.start]  # each prompt extends the last one
        assert request.params.temperature == 0.5 and request.params.stop == ("</go>",)
        assert request.params.max_tokens == min(30, 900 - step.start)


# Scheduling.


def test_a_slow_environment_delays_nobody(tokenizer: Any) -> None:
    """Episode 0 answers only after all turns of the others are done: with a barrier between turns it never would."""
    GatedEnv.gate.clear()
    GatedEnv.turns.clear()
    GatedEnv.needed = 7 * 5
    policy = SlowWriter(lambda episode: "on", scripted(tokenizer)._encode)
    episodes = play(policy, tokenizer, counting(8, "Toy/Gated-v0", max_turns=5), workers=4)
    assert episodes[0].success, "the others waited for the slow environment"
    assert [len(episode.steps) for episode in episodes] == [1] + [5] * 7
    # Requests of one turn are decoded together: far fewer polls than one generation after the other would take.
    tokens = sum(episode.sampled_tokens for episode in episodes)
    assert policy.polls < tokens * 0.75


def test_a_batching_engine_is_handed_full_batches(tokenizer: Any) -> None:
    """An engine that cannot join requests to a running batch waits for all environments, not for the first."""
    sizes = []

    class Batcher(ScriptedPolicy):
        continuous = False

        def poll(self) -> Any:
            sizes.append(self.pending)
            return super().poll()

    episodes = play(Batcher(expert, scripted(tokenizer)._encode), tokenizer, counting(10))
    assert all(episode.success for episode in episodes)
    assert sizes == [10] * 4


def test_sampling_seeds_depend_on_the_spec_and_the_turn_alone(tokenizer: Any) -> None:
    def seeds(workers: int, live: int, specs: list[EpisodeSpec]) -> dict[Any, list[Any]]:
        policy = SlowWriter(expert, scripted(tokenizer)._encode)
        play(policy, tokenizer, specs, workers=workers, max_live=live)
        found: dict[Any, list[Any]] = {}
        for request in policy.seen:
            found.setdefault(request.episode.spec.index, []).append(request.params.seed)
        return found

    specs = counting(8)
    one = seeds(1, 1, specs)
    assert one == seeds(8, 8, specs[::-1]) == seeds(3, 2, specs)
    flat = [seed for turns in one.values() for seed in turns]
    assert len(set(flat)) == len(flat) == 8 * 4
    assert seeds(2, 2, [EpisodeSpec("Toy/Counting-v0", index=1)]) == {1: [None] * 4}


def test_a_spec_may_be_played_greedily_beside_others(tokenizer: Any) -> None:
    asked: dict[int, set[float]] = {}

    class Recorder(RandomWriter):
        def submit(self, request: Any) -> None:
            asked.setdefault(request.episode.spec.index, set()).add(request.params.temperature)
            super().submit(request)

    specs = [dataclasses.replace(spec, greedy=spec.index == 1) for spec in counting(3)]
    play(Recorder(), tokenizer, specs, Budget(8, 300), t=0.7)
    assert asked == {0: {0.7}, 1: {0.0}, 2: {0.7}}


# Failures.


@pytest.mark.parametrize(
    ("how", "words", "when"),
    [
        ("crash", "RuntimeError: a bug", 2),
        ("failure", "EnvFailure: the index is gone", -1),
    ],
)
def test_a_crashed_environment_is_one_failed_episode(tokenizer: Any, how: str, words: str, when: int) -> None:
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
    with pytest.raises(ConfigError, match="'colour' is 'loud'"):
        play(policy, tokenizer, counting(5, "Toy/Broken-v0", how="config", when=when, tasks=(3,)))
    assert policy.pending == 0


@pytest.mark.parametrize(
    ("env_id", "kwargs", "words"),
    [
        ("Toy/Cuonting-v0", {}, "did you mean Toy/Counting-v0"),
        ("CartPole-v1", {}, "TextEnv"),
        ("Toy/Counting-v0", {"colour": 1}, "colour"),
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
    for limit in range(full.rows[0].prompt_length + 1, full.steps[-1].start, 21):
        (episode,) = roll(tokenizer, counting(1), lambda episode: "so " * 20, Budget(max_tokens=limit))
        check_episode(episode, tokenizer)
        ids, cut = episode.rows[0].token_ids, episode.steps[-1].finish_reason == "length"
        assert episode.truncation == "tokens" and len(ids) <= limit
        assert cut or ids == full.rows[0].token_ids[: len(ids)]
    # The environment's own end lets no huge last answer through to the trainer's memory.
    act = lambda episode: "x" * 300  # noqa: E731 - echoed by the environment
    full = roll(tokenizer, counting(1, max_turns=1), act)[0]
    limit = full.steps[0].stop + 20
    assert len(full.rows[0].token_ids) > limit
    (episode,) = roll(tokenizer, counting(1, max_turns=1), act, Budget(max_tokens=limit))
    check_episode(episode, tokenizer)
    assert len(episode.rows[0].token_ids) == limit and len(episode.steps) == 1


def test_a_prompt_over_the_budget_is_a_failure_and_not_a_wrong_answer(tokenizer: Any) -> None:
    with pytest.raises(RolloutError, match="the prompt has .* tokens, max_tokens is 5: raise it"):
        roll(tokenizer, counting(2), budget=Budget(max_tokens=5))


def test_a_hung_thread_does_not_keep_the_process_alive() -> None:
    code = (
        "import threading, time; from agent_gym.vector import TextVectorEnv; hang = lambda: time.sleep(60); "
        "threading.Thread(target=TextVectorEnv, args=([hang],), kwargs={'workers': 1}, daemon=True).start(); "
        "time.sleep(1)"
    )
    subprocess.run([sys.executable, "-c", code], timeout=30, check=True)


# Small parts.


def test_budgets_are_positive_and_derived_seeds_differ() -> None:
    for name, value in {"max_turn_tokens": 0, "max_tokens": -1, "max_turns": 0, "max_seconds": 0.0}.items():
        with pytest.raises(ConfigError, match=name):
            Budget(**{name: value})  # type: ignore[arg-type]
    seeds = {derive_seed(*parts) for parts in ((0,), (0, 0), (1,), (1, 0), (0, 1), (1, 0, 0), (2**40,), (-1,))}
    assert len(seeds) == 8, "different parts give different seeds, zeros at the end included"
    assert all(0 <= seed < 2**31 for seed in seeds)
