"""Evaluation: specs over a split, means, and the formulas, held to their definitions, to scipy and to simulations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rollout_tools import counting, roll

from agent_gym import ConfigError
from agent_gym.evaluate import EvalResult, episode_values, make_specs, summarize, wilson_interval
from agent_gym.evaluate.compare import Run, compare
from agent_gym.evaluate.statistics import (
    Measure,
    compare_means,
    compare_shares,
    mcnemar,
    mean,
    newcombe_interval,
    pass_at_k,
    pass_hat_k,
    permutation,
    share,
    student_quantile,
)
from agent_gym.rollout import EpisodeSpec
from agent_gym.tools import HermesParser

GSM8K = "AgentR1/GSM8K-v0"
VALUES = [1.0, 2.0, 4.0, 9.0, 3.5]
call = HermesParser().render


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 0, 0.0, 1.0),
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


def test_the_numbers_of_an_episode(tokenizer: Any) -> None:
    wrong = call("calculator", {"expression": "1/0"}) + call("fly", {}) + "<tool_call>{</tool_call>"
    texts = [[call("calculator", {"expression": "1+1"}) * 3, "<answer>0</answer>"], [wrong, "<answer>1</answer>"]]
    specs = [EpisodeSpec(GSM8K, {"max_turns": 2}, index=i) for i in range(2)]
    episodes = roll(tokenizer, specs, lambda episode: texts[episode.spec.index][len(episode.steps)])
    good, bad = map(episode_values, episodes)
    counts = [f"episode/{name}" for name in ("turns", "truncated", "tool_calls", "parse_errors")]
    assert [[one[name] for name in counts] for one in (good, bad)] == [[2.0, 0.0, 3.0, 0.0], [2.0, 0.0, 3.0, 2.0]]
    assert good["reward/format"] == pytest.approx(0.1) and good["reward/call"] == 0.0
    # A policy cannot invent names of metrics.
    calls = {"tool/calculator/calls": 1.0, "tool/calculator/errors": 1.0}
    calls |= {"tool/invalid/calls": 2.0, "tool/invalid/errors": 2.0}
    assert {name: value for name, value in bad.items() if name.startswith("tool/")} == calls


def test_specs_spread_over_the_split() -> None:
    def specs_of(seed: int) -> list[EpisodeSpec]:
        return make_specs(GSM8K, {"max_turns": 3}, split="validation", episodes=5, group_size=2, seed=seed)

    specs = specs_of(4)
    places = [(spec.index, spec.group, spec.member) for spec in specs]
    assert places == [(index, index, member) for index in range(5) for member in (0, 1)]
    assert all(spec.split == "validation" and spec.env_kwargs == {"max_turns": 3} for spec in specs)
    seeds, sampling = {spec.seed for spec in specs}, {spec.sampling_seed for spec in specs}
    assert len(seeds) == 5, "members of a group face the same start"
    assert len(sampling) == 10 and not seeds & sampling, "and answer it in their own ways"
    assert specs == specs_of(4) and seeds.isdisjoint(spec.seed for spec in specs_of(5))
    assert len(make_specs("Toy/Counting-v0", {"n_tasks": 7}, split="train")) == 7
    with pytest.raises(ConfigError, match="'dev'.*train, validation, test"):
        make_specs(GSM8K, split="dev", episodes=1)
    with pytest.raises(ConfigError, match="51 episodes.*50 tasks"):
        make_specs("Toy/Counting-v0", split="train", episodes=51)


# The formulas


@pytest.mark.parametrize(("n", "successes"), [(1, 1), (5, 0), (5, 2), (6, 5), (7, 7)])
def test_pass_at_k_and_pass_hat_k_are_shares_of_all_draws(n: int, successes: int) -> None:
    """Chen et al., Yao et al.: the mean over all ways to draw k of the n attempts, which makes it unbiased."""
    outcomes = [i < successes for i in range(n)]
    for k in range(1, n + 1):
        draws = list(itertools.combinations(outcomes, k))
        assert pass_at_k(n, successes, k) == pytest.approx(sum(map(any, draws)) / len(draws))
        assert pass_hat_k(n, successes, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_student_quantiles() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    for df in (1, 2, 3, 4, 7, 20, 100, 1318):
        assert student_quantile(df) == pytest.approx(scipy_stats.t.ppf(0.975, df), rel=2e-3)


def test_a_mean_over_single_attempts_has_the_textbook_interval() -> None:
    half = student_quantile(4) * np.std(VALUES, ddof=1) / math.sqrt(5)
    found = mean(VALUES, [1] * 5)
    assert found == Measure(pytest.approx(3.9), pytest.approx(3.9 - half), pytest.approx(3.9 + half))
    assert mean(VALUES, [1] * 5, least=2.0).low == 2.0
    assert mean([3.0] * 5, [1] * 5) == Measure(3.0, None, None), "no spread shows nothing of the error"
    assert mean([3.0], [1]) == Measure(3.0, None, None)


def test_attempts_that_are_copies_of_each_other_add_nothing() -> None:
    assert mean([4 * value for value in VALUES], [4] * 5) == mean(VALUES, [1] * 5)
    wins = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    single, copies = share(wins, [1] * 7, 7), share([4 * win for win in wins], [4] * 7, 28)
    assert (single.low, single.high) == wilson_interval(4, 7)
    assert (copies.low, copies.high) == pytest.approx((single.low, single.high))


def test_attempts_are_never_worth_more_than_they_are_many() -> None:
    even = share([1.0] * 50, [2] * 50, 100)  # every task half solved, more evenly than by chance
    assert (even.low, even.high) == wilson_interval(50, 100)
    # Without a failure nothing shows how attempts of a task differ, so each task counts once.
    assert share([8.0] * 50, [8] * 50, 400).low == wilson_interval(50, 50)[0]


def coverage(intervals: Sequence[Measure], truth: float) -> float:
    return float(np.mean([m.low is not None and m.high is not None and m.low <= truth <= m.high for m in intervals]))


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Tasks of different difficulty, four attempts each: 95%, where one that takes attempts for tasks has far less."""
    rng = np.random.default_rng(1)
    skill = rng.beta(0.4, 0.6, size=(1000, 100))
    wins = rng.binomial(4, skill)
    counts = [4] * 100
    assert coverage([share(list(map(float, row)), counts, 400) for row in wins], 0.4) == pytest.approx(0.95, abs=0.025)
    assert coverage([mean(list(map(float, row)), counts) for row in wins], 0.4) == pytest.approx(0.95, abs=0.025)
    naive = [Measure(0.0, *wilson_interval(float(row.sum()), 400)) for row in wins]
    assert coverage(naive, 0.4) < 0.8


def test_mcnemar_is_the_sign_test_of_the_tasks_that_differ() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    for only_a, only_b in ((0, 0), (0, 1), (3, 3), (1, 9), (12, 4), (40, 70)):
        n = only_a + only_b
        expected = scipy_stats.binomtest(only_a, n).pvalue if n else 1.0
        assert mcnemar(only_a, only_b) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("cells", "low", "high"),
    # Newcombe 1998, table II, method 10; his difference is a - b. The second row is computed from the formula in
    # Altman et al., Statistics with Confidence, 2000, p. 52.
    [
        ((36, 12, 2, 0), 0.0569, 0.3404),
        ((20, 12, 2, 16), 0.0562, 0.3292),  # a positive covariance, which is corrected for continuity
        ((0, 0, 50, 0), -1.0, -0.8995),
        ((54, 0, 0, 0), -0.0664, 0.0664),
    ],
)
def test_newcombe_intervals(cells: tuple[int, int, int, int], low: float, high: float) -> None:
    found = newcombe_interval(*cells)
    assert found == pytest.approx((-high, -low), abs=1e-3)


def test_permutation_of_few_tasks_is_exact_and_of_many_drawn() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    assert permutation([]) == permutation([0.0, 0.0]) == 1.0
    assert permutation([1.0, 1.0, 1.0]) == 2 / 8
    few = [0.3, -0.1, 0.9, 0.4, 0.0, 0.25, -0.05]
    test = scipy_stats.permutation_test((few,), np.sum, permutation_type="samples", n_resamples=10**5)
    assert permutation(few) == pytest.approx(test.pvalue)
    rng = np.random.default_rng(3)
    many = rng.normal(0.2, 1.0, size=100)
    p = permutation(list(many))
    assert p == permutation(list(many)), "the same data give the same number"
    assert p == pytest.approx(scipy_stats.ttest_1samp(many, 0).pvalue, abs=0.01)
    assert permutation([1.0] * 200) == pytest.approx(1e-4, rel=1e-3)


def test_differences_are_the_second_minus_the_first() -> None:
    a, b = [1.0, 0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0, 0.0]
    shares, means = compare_shares(a, b), compare_means(a, b)
    for found, test in ((shares, "mcnemar"), (means, "permutation")):
        assert (found.a, found.b, found.difference, found.p, found.test) == (0.4, 0.8, pytest.approx(0.4), 0.5, test)
    assert shares.low is not None and shares.high is not None and shares.low < 0.4 < shares.high
    assert compare_means(a, a).p == 1.0 and compare_means(a, a).low is None


def test_an_em_that_is_a_part_is_no_share_of_tasks(tokenizer: Any) -> None:
    runs = [Run(name, "Toy/Counting-v0", {}) for name in "ab"]
    for run, em in zip(runs, (0.5, 1.0), strict=True):
        for episode in roll(tokenizer, counting(4)):
            episode.steps[-1].metrics = {"em": em}
            run.add(episode)
    found = compare(*runs).measures["env/em"]
    assert (found.difference, found.test, found.p) == (0.5, "permutation", 2 / 2**4)
