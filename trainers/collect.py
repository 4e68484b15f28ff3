"""Playing the episodes of one rollout and choosing those that are trained on.

    tasks of the sampler -> episodes -> (DAPO: replace groups that agree by fresh tasks, again and again)
                                     -> (StarPO-S: keep the groups of largest spread)

Nothing is logged of the chosen episodes alone, or a filter could make a policy look better than it is: rewards and
their spread are those of the sampler's tasks, and the numbers about episodes those of all that were played.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from accelerate.utils import gather_object

from agent_gym.rollout import Episode, EpisodeSpec, derive_seed
from agent_gym.trainers.batch import source_number
from agent_gym.trainers.episodes import EpisodeTrainer
from agent_gym.trainers.metrics import group_spreads, staleness
from agent_gym.trainers.over_sampling import OverSampling
from agent_gym.trainers.selection import Refill, informative_groups, keep_groups
from agent_gym.trainers.tasks import COLUMNS, group_specs


class Collector:
    """Plays the rollouts of a trainer.

    Args:
        trainer: what plays, and whose settings decide.
    """

    def __init__(self, trainer: EpisodeTrainer) -> None:
        """Play nothing yet."""
        self.trainer = trainer

    @functools.cached_property
    def _over_sampling(self) -> OverSampling:
        return OverSampling(self)

    @functools.cached_property
    def _position(self) -> dict[tuple[Any, ...], int]:
        """Where each task stands in the data set, so that a fresh one can be told from one of the batch."""
        dataset = self.trainer.train_dataset
        return {key: i for i, key in enumerate(zip(*(dataset[name] for name in COLUMNS), strict=True))}

    def collect(self, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Episode], set[int]]:
        """Play one rollout.

        Args:
            rows: this process's rows of the data set, each task repeated for its group.

        Returns:
            All episodes of this process, also greedy ones, and the groups, of all processes, that are trained on.
        """
        trainer, args = self.trainer, self.trainer.args
        seed = derive_seed(args.seed, trainer._rollout_number)
        if args.over_sampling:
            episodes = self._over_sampling.rollout()
        else:
            specs = self._specs(rows, trainer.accelerator.process_index * len(rows), seed)
            episodes = trainer.ahead.take(specs) or trainer.rollout(specs, trainer.temperature)
        for name, value in staleness(sampled(episodes), trainer.state.global_step).items():
            trainer._metrics["train"][name].append(value)
        returns, groups, sources = _returns(episodes)
        self._log(returns, groups, sources)
        kept = set(groups)
        if args.max_refills:
            refill = Refill(args.batch_tasks, args.max_refills)
            refill.add(informative_groups(returns, groups), drawn=args.batch_tasks)
            tasks = dict.fromkeys(key for keys in gather_object([[_key(row) for row in rows]]) for key in keys)
            taken = [self._position[key] for key in tasks]
            while count := refill.tasks_to_draw:
                fresh = trainer.sampler.fresh_tasks(taken, count, derive_seed(seed, refill.rounds))
                if not fresh:
                    break
                more = self._play_everywhere(fresh, len(taken), seed)
                taken += fresh
                episodes += more
                new_returns, new_groups, new_sources = _returns(more)
                returns, groups, sources = returns + new_returns, groups + new_groups, sources + new_sources
                refill.add(informative_groups(new_returns, new_groups), drawn=len(fresh))
            kept = set(refill.kept)
            trainer._metrics["train"]["rollout/refills"].append(refill.rounds - 1)
        if args.keep_groups < 1.0:
            chosen = [i for i, group in enumerate(groups) if group in kept]
            found, of, origins = ([column[i] for i in chosen] for column in (returns, groups, sources))
            kept = set(keep_groups(found, of, args.keep_groups, origins))
        if args.estimator.needs_baseline:
            kept &= _with_baseline(episodes)
        trainer._metrics["train"]["rollout/groups_kept"].append(len(kept) / len(set(groups)))
        if args.overlap:
            self._play_ahead(len(rows))
        return episodes, kept

    def _specs(self, rows: Sequence[Mapping[str, Any]], first: int, seed: int) -> list[EpisodeSpec]:
        """Make the episodes of this process, and beside the first of each group a greedy one where that is needed."""
        size = self.trainer.num_generations
        specs = group_specs(rows, first=first, group_size=size, sampling_seed=seed)
        if self.trainer.args.estimator.needs_baseline:
            specs += [replace(spec, greedy=True, member=size) for spec in specs if spec.member == 0]
        return specs

    @property
    def rollouts(self) -> int:
        """Rollouts of the whole run."""
        trainer = self.trainer
        # Counted in micro-steps: the last optimizer step of an epoch has those that are left.
        per_step, per_epoch = trainer.args.gradient_accumulation_steps, trainer.sampler.rollouts * trainer._uses
        epochs, steps = divmod(trainer.state.max_steps, -(-per_epoch // per_step))
        return -(-(epochs * per_epoch + steps * per_step) // trainer._uses)

    def group_specs(self, numbers: Iterable[int]) -> list[EpisodeSpec]:
        """Make the episodes of groups that are numbered through the run, in the order of the sampler.

        Task and seeds are those that the group has in the rollout to which it belongs by its number.
        """
        trainer, size = self.trainer, self.trainer.num_generations
        specs = []
        for number in numbers:
            batch, place = divmod(number, trainer.args.batch_tasks)
            row = trainer.train_dataset[trainer.sampler.batch(batch)[place]]
            seed = derive_seed(trainer.args.seed, batch)
            specs += [replace(s, group=number) for s in self._specs([row] * size, place * size, seed)]
        return specs

    def _play_ahead(self, count: int) -> None:
        """Begin the rollout that comes next, if one does, with this process's `count` rows of it."""
        trainer, args = self.trainer, self.trainer.args
        number = trainer._rollout_number + 1
        if number == self.rollouts:
            return
        first = trainer.accelerator.process_index * count
        tasks = trainer.sampler.batch(number)
        tasks = [task for task in tasks for _ in range(trainer.num_generations)][first : first + count]
        rows = [trainer.train_dataset[task] for task in tasks]
        trainer.ahead.start(self._specs(rows, first, derive_seed(args.seed, number)))

    def _play_everywhere(self, positions: Sequence[int], first_group: int, seed: int) -> list[Episode]:
        """Play further tasks, each process its share of them."""
        trainer, size = self.trainer, self.trainer.num_generations
        rows = [trainer.train_dataset[position] for position in positions for _ in range(size)]
        rank, processes = trainer.accelerator.process_index, trainer.accelerator.num_processes
        start, stop = len(rows) * rank // processes, len(rows) * (rank + 1) // processes
        return trainer.rollout(self._specs(rows[start:stop], first_group * size + start, seed), trainer.temperature)

    def _log(self, returns: Sequence[float], groups: Sequence[int], sources: Sequence[int]) -> None:
        """Log the rewards of the sampler's tasks; refills are drawn because of what these earned."""
        metrics = self.trainer._metrics["train"]
        scored = [value for value in returns if value == value]
        # Groups of one have no spread of their own; then that of the environment says whether there is anything to
        # learn.
        compared = sources if self.trainer.num_generations == 1 else groups
        spreads = list(group_spreads(returns, compared).values())
        metrics["reward"].append(sum(scored) / max(1, len(scored)))
        metrics["reward_std"].append(sum(spreads) / len(spreads))
        metrics["frac_reward_zero_std"].append(sum(spread < 1e-6 for spread in spreads) / len(spreads))
        metrics["rollout/failed"].append(1 - len(scored) / len(returns))


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in COLUMNS)


def _returns(episodes: Sequence[Episode]) -> tuple[list[float], list[int], list[int]]:
    """Return, group and environment of each sampled episode of all processes, in the order of the tasks."""
    mine = [(e.spec.group, e.spec.member, e.reward, source_number(e.spec)) for e in sampled(episodes)]
    found = gather_object(mine)
    found = sorted(found, key=lambda one: one[:2])
    return [reward for _, _, reward, _ in found], [one[0] for one in found], [one[3] for one in found]


def _with_baseline(episodes: Sequence[Episode]) -> set[int]:
    """Return the groups of all processes whose greedy episode did not fail."""
    found = gather_object([(e.spec.group, e.reward) for e in episodes if e.spec.greedy])
    return {group for group, reward in found if reward == reward}


def sampled(episodes: Iterable[Episode]) -> list[Episode]:
    """Leave out the greedy episodes: they are baselines, and say nothing about the policy that samples."""
    return [episode for episode in episodes if not episode.spec.greedy]
