"""The choice of the groups of episodes that are trained on.

A group whose members all earned the same reward teaches nothing. RAGEN ranks the groups of a rollout by the spread of
their returns and trains on the top (`keep_groups`). RAGEN-2 trains on the top that holds a share of all variance
(`keep_variance`). DAPO drops the groups that agree, and plays further tasks until the batch is full again
(`informative_groups`, `tasks_to_draw`, `fresh_tasks`).

Every function here is pure and reads numbers that all processes share, so that the processes agree without
communication. A failed episode has no return.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

Returns = Mapping[int, Sequence[float]]
"""By number of the group: the total reward of each of its scored episodes, in any order."""


def keep_groups(returns: Returns, fraction: float, source_of: Mapping[int, int]) -> list[int]:
    """Choose the groups with the largest spread of returns: StarPO-S's uncertainty filter (RAGEN, arXiv:2504.20073).

    Args:
        returns: the returns of the groups to choose from.
        fraction: in (0, 1], the share of groups to keep, rounded down as in RAGEN (0.25 of 8 are 2, and 0.25 of 7 are
            1), but never fewer than one.
        source_of: environment of each group. The groups of each environment are ranked among themselves, because in one
            ranking the environment of larger rewards would take all places.

    Returns:
        The kept groups in ascending order, at least one of each environment. Of groups with equal spreads, the lower
        number is kept.
    """
    kept: list[int] = []
    for ranked in _ranked(returns, source_of):
        # The small allowance is for products that are too low only by rounding: 0.29 of 100 groups are 29.
        kept += [group for _, group in ranked[: max(1, math.floor(fraction * len(ranked) + 1e-9))]]
    return sorted(kept)


def keep_variance(returns: Returns, share: float, source_of: Mapping[int, int]) -> list[int]:
    """Choose the fewest groups that hold a share of the summed variance: RAGEN-2's SNR-aware top-p filter.

    With the groups in descending order of their sample variances v, the first k are kept, where k is the least number
    with v_1 + ... + v_k >= share (v_1 + ... + v_P) (arXiv:2604.06268, section 3.3). The number of kept groups depends
    on the rollout: it is low if few groups differ. A share of 1 drops the groups that agree.

    Arguments, ranking and the return value are as in `keep_groups`; if no group has a spread, one group is kept.
    """
    kept: list[int] = []
    for ranked in _ranked(returns, source_of):
        sums = list(itertools.accumulate(variance for variance, _ in ranked))
        enough = share * sums[-1] * (1 - 1e-9)  # sums have rounding errors
        kept += [group for _, group in ranked[: 1 + sum(total < enough for total in sums)]]
    return sorted(kept)


def _ranked(returns: Returns, source_of: Mapping[int, int]) -> Iterator[list[tuple[float, int]]]:
    """Yield for each environment its (variance, group) pairs, the largest variance first."""
    # `variance` is exact, so that neither rounding nor the order of members makes equal variances differ.
    of = {group: statistics.variance(values) if len(values) > 1 else 0.0 for group, values in returns.items()}
    for source in {source_of[group] for group in returns}:
        yield sorted(((of[g], g) for g in returns if source_of[g] == source), key=lambda one: (-one[0], one[1]))


def informative_groups(returns: Returns) -> list[int]:
    """List the groups whose scored episodes did not all earn the same, ascending (DAPO, arXiv:2503.14476, eq. 11)."""
    return [group for group, values in sorted(returns.items()) if values and max(values) - min(values) > 1e-6]


def tasks_to_draw(wanted: int, informative: int, drawn: int) -> int:
    """Return the number of tasks that the next round of DAPO's dynamic sampling plays (arXiv:2503.14476, section 3.2).

    The number should fill a batch of `wanted` groups at the rate so far, which is `informative` groups of `drawn` tasks
    (at least 1). It is at most a full batch, and 0 when the batch is full.
    """
    if not informative:
        return wanted
    return min(wanted, math.ceil(max(0, wanted - informative) * drawn / informative))


def fresh_tasks(pool: Sequence[int], taken: Collection[int], count: int, seed: int) -> list[int]:
    """Draw up to `count` distinct tasks of the pool that are not in `taken`; the same seed gives the same draw."""
    known, order = set(taken), np.random.default_rng(seed).permutation(len(pool)).tolist()
    return [pool[i] for i in order if pool[i] not in known][:count]
