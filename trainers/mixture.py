"""Several environments in one run, in proportions that hold at every step.

`mix_datasets` puts task lists together, `parse_mixture` reads what a command line says about them, and `Mixture` is the
order in which their tasks come. The proportions are those of groups played; no loss is weighted. Drawing sources at
random would keep them on average, and give single batches without any task of a small source.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from datasets import Dataset, concatenate_datasets

from agent_gym.errors import ConfigError
from agent_gym.rollout import Episode, derive_seed
from agent_gym.trainers.selection import fresh_tasks
from agent_gym.trainers.tasks import COLUMNS, check_task_columns


def parse_mixture(text: str) -> list[tuple[str, float]]:
    """Read environments and weights, for example "AgentR1/GSM8K-v0=2,AgentR1/GSM8K-NoTool-v0=1".

    Returns:
        Environment ids with their weights, 1 where none is given, as in a plain id.

    Raises:
        ConfigError: for a missing id, an id that is named twice, or a weight that is no positive number.
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        env_id, equals, number = (piece.strip() for piece in part.partition("="))
        if not env_id:
            raise ConfigError(f"the mixture {text!r} has a part without environment id; write id=weight,id=weight")
        if env_id in weights:
            raise ConfigError(f"the mixture {text!r} names {env_id} twice; name it once, with the sum of its weights")
        try:
            weight = float(number) if equals else 1.0
        except ValueError:
            weight = math.nan
        weights[env_id] = _checked(weight, f"the weight of {env_id}", number)
    return list(weights.items())


def _checked(weight: float, name: str, given: object) -> float:
    if not 0 < weight < math.inf:
        raise ConfigError(f"{name} is {given!r}; it must be a positive number")
    return weight


def mix_datasets(datasets: Sequence[Dataset], weights: Sequence[float]) -> Dataset:
    """Put task lists together for a sampler that keeps their proportions.

    Args:
        datasets: from `task_dataset`, one per source. Sources may be different environments, or one with different
            arguments.
        weights: how often tasks come from each source, relative to each other.

    Returns:
        The tasks of all sources, one after the other, with the columns of `task_dataset` and `source` (number of the
        source) and `weight` (its share; the shares of the sources sum to 1). Other columns are dropped, also those of a
        mixture that is mixed again.

    Raises:
        ConfigError: for a source without tasks, weights that are no positive numbers or not as many as sources, or a
            task that stands in the mixture twice: both copies could come into one batch, whose tasks are to differ.
    """
    if not datasets or len(datasets) != len(weights):
        raise ConfigError(f"{len(datasets)} data sets and {len(weights)} weights; give one weight for each, at least 1")
    total = sum(_checked(weight, f"weight {i} of the mixture", weight) for i, weight in enumerate(weights))
    parts = []
    seen: dict[tuple[object, ...], int] = {}
    for source, (dataset, weight) in enumerate(zip(datasets, weights, strict=True)):
        check_task_columns(dataset, f"datasets[{source}]")
        if not len(dataset):
            raise ConfigError(f"source {source} of the mixture has no tasks")
        dataset = dataset.select_columns(list(COLUMNS))
        for row in zip(*(dataset[column] for column in COLUMNS), strict=True):
            if row in seen:
                raise ConfigError(
                    f"a task stands in the mixture twice, in source {seen[row]} and in source {source}: "
                    f"{dict(zip(COLUMNS, row, strict=True))}"
                )
            seen[row] = source
        dataset = dataset.add_column("source", [source] * len(dataset))
        parts.append(dataset.add_column("weight", [weight / total] * len(dataset)))
    return concatenate_datasets(parts)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Which tasks belong to which source, and the share of each source.

    Attributes:
        sources: row numbers of the data set, per source.
        shares: positive, sum to 1.
    """

    sources: tuple[tuple[int, ...], ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, dataset: Dataset) -> Mixture | None:
        """Read the columns that `mix_datasets` made; None for a data set without them or with a single source."""
        if not {"source", "weight"} <= set(dataset.column_names):
            return None
        rows: dict[int, list[int]] = {}
        weights: dict[int, float] = {}
        for i, (source, weight) in enumerate(zip(dataset["source"], dataset["weight"], strict=True)):
            rows.setdefault(source, []).append(i)
            weights[source] = weight
        if len(rows) < 2:
            return None
        total = sum(weights.values())  # less than 1 where rows were filtered and a source is gone
        return cls(tuple(tuple(rows[s]) for s in sorted(rows)), tuple(weights[s] / total for s in sorted(rows)))

    def check(self, batch_tasks: int) -> None:
        """Raise `ConfigError` if a source is too small to give its share of a batch without repeating a task."""
        for source, (tasks, share) in enumerate(zip(self.sources, self.shares, strict=True)):
            need = math.ceil(share * batch_tasks - 1e-9)
            if len(tasks) < need:
                raise ConfigError(
                    f"source {source} of the mixture has {len(tasks)} tasks, but its share of {share:.3g} makes {need} "
                    f"of the {batch_tasks} tasks of a generation batch: add tasks, lower its weight, or make the batch "
                    "smaller"
                )

    def batches(self, batch_tasks: int, seed: int, shuffle: bool = True) -> Iterator[list[int]]:
        """Yield the batches of a run, without end; the same arguments give the same batches.

        Each task comes from the source that is furthest behind its share: whenever one counts, no source is ahead of
        its share by a whole task. A source runs through all its tasks before it begins anew, in another
        order. The tasks of a batch differ: where a source begins anew in the middle of one, tasks that are in it
        already wait, and where it has no other, the next source takes the turn and gives it back later.

        Args:
            batch_tasks: tasks per batch, not more than `check` allows.
            seed: decides the orders.
            shuffle: False keeps the order of each source.
        """
        passes = [itertools.count() for _ in self.sources]
        queues: list[list[int]] = [[] for _ in self.sources]
        dealt = [0] * len(self.sources)

        def behind(source: int) -> float:
            return self.shares[source] * (sum(dealt) + 1) - dealt[source]

        while True:
            batch: dict[int, None] = {}  # an ordered set
            taken = [0] * len(self.sources)
            while len(batch) < batch_tasks:
                able = [s for s, tasks in enumerate(self.sources) if taken[s] < len(tasks)]
                source = max(able, key=behind)
                if not queues[source]:
                    queues[source] = self._order(source, derive_seed(seed, source, next(passes[source])), shuffle)
                queue = queues[source]
                batch[queue.pop(next(i for i in reversed(range(len(queue))) if queue[i] not in batch))] = None
                dealt[source] += 1
                taken[source] += 1
            yield list(batch)

    def _order(self, source: int, seed: int, shuffle: bool) -> list[int]:
        """Return the tasks of a source for one pass, the first one last, where taking it is cheap."""
        tasks = self.sources[source]
        order = np.random.default_rng(seed).permutation(len(tasks)).tolist() if shuffle else range(len(tasks))
        return [tasks[i] for i in reversed(order)]

    def fresh_tasks(self, taken: Collection[int], count: int, seed: int) -> list[int]:
        """Draw tasks that the batch does not have yet, each from a source that is drawn by its share.

        Drawn, because refills are small: rounding every one of them the same way would starve a source.

        Args:
            taken: tasks of the batch so far.
            count: how many to draw.
            seed: decides the draw.

        Returns:
            Distinct tasks, fewer than `count` where sources have no more.
        """
        draws = np.random.default_rng(seed).multinomial(count, self.shares)
        parts = (
            fresh_tasks(tasks, taken, int(n), derive_seed(seed, source))
            for source, (tasks, n) in enumerate(zip(self.sources, draws, strict=True))
        )
        return [task for part in parts for task in part]


def by_env(episodes: Iterable[Episode]) -> dict[str, list[Episode]]:
    """Sort episodes by their environment's id, ids in alphabetical order."""
    sorted_in: dict[str, list[Episode]] = {}
    for episode in episodes:
        sorted_in.setdefault(episode.spec.env_id, []).append(episode)
    return dict(sorted(sorted_in.items()))
