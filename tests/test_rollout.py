"""The rollout loop: every way an episode can go, none of which may touch another episode."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from typing import Any

import pytest
from toy_envs import CountingEnv, GatedEnv, SlowWriter

from agent_gym import ConfigError, RolloutError
from agent_gym.policies import Request, ScriptedPolicy
from agent_gym.rollout import Budget, EnvPool, Episode, EpisodeSpec, Row, Runner, derive_seed, make_env
from agent_gym.transcript import Span, check_tiling


def expert(episode: Any) -> str:
    return str(episode.env.unwrapped.expert_action())


def scripted(runner_or_tokenizer: Any, act: Any = expert) -> ScriptedPolicy:
    from agent_gym.chat import ChatRenderer

    return ScriptedPolicy(act, ChatRenderer.of(runner_or_tokenizer).encode_action)


def counting(n: int, env_id: str = "Toy/Counting-v0", **kwargs: Any) -> list[EpisodeSpec]:
    return [EpisodeSpec(env_id, kwargs, seed=i, split="train", index=i, sampling_seed=100 + i) for i in range(n)]


def roll(
    tokenizer: Any, specs: list[EpisodeSpec], act: Any = expert, budget: Budget | None = None, **kw: Any
) -> list[Episode]:
    runner = Runner(scripted(tokenizer, act), tokenizer, budget, **kw)
    try:
        return runner.run(specs)
    finally:
        runner.close()


def check_episode(episode: Episode, tokenizer: Any) -> None:
    """What holds for every episode that did not fail."""
    assert episode.env is None
    (row,) = episode.rows
    check_tiling(row.spans, len(row.token_ids))
    assert len(row.logprobs) == len(row.token_ids)
    mine = [i for step in episode.steps for i in range(step.start, step.stop)]
    assert [i for i, flag in enumerate(row.action_mask) if flag] == mine
    for k, step in enumerate(episode.steps):
        text = tokenizer.decode(row.token_ids[step.start : step.stop])
        assert text.removesuffix("<|im_end|>") == step.action
        assert all(span.step == k for span in row.spans if span.start == step.start)
    assert episode.reward == pytest.approx(sum(step.reward for step in episode.steps))
    assert episode.reward == pytest.approx(sum(episode.reward_terms.values()))
    assert episode.terminated != episode.truncated
    assert (episode.truncation is None) == episode.terminated
    assert episode.sampled_tokens == len(mine)
    assert row.prompt_length == episode.steps[0].start


def test_results_come_in_the_order_of_the_specs(tokenizer: Any) -> None:
    specs = counting(40)
    for live, workers in ((512, 8), (3, 2), (1, 1)):
        episodes = roll(tokenizer, specs, max_live=live, workers=workers)
        assert [episode.spec for episode in episodes] == specs
        assert [episode.task_id for episode in episodes] == [f"train/{i}" for i in range(40)]
        for episode in episodes:
            check_episode(episode, tokenizer)
            assert episode.success and episode.terminated and episode.reward == pytest.approx(1.75)
            assert [m["role"] for m in episode.messages][:3] == ["system", "user", "assistant"]
            assert [step.action for step in episode.steps] == ["on", "on", "on", "stop"]
            assert all(step.finish_reason == "stop" for step in episode.steps)


def test_no_specs_no_episodes(tokenizer: Any) -> None:
    assert roll(tokenizer, []) == []


def test_rows_are_what_the_environment_alone_would_report(tokenizer: Any) -> None:
    (episode,) = roll(tokenizer, counting(1))
    env = make_env("Toy/Counting-v0", tokenizer=tokenizer)
    env.reset(seed=0, options={"split": "train", "index": 0})
    for step in episode.steps:
        env.step(step.action)
    assert episode.rows[0].token_ids == env.unwrapped.transcript.token_ids
    assert episode.rows[0].spans == env.unwrapped.transcript.token_spans


def test_inline_answers_and_stop_strings(tokenizer: Any) -> None:
    """The turn stops behind the stop string, so that the answer continues the same turn."""
    episodes = roll(tokenizer, counting(2, "Toy/Inline-v0"), lambda episode: "a<b></go> never said")
    for episode in episodes:
        check_episode(episode, tokenizer)
        assert episode.stop == ("</go>",) and episode.truncation == "turns"
        assert [step.finish_reason for step in episode.steps] == ["stop_string"] * 8
        assert [step.action for step in episode.steps] == ["a<b></go>"] * 8
        body = tokenizer.decode(episode.rows[0].token_ids[episode.rows[0].prompt_length :])
        assert "<|im_" not in body and body.startswith("a<b></go>1 ")


def test_logprobs_stand_at_the_sampled_tokens(tokenizer: Any) -> None:
    runner = Runner(SlowWriter(expert, scripted(tokenizer)._encode), tokenizer)
    (episode,) = runner.run(counting(1))
    runner.close()
    row = episode.rows[0]
    assert row.logprobs == [-0.5 if mine else 0.0 for mine in row.action_mask]


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
            assert episode.failure is not None and episode.failure.startswith(words)
            assert math.isnan(episode.reward) and not episode.success
            assert len(episode.steps) == max(0, when) and episode.env is None
        else:
            check_episode(episode, tokenizer)
            assert episode.success and episode.failure is None


def test_all_crashed_is_an_error(tokenizer: Any) -> None:
    with pytest.raises(RolloutError, match="all 3 episodes failed; the first: RuntimeError: a bug in the environment"):
        roll(tokenizer, counting(3, "Toy/Broken-v0"))


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
        ("no_such_module:Toy/Counting-v0", {}, "no_such_module"),
        ("CartPole-v1", {}, "TextEnv"),
        ("Toy/Counting-v0", {"colour": 1}, "colour"),
        ("Toy/Counting-v0", {"max_turns": 0}, "max_turns"),
    ],
)
def test_environments_that_cannot_be_made(tokenizer: Any, env_id: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        roll(tokenizer, [EpisodeSpec(env_id, kwargs)])


def test_an_index_out_of_range_is_the_users_mistake(tokenizer: Any) -> None:
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


def test_token_budget_holds_when_the_last_answer_is_long(tokenizer: Any) -> None:
    """The environment's own end must not let a huge last answer through to the trainer's memory."""
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
    runner = Runner(policy, tokenizer, Budget(max_seconds=0.3, max_turn_tokens=10**6, max_tokens=10**6))
    episodes = runner.run(counting(3))
    runner.close()
    for episode in episodes:
        check_episode(episode, tokenizer)
        assert episode.truncation == "seconds" and len(episode.steps) == 1 and 0.3 <= episode.seconds < 5
    assert policy.pending == 0 and len(policy.aborted) == 3


def test_a_hung_environment_is_given_up(tokenizer: Any) -> None:
    started = time.perf_counter()
    specs = counting(6, "Toy/Broken-v0", how="hang", when=1, tasks=(2,))
    episodes = roll(tokenizer, specs, budget=Budget(max_seconds=1.0), workers=3)
    assert time.perf_counter() - started < 10
    assert episodes[2].failure == "EnvFailure: no answer from the environment in 1.0 s"
    assert math.isnan(episodes[2].reward)
    assert all(episode.success for i, episode in enumerate(episodes) if i != 2)


def test_hung_environments_do_not_use_up_the_workers(tokenizer: Any) -> None:
    specs = counting(5, "Toy/Broken-v0", how="hang", when=0, tasks=(0, 1))
    runner = Runner(scripted(tokenizer), tokenizer, Budget(max_seconds=1.0), workers=2, max_live=2)
    for _ in range(2):
        episodes = runner.run(specs)
        assert [episode.success for episode in episodes] == [False, False, True, True, True]
        assert all(episode.failure for episode in episodes[:2])
    runner.close()


def test_a_hung_thread_does_not_keep_the_process_alive() -> None:
    code = "import time; from agent_gym.rollout.workers import Workers; Workers(1).submit(lambda: time.sleep(60))"
    subprocess.run([sys.executable, "-c", code], timeout=30, check=True)


@pytest.mark.parametrize("bad", [{"max_turn_tokens": 0}, {"max_tokens": -1}, {"max_turns": 0}, {"max_seconds": 0.0}])
def test_budgets_must_be_positive(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Budget(**bad)


# Scheduling.


def test_a_slow_environment_delays_nobody(tokenizer: Any) -> None:
    """Episode 0 answers only after all turns of the others are done: with a barrier between turns it never would."""
    GatedEnv.gate.clear()
    GatedEnv.turns.clear()
    GatedEnv.needed = 7 * 5
    policy = SlowWriter(lambda episode: "on", scripted(tokenizer)._encode)
    runner = Runner(policy, tokenizer, workers=4)
    episodes = runner.run(counting(8, "Toy/Gated-v0", max_turns=5))
    runner.close()
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

    runner = Runner(Batcher(expert, scripted(tokenizer)._encode), tokenizer)
    assert all(episode.success for episode in runner.run(counting(10)))
    runner.close()
    assert sizes == [10] * 4


def test_few_episodes_are_alive_at_a_time(tokenizer: Any) -> None:
    alive = []

    def act(episode: Any) -> str:
        alive.append(sum(request.episode.env is not None for request, *_ in policy.running.values()) + 1)
        return expert(episode)

    policy = SlowWriter(act, scripted(tokenizer)._encode)
    runner = Runner(policy, tokenizer, max_live=3)
    assert all(episode.success for episode in runner.run(counting(12)))
    runner.close()
    assert max(alive) == 3


def test_environments_are_reused_by_id_and_arguments(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = CountingEnv.__init__

    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(1)
        original(self, *args, **kwargs)

    monkeypatch.setattr(CountingEnv, "__init__", counted)
    runner = Runner(scripted(tokenizer), tokenizer, max_live=4)
    first = runner.run(counting(20))
    assert len(made) <= 4
    second = runner.run(counting(20))
    assert len(made) <= 4
    strip = [[(step.action, step.observation, step.reward) for step in episode.steps] for episode in first]
    assert strip == [[(step.action, step.observation, step.reward) for step in episode.steps] for episode in second]
    assert [episode.rows for episode in first] == [episode.rows for episode in second]
    runner.run(counting(4, max_turns=2))  # other arguments are another environment
    assert 4 < len(made) <= 8
    runner.close()


def test_a_broken_environment_is_not_reused(tokenizer: Any) -> None:
    pool = EnvPool(tokenizer)
    env = pool.take("Toy/Counting-v0", {"max_turns": 3})
    pool.give("Toy/Counting-v0", {"max_turns": 3}, env)
    assert pool.take("Toy/Counting-v0", {"max_turns": 3}) is env
    assert pool.take("Toy/Counting-v0", {"max_turns": 3}) is not env
    assert pool.take("Toy/Counting-v0", {"max_turns": 4}) is not env
    used: dict[int, Any] = {}

    def act(episode: Any) -> str:
        used[episode.spec.index] = episode.env
        return expert(episode)

    runner = Runner(scripted(tokenizer, act), tokenizer, max_live=1)
    runner.run(counting(3, "Toy/Broken-v0", tasks=(0,)))
    assert used[1] is used[2] is not used[0]
    runner.close()
    assert not runner._envs._idle


def test_sampling_seeds_depend_on_the_spec_and_the_turn_alone(tokenizer: Any) -> None:
    def seeds(workers: int, live: int, specs: list[EpisodeSpec]) -> dict[Any, list[Any]]:
        policy = SlowWriter(expert, scripted(tokenizer)._encode)
        runner = Runner(policy, tokenizer, workers=workers, max_live=live)
        runner.run(specs)
        runner.close()
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


def test_requests_carry_prompt_and_parameters(tokenizer: Any) -> None:
    policy = SlowWriter(expert, scripted(tokenizer)._encode)
    runner = Runner(policy, tokenizer, Budget(max_turn_tokens=9, max_tokens=300))
    (episode,) = runner.run(counting(1, "Toy/Inline-v0"), temperature=0.5)
    runner.close()
    row = episode.rows[0]
    assert len({request.id for request in policy.seen}) == len(policy.seen) == len(episode.steps)
    for request, step in zip(policy.seen, episode.steps, strict=True):
        assert isinstance(request, Request)
        assert request.prompt_ids == row.token_ids[: step.start]  # each prompt extends the last one
        assert request.params.temperature == 0.5 and request.params.stop == ("</go>",)
        assert request.params.max_tokens == min(9, 300 - step.start)


def test_statistics_add_up(tokenizer: Any) -> None:
    runner = Runner(scripted(tokenizer), tokenizer)
    episodes = runner.run(counting(10))
    stats = runner.stats
    assert stats.sampled_tokens == sum(episode.sampled_tokens for episode in episodes) > 0
    assert 0 <= stats.engine_seconds + stats.wait_seconds <= stats.wall_seconds
    assert stats.overhead_seconds == pytest.approx(stats.wall_seconds - stats.engine_seconds - stats.wait_seconds)
    runner.close()


def test_many_threads_share_one_tokenizer(tokenizer: Any) -> None:
    """Fast tokenizers complain ("Already borrowed") when threads change their settings; ours only read."""
    specs = counting(60, n_tasks=60)
    one = roll(tokenizer, specs, workers=1)
    many = roll(tokenizer, specs, workers=32)
    assert [episode.rows for episode in one] == [episode.rows for episode in many]


# Small parts.


def test_derived_seeds() -> None:
    seeds = {
        derive_seed(*parts) for parts in ((0,), (0, 0), (0, 0, 0), (1,), (1, 0), (0, 1), (1, 0, 0), (2**40,), (-1,))
    }
    assert len(seeds) == 9, "different parts give different seeds, zeros at the end included"
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert derive_seed(3, 4) == derive_seed(3, 4) != derive_seed(4, 3)


def test_row_moves_spans_and_cuts() -> None:
    row = Row()
    row.extend([1, 2, 3], [Span(0, 3, "user", -1)])
    row.extend([4, 5, 6], [Span(10, 12, "agent", 0), Span(12, 13, "env", 0)], [-0.1, -0.2])
    assert row.spans == [Span(0, 3, "user", -1), Span(3, 5, "agent", 0), Span(5, 6, "env", 0)]
    assert row.logprobs == [0.0, 0.0, 0.0, -0.1, -0.2, 0.0]
    assert row.action_mask == [False, False, False, True, True, False]
    assert row.prompt_length == 3
    row.cut(5)
    assert (row.token_ids, row.logprobs) == ([1, 2, 3, 4, 5], [0.0, 0.0, 0.0, -0.1, -0.2])
    row.cut(4)
    assert row.spans == [Span(0, 3, "user", -1), Span(3, 4, "agent", 0)] and row.action_mask[-1]
    row.cut(9)
    assert len(row.token_ids) == 4
    row.cut(2)
    assert row.prompt_length == 2 and row.action_mask == [False, False]


# With a model.


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torch")
    from tiny import make_tiny_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def roll_model(tiny_model: Any, specs: list[EpisodeSpec], temperature: float = 1.0, **kwargs: Any) -> list[Episode]:
    from agent_gym.chat import ChatRenderer
    from agent_gym.policies import TransformersPolicy

    model, tokenizer = tiny_model
    renderer = ChatRenderer.of(tokenizer)
    policy = TransformersPolicy(model, renderer.eos_token_ids, tokenizer.pad_token_id, tokenizer.decode)
    runner = Runner(policy, tokenizer, Budget(max_turn_tokens=12, max_tokens=700), **kwargs)
    try:
        return runner.run(specs, temperature=temperature)
    finally:
        runner.close()
        policy.close()


def test_a_model_rolls_out(tiny_model: Any) -> None:
    """Random weights write bytes that are no text, cut turns off and never call a tool: all of it must be kept."""
    specs = [EpisodeSpec("AgentR1/GSM8K-v0", seed=i, index=i, sampling_seed=i) for i in range(6)]
    specs += counting(6, max_turns=3) + counting(2, "Toy/Inline-v0", max_turns=3)
    drifted = 0
    for episode in roll_model(tiny_model, specs):
        assert episode.failure is None
        (row,) = episode.rows
        check_tiling(row.spans, len(row.token_ids))
        for step in episode.steps:
            assert all(row.action_mask[step.start : step.stop]) and step.stop > step.start
            assert all(value < 0 for value in row.logprobs[step.start : step.stop])
            sampled = row.token_ids[step.start : step.stop]
            drifted += tiny_model[1](tiny_model[1].decode(sampled), add_special_tokens=False)["input_ids"] != sampled
        assert sum(row.action_mask) == episode.sampled_tokens
        assert all(value == 0 for value, mine in zip(row.logprobs, row.action_mask, strict=True) if not mine)
    assert drifted > 5, "these ids would not survive decoding and encoding"


def test_logprobs_of_a_rollout_are_those_of_one_forward_pass(tiny_model: Any) -> None:
    """Whole rows, several turns: what the trainer computes from the row is what the policy reported."""
    import torch

    model, _ = tiny_model
    for episode in roll_model(tiny_model, counting(4, max_turns=3)):
        (row,) = episode.rows
        ids = torch.tensor([row.token_ids])
        with torch.no_grad():
            logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
        scored = logprobs.gather(-1, ids[0, 1:, None])[:, 0]
        mine = torch.tensor(row.action_mask[1:])
        assert torch.allclose(scored[mine], torch.tensor(row.logprobs[1:])[mine], atol=1e-5)
        assert len(episode.steps) == 3


def test_sampling_does_not_depend_on_workers_or_company(tiny_model: Any) -> None:
    specs = counting(6, max_turns=3)
    alone = [roll_model(tiny_model, [spec], workers=1)[0].rows[0].token_ids for spec in specs]
    together = [episode.rows[0].token_ids for episode in roll_model(tiny_model, specs, workers=8)]
    few = [episode.rows[0].token_ids for episode in roll_model(tiny_model, specs[::-1], max_live=2)][::-1]
    assert alone == together == few
    other = [
        EpisodeSpec(spec.env_id, spec.env_kwargs, spec.seed, "train", spec.index, sampling_seed=7) for spec in specs
    ]
    assert [episode.rows[0].token_ids for episode in roll_model(tiny_model, other)] != alone
