"""Estimates with 95% intervals, and two policies compared on the same tasks.

Written by hand: scipy and statsmodels are 80 MB for these few lines, and have no clustered Wilson interval.

Attempts at one task are alike, and so are tasks with one prompt (prompts.py), so prompts are the sample, and not
attempts; a task is a prompt below. With G tasks, x_g the sum of a quantity over the attempts at task g and n_g their
number, the estimate is m = sum(x_g) / sum(n_g), with residuals e_g = x_g - m n_g. Its variance is v = sum(e_g^2) /
sum(n_g)^2 (the linearised ratio estimator: W. G. Cochran, Sampling Techniques, 1977, section 6.5; the same as the
clustered standard errors of E. Miller, arXiv:2411.00640, section 2.2).

- A mean has Student's interval, m +- t sqrt(v G / (G - 1)) with G - 1 degrees of freedom.
- A share (success, pass@k, pass^k, truncation) has Wilson's interval at the effective number of attempts,
  m (1 - m) / v, which is the number of independent attempts that would leave it as uncertain (E. L. Korn and B. I.
  Graubard, Survey Methodology 24, 1998). With one attempt per task that is their number.

Two policies are compared task by task, since tasks differ in difficulty far more than policies do. With d_g the
difference of the means of a quantity over the attempts at task g, for n tasks:

- Success with one attempt each: McNemar's exact test (Q. McNemar, Psychometrika 12, 1947): of the tasks that one of the
  two alone solved, each is the one's or the other's by a fair coin. The interval is Newcombe's method 10 (R. G.
  Newcombe, Statistics in Medicine 17, 1998): Wilson's intervals of both shares, put together by their correlation.
- Everything else: the paired permutation test, which flips the sign of each d_g (R. A. Fisher, The Design of
  Experiments, 1935), all 2^n ways up to n = 13, beyond that 10,000 drawn ones, p = (1 + as extreme) / (1 + drawn)
  (B. Phipson and G. K. Smyth, 2010, doi:10.2202/1544-6115.1585). The interval is Student's for the mean of the d_g.

All p-values are two-sided, none is corrected for how many quantities are compared.

Correlations and Cohen's kappa have percentile intervals from tasks drawn anew, with replacement (B. Efron, Annals of
Statistics 7, 1979): they are not means, and their usual intervals hold for independent pairs only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

Z = 1.959964  # the 97.5% quantile of the normal distribution
_EXACT = 13
_DRAWS = 10_000
_RESAMPLED = 1000


@dataclass(frozen=True, slots=True)
class Measure:
    """An estimate with its 95% interval."""

    value: float
    low: float | None  # None where the tasks do not differ, so that nothing shows how far off the estimate may be
    high: float | None


def wilson_interval(successes: float, n: float) -> tuple[float, float]:
    """Return the 95% Wilson score interval of a proportion of n trials (E. B. Wilson, JASA 22, 1927).

    Unlike the normal approximation it stays inside [0, 1] and is right near both ends, where evaluations often are.
    Neither number has to be whole: an effective number of trials seldom is.
    """
    if n == 0:
        return 0.0, 1.0
    p, z = successes / n, Z
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # Both ends are exact where nothing or everything succeeded; the formula is off there by rounding.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def student_quantile(df: int) -> float:
    """Return the 97.5% quantile of Student's distribution; within 0.2% for any degrees of freedom.

    Exact for 1 and 2, else the expansion 26.7.5 of Abramowitz and Stegun, Handbook of Mathematical Functions, 1964.
    """
    if df == 1:
        return math.tan(math.pi * 0.475)
    if df == 2:
        return 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))
    x = Z
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + sum(term / df**power for power, term in enumerate(terms, 1))


def mean(sums: Sequence[float], counts: Sequence[float], *, least: float = -math.inf) -> Measure:
    """Estimate a mean, with Student's interval over tasks.

    Args:
        sums: (G,) the sum of the quantity over each task's attempts.
        counts: (G,) how many there were: attempts, or calls for a mean per call. Not all of them 0.
        least: the lower bound of the mean, such as 0 for a count.
    """
    value, variance = _estimate(sums, counts)
    groups = len(sums)
    if variance <= (1e-12 * value) ** 2:  # none, but for rounding
        return Measure(value, None, None)
    half = student_quantile(groups - 1) * math.sqrt(variance * groups / (groups - 1))
    return Measure(value, max(least, value - half), value + half)


def share(sums: Sequence[float], counts: Sequence[float], attempts: float) -> Measure:
    """Estimate a share, with Wilson's interval at the effective number of attempts.

    Args:
        sums: (G,) successes per task, or anything between 0 and `counts`.
        counts: (G,) how many attempts they are of.
        attempts: how many attempts there were in all; they are never worth more.
    """
    value, variance = _estimate(sums, counts)
    n: float = len(sums)  # if all agree, the spread is unknown: more attempts at a task show nothing new
    if value not in (0.0, 1.0) and n > 1:  # nor is there between prompts, where there is one
        n = attempts if variance == 0 else min(value * (1 - value) / variance, attempts)
    return Measure(value, *wilson_interval(value * n, n))


def pass_at_k(n: int, successes: int, k: int) -> float:
    """Estimate the probability that at least one of k attempts succeeds, without bias, from n >= k of them.

    1 - C(n - c, k) / C(n, k) (M. Chen et al., Evaluating Large Language Models Trained on Code, arXiv:2107.03374).
    """
    return 1 - math.comb(n - successes, k) / math.comb(n, k)


def pass_hat_k(n: int, successes: int, k: int) -> float:
    """Estimate the probability that all of k attempts succeed, pass^k, without bias, from n >= k of them.

    C(c, k) / C(n, k) (Yao et al., tau-bench, arXiv:2406.12045).
    """
    return math.comb(successes, k) / math.comb(n, k)


def _estimate(sums: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    x, n = np.asarray(sums, dtype=float), np.asarray(counts, dtype=float)
    value = x.sum() / n.sum()
    return float(value), float(((x - value * n) ** 2).sum() / n.sum() ** 2)


@dataclass(frozen=True, slots=True)
class Difference:
    """How much the estimate b is above a."""

    a: float
    b: float
    difference: float  # b - a
    low: float | None  # its 95% interval; None where the tasks do not differ in it
    high: float | None
    p: float  # of the paired test that there is none
    test: str  # "mcnemar" or "permutation"


def compare_shares(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare outcomes that are 0 or 1: (n,) of each policy, one per task, n at least 1."""
    both = sum(bool(x and y) for x, y in zip(a, b, strict=True))
    only_a, only_b = int(sum(a)) - both, int(sum(b)) - both
    low, high = newcombe_interval(both, only_a, only_b, len(a) - both - only_a - only_b)
    p_a, p_b = fmean(a), fmean(b)
    return Difference(p_a, p_b, p_b - p_a, low, high, mcnemar(only_a, only_b), "mcnemar")


def compare_means(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare anything else: (n,) of each policy, the mean over each task's attempts, n at least 1."""
    differences = [y - x for x, y in zip(a, b, strict=True)]
    measure = mean(differences, [1] * len(differences))
    p = permutation(differences)
    return Difference(fmean(a), fmean(b), measure.value, measure.low, measure.high, p, "permutation")


def compare_clustered(a: Sequence[float], b: Sequence[float], clusters: Sequence[Any]) -> Difference:
    """Compare where several tasks are one draw: (n,) of each policy, one per task, and (n,) the draw of each.

    The estimate is the mean over tasks; interval and permutation test are over the sums of the d_g of each cluster.
    """
    sums: dict[Any, float] = {}
    counts: dict[Any, int] = {}
    for x, y, cluster in zip(a, b, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + y - x
        counts[cluster] = counts.get(cluster, 0) + 1
    measure = mean([*sums.values()], [*counts.values()])
    p = permutation([*sums.values()])
    return Difference(fmean(a), fmean(b), measure.value, measure.low, measure.high, p, "permutation")


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the p-value of McNemar's exact test, for the numbers of tasks that one of the two alone solved."""
    n = only_a + only_b
    tail = sum(math.comb(n, i) for i in range(min(only_a, only_b) + 1))
    return min(1.0, 2 * tail / 2**n)


def newcombe_interval(both: int, only_a: int, only_b: int, neither: int) -> tuple[float, float]:
    """Return the 95% interval of the difference of two paired shares, the second's minus the first's."""
    n = both + only_a + only_b + neither
    p_a, p_b = (both + only_a) / n, (both + only_b) / n
    (low_a, high_a), (low_b, high_b) = wilson_interval(both + only_a, n), wilson_interval(both + only_b, n)
    product = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    covariance: float = both * neither - only_a * only_b
    if covariance > 0:  # method 10's correction for continuity
        covariance = max(covariance - n / 2, 0.0)
    correlation = covariance / math.sqrt(product) if product else 0.0

    def distance(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2 * correlation * x * y + y * y))

    return p_b - p_a - distance(p_b - low_b, high_a - p_a), p_b - p_a + distance(high_b - p_b, p_a - low_a)


def permutation(differences: Sequence[float]) -> float:
    """Return the p-value of the paired permutation test, for (n,) differences, one per task."""
    d = np.asarray(differences, dtype=float)
    d = d[d != 0]  # flipping a zero changes nothing
    observed = abs(d.sum()) - 1e-9 * np.abs(d).sum()  # sums that are the same in exact arithmetic differ by rounding
    if len(d) <= _EXACT:
        signs = 1 - 2 * ((np.arange(2 ** len(d))[:, None] >> np.arange(len(d))) & 1)
        return float(np.mean(np.abs(signs @ d) >= observed))
    # Drawn from a fixed seed, so that the same files give the same number; in pieces, because n may be large.
    rng = np.random.default_rng(0)
    pieces = (rng.choice((-1.0, 1.0), size=(100, len(d))) for _ in range(_DRAWS // 100))
    extreme = sum(int((np.abs(signs @ d) >= observed).sum()) for signs in pieces)
    return (1 + extreme) / (1 + _DRAWS)


def resampled(tasks: Sequence[Sequence[Any]], statistic: Callable[[Sequence[Any]], float]) -> Measure | None:
    """Estimate a statistic of all items, with a percentile interval over tasks; None where it is not a number.

    Args:
        tasks: (G,) the items of each task.
        statistic: a number of some items; draws in which it is NaN (all are alike) are left out.
    """
    value = statistic([item for items in tasks for item in items])
    if math.isnan(value):
        return None
    # From a fixed seed, so that the same files give the same number.
    draws = np.random.default_rng(0).integers(len(tasks), size=(_RESAMPLED, len(tasks)))
    drawn = [statistic([item for task in draw for item in tasks[task]]) for draw in draws]
    known = [one for one in drawn if not math.isnan(one)]
    if len(tasks) == 1 or not known:
        return Measure(value, None, None)
    low, high = np.quantile(known, (0.025, 0.975))
    return Measure(value, float(low), float(high))


def kappa(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Return Cohen's kappa of two raters (J. Cohen, Educational and Psychological Measurement 20, 1960).

    `pairs` (n,) has the category that each of them gives an item. NaN if both give one and the same to all.
    """
    n = len(pairs)
    agreed = sum(a == b for a, b in pairs) / n
    first, second = zip(*pairs, strict=True)
    by_chance = sum(first.count(kind) * second.count(kind) for kind in set(first)) / n**2
    return (agreed - by_chance) / (1 - by_chance) if by_chance < 1 else math.nan


def spearman(x: Sequence[float], y: Sequence[float], given: Sequence[float] | None = None) -> float:
    """Return the correlation of ranks, ties at their mean rank; with a third quantity the partial one, `given` that.

    (r_xy - r_xz r_yz) / sqrt((1 - r_xz^2) (1 - r_yz^2)) (G. U. Yule, Proceedings of the Royal Society A 79, 1907). NaN
    where x or y does not vary, or `given` decides one of them; a `given` that does not vary changes nothing.
    """
    ranks = [_ranks(values) for values in ((x, y) if given is None else (x, y, given))]
    r = _correlation(ranks[0], ranks[1])
    if given is None or not ranks[2].any():
        return r
    r_x, r_y = (_correlation(one, ranks[2]) for one in ranks[:2])
    left = (1 - r_x**2) * (1 - r_y**2)
    return (r - r_x * r_y) / math.sqrt(left) if left > 1e-12 else math.nan


def _ranks(values: Sequence[float]) -> np.ndarray:
    """(n,) ranks of (n,) numbers, less their mean."""
    _, place, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    ranks: np.ndarray = (counts.cumsum() - counts / 2)[place]
    return ranks - len(values) / 2


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    size = math.sqrt(float((a @ a) * (b @ b)))
    return float(a @ b) / size if size else math.nan
