"""Estimates with 95% intervals, for episodes of which several may answer the same task.

Attempts at one task are alike, so the tasks are what was drawn and not the attempts. With G tasks, x_g the sum of a
quantity over the attempts at task g and n_g their number, the estimate is m = sum(x_g) / sum(n_g), with residuals
e_g = x_g - m n_g. Its variance is v = sum(e_g^2) / sum(n_g)^2 (the linearised ratio estimator: W. G. Cochran, Sampling
Techniques, 1977, section 6.5; the same as the clustered standard errors of E. Miller, arXiv:2411.00640, section 2.2).

- A mean has Student's interval, m +- t sqrt(v G / (G - 1)) with G - 1 degrees of freedom.
- A share (success, pass@k, truncation) has Wilson's interval at the effective number of attempts, m (1 - m) / v, which
  is the number of independent attempts that would leave it as uncertain (E. L. Korn and B. I. Graubard, Survey
  Methodology 24, 1998). With one attempt per task that is their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.959964
"""The 97.5% quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Measure:
    """An estimate with its 95% interval.

    Attributes:
        value: the estimate.
        low: lower end; None where the tasks do not differ, so that nothing tells how far off it may be.
        high: upper end.
    """

    value: float
    low: float | None
    high: float | None


def wilson_interval(successes: float, n: float, z: float = Z) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion (E. B. Wilson, JASA 22, 1927).

    Unlike the normal approximation it stays inside [0, 1] and is right near both ends, where evaluations often are.

    Args:
        successes: number of successes.
        n: number of trials. Neither has to be whole: an effective number of trials seldom is.
        z: quantile of the normal distribution; 1.96 gives 95%.
    """
    if n == 0:
        return 0.0, 1.0
    p = successes / n
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
        least: what the mean cannot be below, such as 0 for a count.
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
    n = effective_attempts(value, variance, len(sums), attempts)
    return Measure(value, *wilson_interval(value * n, n))


def effective_attempts(value: float, variance: float, tasks: int, attempts: float) -> float:
    """Return how many independent attempts would leave a share as uncertain as it is.

    Args:
        value: the share.
        variance: of the share.
        tasks: G.
        attempts: the most that it can be.
    """
    if value in (0.0, 1.0):  # no spread to judge by: more attempts at the same tasks tell nothing new
        return tasks
    return attempts if variance == 0 else min(value * (1 - value) / variance, attempts)


def pass_at_k(n: int, successes: int, k: int) -> float:
    """Estimate the probability that at least one of k attempts succeeds, without bias.

    1 - C(n - c, k) / C(n, k) (M. Chen et al., Evaluating Large Language Models Trained on Code, arXiv:2107.03374).

    Args:
        n: attempts made, at least k.
        successes: c, how many of them succeeded.
        k: attempts allowed.
    """
    return 1 - math.comb(n - successes, k) / math.comb(n, k)


def _estimate(sums: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    x, n = np.asarray(sums, dtype=float), np.asarray(counts, dtype=float)
    value = x.sum() / n.sum()
    return float(value), float(((x - value * n) ** 2).sum() / n.sum() ** 2)
