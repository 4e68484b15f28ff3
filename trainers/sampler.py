"""A sampler of task groups whose order survives a restart."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import TrainerCallback

from agent_gym.errors import ConfigError
from agent_gym.trainers.mixture import Mixture
from agent_gym.trainers.selection import fresh_tasks


class GroupSampler(Sampler[int]):
    """Repeat each task for its group, and each batch of tasks for the steps that reuse it.

    TRL's `RepeatSampler` draws the order of every epoch from one running generator. A resumed run starts that
    generator anew, so that after the first epoch it trains on other tasks than the run it continues. Here the order
    is a function of (seed, epoch).

    The tasks of a batch differ: rollouts gain from diverse initial states (RAGEN, arXiv:2504.20073), and two groups of
    the same task would only be one larger group that does not know it.

    Args:
        size: number of tasks.
        group_size: how often each task is repeated in a row, G.
        batch_tasks: tasks per generation batch.
        repeats: how often each generation batch is repeated, once per micro-step that uses it.
        seed: decides the order.
        shuffle: False keeps the order of the tasks.
        mixture: the sources of the tasks, whose proportions then hold in every batch. An epoch has as many batches as
            without, but a source may come around more often in it, or less, than once.

    Raises:
        ConfigError: if there are fewer tasks than a batch needs; TRL would train on nothing. Also if a source has fewer
            tasks than its share of a batch.
    """

    def __init__(
        self,
        size: int,
        *,
        group_size: int,
        batch_tasks: int,
        repeats: int,
        seed: int,
        shuffle: bool = True,
        mixture: Mixture | None = None,
    ) -> None:
        """Check that there is at least one batch."""
        if size < batch_tasks:
            raise ConfigError(
                f"the training set has {size} tasks, but one generation batch takes {batch_tasks}: add tasks, lower "
                "per_device_train_batch_size x steps_per_generation, or raise num_generations"
            )
        if mixture is not None:
            mixture.check(batch_tasks)
        self.size, self.group_size, self.batch_tasks, self.repeats = size, group_size, batch_tasks, repeats
        self.seed, self.shuffle, self.epoch = seed, shuffle, 0
        self.mixture = mixture

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next; the trainer calls it before each epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        """Yield task indices; tasks that do not fill a last batch wait for another epoch."""
        for tasks in self._batches(self.epoch):
            batch = [index for index in tasks for _ in range(self.group_size)]
            for _ in range(self.repeats):
                yield from batch

    @property
    def rollouts(self) -> int:
        """Generation batches of an epoch."""
        return self.size // self.batch_tasks

    def batch(self, number: int) -> list[int]:
        """Return the tasks of a generation batch, counted from the beginning of the run."""
        epoch, place = divmod(number, self.rollouts)
        return next(itertools.islice(self._batches(epoch), place, None))

    def _batches(self, epoch: int) -> Iterator[list[int]]:
        count = self.rollouts
        if self.mixture is not None:
            # Sources begin anew in the middle of epochs. What an epoch starts with therefore follows from all batches
            # before it, which are dealt again (a few seconds per million tasks) so that there is no state to save.
            batches = self.mixture.batches(self.batch_tasks, self.seed, self.shuffle)
            yield from itertools.islice(batches, epoch * count, (epoch + 1) * count)
            return
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            order = torch.randperm(self.size, generator=generator).tolist()
        else:
            order = list(range(self.size))
        for i in range(count):
            yield order[i * self.batch_tasks : (i + 1) * self.batch_tasks]

    def fresh_tasks(self, taken: Collection[int], count: int, seed: int) -> list[int]:
        """Draw tasks that the batch does not have yet, from sources by their shares; see selection.py."""
        if self.mixture is not None:
            return self.mixture.fresh_tasks(taken, count, seed)
        return fresh_tasks(range(self.size), taken, count, seed)

    def __len__(self) -> int:
        """Number of indices one epoch yields."""
        return self.rollouts * self.batch_tasks * self.group_size * self.repeats


class EpochCallback(TrainerCallback):
    """Tells the sampler which epoch begins.

    transformers and accelerate do so themselves, but only through so many wrappers: a loader that skips batches after a
    restart, on several processes, is one too deep, and the run would go on in the order of epoch 0.
    """

    sampler: GroupSampler | None = None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Hand over the epoch, from the state that a checkpoint restores."""
        if self.sampler is not None:
            self.sampler.set_epoch(int(state.epoch or 0))
