"""Rollouts without rounds: batches of episodes begin as early as `max_staleness` allows, and are trained on in turn.

    max_staleness 0     | play batch 0 | update 0 | play batch 1 | update 1 | ...

    one rollout         | play batches 0 and 1 ... 1 and 2 ... 2 and 3 ...
    of updates                          | update 0 | update 1 | update 2 | ...

With m = rollouts of updates in `max_staleness`, rollout k begins what has not begun of the batches up to k + m, and its
own is batch k, once all of its episodes are over. So an episode has m rollouts of time before anything waits for it,
and no token is more than m rollouts old when it is trained on.

A batch takes nothing of a later one, though some of that may be done first. Rollouts up to k train on as many groups as
the batches up to k hold, and all of these are due at rollout k: for each group of a later batch one would become too
old. So a run trains on the groups of a synchronous run, in their order.

What is in play when weights are handed over is interrupted, in the middle of a turn if need be, and goes on under the
new ones (Kimi k1.5, arXiv:2501.12599; AReaL, arXiv:2505.24298). Each token keeps the logprob and the version of the
weights that sampled it, and `losses.engine_ratio` evens out the difference. Nothing is dropped: what is not done in
time is long, and a policy that is trained on the rest learns to be short.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agent_gym.rollout import Episode

if TYPE_CHECKING:
    from agent_gym.trainers.schedule import RolloutScheduler


class ContinuousRollouts:
    """Begins the batches of coming rollouts, and returns that of the present one; each call of `train` has its own.

    Processes take equal shares of each batch, in whole groups. Nothing of it is in checkpoints: a run that is resumed
    plays what was in play anew. A checkpoint made between two updates on the same rollout plays that rollout again, as
    a synchronous run does.
    """

    def __init__(self, scheduler: RolloutScheduler) -> None:
        self._scheduler, self._trainer = scheduler, scheduler.trainer
        self._in_play: dict[int, list[Episode]] = {}  # by number of the batch
        self._missing = Counter[int]()  # episodes of a batch that are not over

    def rollout(self) -> list[Episode]:
        """Return this process's episodes of the present rollout, as soon as they are over."""
        scheduler, number = self._scheduler, self._trainer._rollout_number
        wanted = range(number, min(number + self._trainer.args.stale_rollouts + 1, scheduler.rollouts))
        fresh = [batch for batch in wanted if batch not in self._in_play]

        def play() -> list[Episode]:
            for batch in fresh:
                self._begin(batch)
            scheduler.stream.wait(lambda: not self._missing[number])
            del self._missing[number]
            return self._in_play.pop(number)

        return scheduler.play(play)

    def _begin(self, batch: int) -> None:
        tasks, rank = self._trainer.args.batch_tasks, self._trainer.accelerator.process_index
        share = tasks // self._trainer.accelerator.num_processes
        first = batch * tasks + rank * share
        specs = self._scheduler.group_specs(range(first, first + share))
        self._missing[batch] = len(specs)

        def ended(_: Episode) -> None:
            self._missing[batch] -= 1

        self._in_play[batch] = self._scheduler.stream.add(specs, self._trainer.temperature, ended)
