"""Evaluation: the interval, the means, and the specs that spread over a split."""

from __future__ import annotations

from typing import Any

import pytest
from rollout_tools import counting, roll, scripted

from agent_gym import ConfigError
from agent_gym.evaluate import EvalResult, episode_metrics, evaluate, make_specs, summarize, wilson_interval
from agent_gym.formats.hermes import HermesParser
from agent_gym.rollout import EpisodeSpec, Runner

GSM8K = "AgentR1/GSM8K-v0"
call = HermesParser().render


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 0, 0.0, 1.0),
        (0, 10, 0.0, 0.27753),
        (5, 10, 0.23659, 0.76341),
        (10, 10, 0.72247, 1.0),
        (1, 1000, 0.00017655, 0.00564256),
        (730, 1000, 0.70164, 0.75659),
    ],
)
def test_wilson_interval(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=2e-5)


def test_summary_counts_but_does_not_average_failures(tokenizer: Any) -> None:
    episodes = roll(tokenizer, counting(4, "Toy/Broken-v0", tasks=(1,)))
    result = summarize(episodes)
    assert (result.episodes, result.failed, result.success) == (3, 1, 1.0)
    assert result.reward == pytest.approx(1.75)
    assert (result.low, result.high) == wilson_interval(3, 3)
    assert str(result) == f"100.0% [{result.low:.1%}, 100.0%] of 3"
    nothing = summarize([])
    assert nothing == EvalResult(0, 0) and (nothing.success, nothing.low, nothing.high) == (0.0, 0.0, 1.0)


def test_metrics_are_means_per_episode_and_per_call(tokenizer: Any) -> None:
    texts = {
        0: [call("calculator", {"expression": "1+1"}) * 3, "<answer>0</answer>"],
        1: [
            call("calculator", {"expression": "1/0"}) + call("fly", {}) + "<tool_call>{</tool_call>",
            "<answer>1</answer>",
        ],
    }
    specs = [EpisodeSpec(GSM8K, {"max_turns": 2}, index=i) for i in range(2)]
    episodes = roll(tokenizer, specs, lambda episode: texts[episode.spec.index][len(episode.steps)])
    metrics = episode_metrics(episodes)
    assert metrics["episode/turns"] == 2.0
    assert metrics["episode/tokens"] == sum(episode.sampled_tokens for episode in episodes) / 2
    assert metrics["episode/truncated"] == 0.0
    assert metrics["tool/calculator/calls"] == 2.0 and metrics["tool/calculator/errors"] == 0.5
    assert metrics["tool/invalid/calls"] == 1.0 and metrics["tool/invalid/errors"] == 1.0
    assert metrics["episode/tool_calls"] == 3.0 and metrics["episode/parse_errors"] == 1.0
    assert metrics["tool/calculator/latency"] > 0
    assert metrics["reward/format"] == pytest.approx(0.1) and metrics["reward/call"] == 0.0
    # A policy cannot invent metric names.
    assert {name for name in metrics if name.startswith("tool/")} == {
        f"tool/{name}/{what}" for name in ("calculator", "invalid") for what in ("calls", "errors", "latency")
    }


def test_specs_spread_over_the_split() -> None:
    specs = make_specs(GSM8K, {"max_turns": 3}, split="validation", episodes=5, group_size=2, seed=4)
    places = [(spec.index, spec.group, spec.member) for spec in specs]
    assert places == [(index, index, member) for index in range(5) for member in (0, 1)]
    assert all(spec.split == "validation" and spec.env_kwargs == {"max_turns": 3} for spec in specs)
    assert len({spec.seed for spec in specs}) == 5, "members of a group face the same start"
    assert len({spec.sampling_seed for spec in specs}) == 10, "and answer it in their own ways"
    assert not {spec.seed for spec in specs} & {spec.sampling_seed for spec in specs}
    assert specs == make_specs(GSM8K, {"max_turns": 3}, split="validation", episodes=5, group_size=2, seed=4)
    assert {spec.seed for spec in specs}.isdisjoint(
        spec.seed for spec in make_specs(GSM8K, split="validation", episodes=5, seed=5)
    )
    assert len(make_specs("Toy/Counting-v0", {"n_tasks": 7}, split="train")) == 7


def test_specs_that_cannot_be_made() -> None:
    with pytest.raises(ConfigError, match="'dev'.*train, validation, test"):
        make_specs(GSM8K, split="dev", episodes=1)
    with pytest.raises(ConfigError, match="51 episodes.*50 tasks"):
        make_specs("Toy/Counting-v0", split="train", episodes=51)


def test_evaluate_plays_greedily(tokenizer: Any) -> None:
    temperatures = set()
    policy = scripted(tokenizer)
    submit = policy.submit
    policy.submit = lambda request: (temperatures.add(request.params.temperature), submit(request))[1]  # type: ignore[method-assign]
    runner = Runner(policy, tokenizer)
    result = evaluate(runner, make_specs(GSM8K, split="test", episodes=30))
    runner.close()
    assert (result.success, result.episodes, result.failed) == (1.0, 30, 0)
    assert result.reward == pytest.approx(1.1) and result.metrics["reward/answer"] == 1.0
    assert temperatures == {0.0}
