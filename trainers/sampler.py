"""A sampler of task groups whose order survives a restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import TrainerCallback

from agent_gym.errors import ConfigError


class GroupSampler(Sampler[int]):
    """Repeat each task for its group, and each batch of tasks for the steps that reuse it.

    TRL's `RepeatSampler` draws the order of every epoch from one running generator. A resumed run starts that
    generator anew, so that after the first epoch it trains on other tasks than the run it continues. Here the order
    is a function of (seed, epoch).

    Args:
        size: number of tasks.
        group_size: how often each task is repeated in a row, G.
        batch_tasks: tasks per generation batch.
        repeats: how often each generation batch is repeated, once per micro-step that uses it.
        seed: decides the order.
        shuffle: False keeps the order of the tasks.

    Raises:
        ConfigError: if there are fewer tasks than a batch needs; TRL would train on nothing.
    """

    def __init__(
        self, size: int, *, group_size: int, batch_tasks: int, repeats: int, seed: int, shuffle: bool = True
    ) -> None:
        """Check that there is at least one batch."""
        if size < batch_tasks:
            raise ConfigError(
                f"the training set has {size} tasks, but one generation batch takes {batch_tasks}: add tasks, lower "
                "per_device_train_batch_size x steps_per_generation, or raise num_generations"
            )
        self.size, self.group_size, self.batch_tasks, self.repeats = size, group_size, batch_tasks, repeats
        self.seed, self.shuffle, self.epoch = seed, shuffle, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next; the trainer calls it before each epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        """Yield task indices; tasks that do not fill a last batch wait for another epoch."""
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
            order = torch.randperm(self.size, generator=generator).tolist()
        else:
            order = list(range(self.size))
        for start in range(0, self.size - self.batch_tasks + 1, self.batch_tasks):
            batch = [index for index in order[start : start + self.batch_tasks] for _ in range(self.group_size)]
            for _ in range(self.repeats):
                yield from batch

    def __len__(self) -> int:
        """Number of indices one epoch yields."""
        return self.size // self.batch_tasks * self.batch_tasks * self.group_size * self.repeats


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
