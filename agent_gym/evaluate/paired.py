"""Two policies on the same tasks: the difference, its 95% interval, and how easily chance alone makes it.

Tasks differ in difficulty far more than policies do, so that comparing task by task sees differences that two separate
intervals hide. With d_g the difference of the means of a quantity over the attempts at task g, for n tasks:

- Success with one attempt each: McNemar's exact test (Q. McNemar, Psychometrika 12, 1947): of the tasks that one of the
  two alone solved, each is the one's or the other's by a fair coin. The interval is Newcombe's method 10 (R. G.
  Newcombe, Statistics in Medicine 17, 1998): Wilson's intervals of both shares, put together by their correlation.
- Everything else: the paired permutation test, which flips the sign of each d_g (R. A. Fisher, The Design of
  Experiments, 1935), all 2^n ways up to n = 13, beyond that 10,000 drawn ones, p = (1 + as extreme) / (1 + drawn)
  (B. Phipson and G. K. Smyth, 2010, doi:10.2202/1544-6115.1585). The interval is Student's for the mean of the d_g.

All p-values are two-sided, none is corrected for how many quantities are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from agent_gym.evaluate.statistics import mean, wilson_interval

_EXACT = 13
_DRAWS = 10_000


@dataclass(frozen=True, slots=True)
class Difference:
    """How much b is above a.

    Attributes:
        a: estimate of the first.
        b: of the second.
        difference: b - a.
        low: lower end of the 95% interval of the difference; None where the tasks do not differ in it.
        high: upper end.
        p: p-value of the paired test that there is none.
        test: "mcnemar" or "permutation".
    """

    a: float
    b: float
    difference: float
    low: float | None
    high: float | None
    p: float
    test: str


def compare_shares(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare outcomes that are 0 or 1, one per task.

    Args:
        a: (n,) of the first, n at least 1.
        b: (n,) of the second, the same tasks.
    """
    both = sum(bool(x and y) for x, y in zip(a, b, strict=True))
    only_a, only_b = int(sum(a)) - both, int(sum(b)) - both
    low, high = newcombe_interval(both, only_a, only_b, len(a) - both - only_a - only_b)
    p_a, p_b = fmean(a), fmean(b)
    return Difference(p_a, p_b, p_b - p_a, low, high, mcnemar(only_a, only_b), "mcnemar")


def compare_means(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare anything else.

    Args:
        a: (n,) mean of each task's attempts for the first, n at least 1.
        b: (n,) for the second, the same tasks.
    """
    differences = [y - x for x, y in zip(a, b, strict=True)]
    measure = mean(differences, [1] * len(differences))
    p = permutation(differences)
    return Difference(fmean(a), fmean(b), measure.value, measure.low, measure.high, p, "permutation")


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the p-value of McNemar's exact test.

    Args:
        only_a: tasks that the first alone solved.
        only_b: tasks that the second alone solved.
    """
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

    difference = p_b - p_a
    return difference - distance(p_b - low_b, high_a - p_a), difference + distance(high_b - p_b, p_a - low_a)


def permutation(differences: Sequence[float]) -> float:
    """Return the p-value of the paired permutation test.

    Args:
        differences: (n,) one per task.
    """
    d = np.asarray(differences, dtype=float)
    d = d[d != 0]  # flipping a zero changes nothing
    if len(d) <= _EXACT:
        signs = 1 - 2 * ((np.arange(2 ** len(d))[:, None] >> np.arange(len(d))) & 1)
        return float(np.mean(_extreme(signs @ d, d)))
    # Drawn from a fixed seed, so that the same files give the same number; in pieces, because n may be large.
    rng = np.random.default_rng(0)
    found = sum(int(_extreme(rng.choice((-1.0, 1.0), size=(100, len(d))) @ d, d).sum()) for _ in range(_DRAWS // 100))
    return (1 + found) / (1 + _DRAWS)


def _extreme(sums: np.ndarray, d: np.ndarray) -> np.ndarray:
    # Sums that are the same in exact arithmetic differ by rounding.
    return np.abs(sums) >= abs(d.sum()) - 1e-9 * np.abs(d).sum()
