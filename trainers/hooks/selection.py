"""The choice of the groups that are trained on: refills in place of groups that agree, and filters by the spread.

The rules are pure functions in trainers/selection.py. `max_refills` is DAPO's dynamic sampling, `keep_groups` is
StarPO-S, and `keep_variance` is RAGEN-2.
"""

from __future__ import annotations

from typing import Any

from agent_gym.rollout import Episode, derive_seed
from agent_gym.trainers.hook import Hook, RolloutBatch
from agent_gym.trainers.schedule import returns_by_group
from agent_gym.trainers.selection import informative_groups, keep_groups, keep_variance, tasks_to_draw


class Refills(Hook):
    """Plays further tasks in place of tasks whose episodes all earned the same reward.

    Each process plays its share of every round. If there are too few groups after the last round, the batch stays
    smaller.
    """

    def after_select(self, rollout: RolloutBatch) -> None:
        trainer, args, size = self.trainer, self.trainer.args, self.trainer.num_generations
        rank, processes = trainer.accelerator.process_index, trainer.accelerator.num_processes
        taken = list(trainer.sampler.batch(rollout.number))
        played: list[Episode] = []
        rounds = 0
        while rounds < args.max_refills:
            count = tasks_to_draw(args.batch_tasks, len(informative_groups(rollout.returns)), len(taken))
            fresh = trainer.sampler.fresh_tasks(taken, count, derive_seed(rollout.seed, rounds + 1)) if count else []
            if not fresh:
                break
            rounds += 1
            rows = [trainer.train_dataset[place] for place in fresh for _ in range(size)]
            start, stop = len(rows) * rank // processes, len(rows) * (rank + 1) // processes
            specs = trainer.specs_of(rows[start:stop], len(taken) * size + start, rollout.seed)
            more = trainer.rollout(specs, trainer.temperature)
            returns, source_of, _ = returns_by_group(more)
            rollout.returns.update(returns)
            rollout.source_of.update(source_of)
            taken, played = taken + fresh, played + more
        trainer.record({"rollout/refills": rounds})
        rollout.episodes = rollout.episodes + played
        rollout.groups = set(informative_groups(rollout.returns)[: args.batch_tasks])


class KeepGroups(Hook):
    """Keeps the groups with the largest spread, by `keep_groups` or `keep_variance`."""

    def after_select(self, rollout: RolloutBatch) -> None:
        args, returns = self.trainer.args, {group: rollout.returns[group] for group in rollout.groups}
        if args.keep_groups < 1.0:
            rollout.groups = set(keep_groups(returns, args.keep_groups, rollout.source_of))
        if args.keep_variance is not None:
            rollout.groups = set(keep_variance(returns, args.keep_variance, rollout.source_of))


def attach(trainer: Any) -> None:
    """Attach with `max_refills`, and with `keep_groups` or `keep_variance`."""
    if trainer.args.max_refills:
        trainer.add_callback(Refills())
    if trainer.args.keep_groups < 1.0 or trainer.args.keep_variance is not None:
        trainer.add_callback(KeepGroups())
