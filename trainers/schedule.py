"""When the episodes of a run are played, and which of them are trained on.

    tasks of the sampler -> episodes -> (DAPO: replace groups that agree by fresh tasks, again and again)
                                     -> (StarPO-S, RAGEN-2: keep the groups of largest spread)

With `max_staleness` 0 a rollout is a batch: all its episodes are played with the weights that it updates. Above 0
episodes are played without rounds, under weights that change underway (continuous.py). Both play in one `Stream`, as do
refills and evaluations: behind servers it plays in the background, where the engine shares the trainer's device it
plays while the trainer waits.

Rewards and their spread are logged of the sampler's tasks, before a filter could make a policy look better than it is.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agent_gym.errors import ConfigError
from agent_gym.judges import Judge
from agent_gym.judges.ledger import COUNTS
from agent_gym.policies.base import Engine, Measured, Policy
from agent_gym.policies.ranks import barrier_on_error, gather, gather_items
from agent_gym.policies.transformers import TransformersPolicy
from agent_gym.rollout import (
    Episode,
    EpisodeSpec,
    Runner,
    Stream,
    by_role,
    check_failures,
    derive_seed,
    failure_summary,
)
from agent_gym.trainers.batch import source_number
from agent_gym.trainers.continuous import ContinuousRollouts
from agent_gym.trainers.engine import build_policy, named_weights
from agent_gym.trainers.selection import informative_groups, keep_groups, keep_variance, tasks_to_draw
from agent_gym.trainers.unread import check_judged

if TYPE_CHECKING:
    from agent_gym.trainers.grpo import AgentGRPOTrainer


class RolloutScheduler:
    """Plays the rollouts of a trainer with its engine, which starts with the first one, or with the given policy."""

    def __init__(self, trainer: AgentGRPOTrainer, policy: Policy | None = None) -> None:
        self.trainer, self.policy = trainer, policy
        self._budget = trainer.args.budget
        self._tokens = trainer._rollout_tokens  # of episodes without roles
        self._judged = Counter[str]()  # what judging had cost at the last rollout
        self.begin()

    def begin(self) -> None:
        """Forget what an earlier call of `train` had in play: it may have failed, and then it ends no more."""
        self._continuous = ContinuousRollouts(self)
        if "stream" in self.__dict__:
            self.stream.clear()

    def collect(self, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Episode], set[int]]:
        """Play one rollout of this process's rows of the data set, each task repeated for its group.

        Returned are all episodes of this process, also greedy ones, and the groups, of all processes, to train on.
        """
        trainer, args = self.trainer, self.trainer.args
        seed = derive_seed(args.seed, trainer._rollout_number)
        if args.max_staleness:
            episodes = self._continuous.rollout()
        else:
            specs = self._specs(rows, trainer.accelerator.process_index * len(rows), seed)
            episodes = trainer.rollout(specs, trainer.temperature)
        roles = gather_items([max(1, len(episode.roles)) for episode in sampled(episodes)])
        trainer._rollout_tokens = self._tokens * sum(roles) / len(roles)
        if any(episode.roles for episode in episodes):
            if args.max_refills:
                raise ConfigError(
                    "max_refills replaces tasks by their groups, and in self-play each role has one: leave it"
                )
            if trainer.judge is not None:
                raise ConfigError("judge scores whole episodes, and in self-play each role has a reward: leave it")
            # From here on each role of self-play is an episode.
            episodes = [part for episode in episodes for part in by_role(episode)]
        returns, source_of = self._log_rewards(episodes)
        kept = set(returns)
        if args.max_refills:
            episodes += self._refill(seed, returns, source_of)
            kept = set(informative_groups(returns)[: args.batch_tasks])
        if args.keep_groups < 1.0:
            kept = set(keep_groups({group: returns[group] for group in kept}, args.keep_groups, source_of))
        if args.keep_variance is not None:
            kept = set(keep_variance({group: returns[group] for group in kept}, args.keep_variance, source_of))
        if trainer.estimator.needs_baseline:
            greedy = gather_items([(e.spec.group, e.reward) for e in episodes if e.spec.greedy])
            kept &= {group for group, reward in greedy if reward == reward}
        self.trainer.record({"rollout/groups_kept": len(kept) / len(returns)})
        return episodes, kept

    def _refill(self, seed: int, returns: dict[int, list[float]], source_of: dict[int, int]) -> list[Episode]:
        """Play further tasks in place of those that agree (DAPO), each process its share of every round.

        Adds the new groups to `returns` and `source_of`. Too few groups after the last round are not made up for.
        """
        trainer, args, size = self.trainer, self.trainer.args, self.trainer.num_generations
        rank, processes = trainer.accelerator.process_index, trainer.accelerator.num_processes
        taken = list(trainer.sampler.batch(trainer._rollout_number))
        played: list[Episode] = []
        rounds = 0
        while rounds < args.max_refills:
            count = tasks_to_draw(args.batch_tasks, len(informative_groups(returns)), len(taken))
            fresh = trainer.sampler.fresh_tasks(taken, count, derive_seed(seed, rounds + 1)) if count else []
            if not fresh:
                break
            rounds += 1
            rows = [trainer.train_dataset[place] for place in fresh for _ in range(size)]
            start, stop = len(rows) * rank // processes, len(rows) * (rank + 1) // processes
            more = trainer.rollout(self._specs(rows[start:stop], len(taken) * size + start, seed), trainer.temperature)
            new_returns, new_sources, _ = _returns(more)
            returns.update(new_returns)
            source_of.update(new_sources)
            taken, played = taken + fresh, played + more
        self.trainer.record({"rollout/refills": rounds})
        return played

    @functools.cached_property
    def runner(self) -> Runner:
        trainer, args = self.trainer, self.trainer.args
        if self.policy is None:
            model = trainer.accelerator.unwrap_model(trainer.model)
            autocast = trainer.accelerator.autocast
            self.policy = build_policy(model, trainer.renderer, args, autocast, sharded=trainer.sharded)
            trainer.use_vllm = not isinstance(self.policy, TransformersPolicy)
        return Runner(
            self.policy,
            trainer.renderer,
            self._budget,
            workers=args.env_workers,
            env_processes=args.env_processes,
            max_live=args.max_live,
            context=args.context,
            judge=trainer.judge,
        )

    @functools.cached_property
    def stream(self) -> Stream:
        return Stream(self.runner, background=self.trainer.args.layout == "server")

    def hand_over(self) -> None:
        """Hand the current weights to the engine."""
        started, trainer, runner = time.perf_counter(), self.trainer, self.runner
        with self.stream.paused():
            if self.stream.background:  # other processes may sample from the same servers
                trainer.accelerator.wait_for_everyone()
            runner.version = trainer.state.global_step
            if isinstance(runner.policy, Engine):
                runner.policy.wake()
                # Every time, even twice in a step: the step does not identify the weights (a second `train()`, the best
                # checkpoint loaded at the end), and an engine that slept has none.
                runner.policy.sync(named_weights(trainer.accelerator.unwrap_model(trainer.model)))
        trainer.record({"time/sync": time.perf_counter() - started})

    def play(self, play: Callable[[], list[Episode]]) -> list[Episode]:
        """Call something that plays episodes when the engine has the current weights, in all processes at once.

        Raises `RolloutError` if it failed in a process, or if every episode failed in all of them.
        """
        trainer = self.trainer
        self.hand_over()
        training = trainer.model.training
        with barrier_on_error():
            episodes = play()
        if isinstance(self.runner.policy, Engine):
            self.runner.policy.sleep()
        trainer.model.train(training)
        self._finish(episodes)
        return episodes

    def _finish(self, episodes: Sequence[Episode]) -> None:
        """Log where the time of a rollout went, and name the episodes that failed, which no mean of rewards has.

        All processes stop if every episode of all of them failed. One process whose few episodes all failed is no
        reason: the others' are trained on, as one process would.
        """
        self.runner.stats, shares = self.stream.take_times()
        policy = self.runner.policy
        load = policy.take_load() if isinstance(policy, Measured) else {}
        self.trainer.record(self.runner.stats.metrics() | shares | load)
        if self.trainer.judge is not None:
            self._log_judge(self.trainer.judge)
        failures = gather_items([episode.failure for episode in episodes])
        if all(failures):
            check_failures(failures)
        if any(failures):  # in all processes alike
            kinds = gather_items(failure_summary(episodes))
            if self.trainer.accelerator.is_main_process:
                lost = f"{sum(map(bool, failures))} of {len(failures)} episodes failed and are not in the reward"
                print("\n  ".join([f"agent-gym: warning: {lost}", *kinds]), file=sys.stderr, flush=True)

    def _log_judge(self, judge: Judge) -> None:
        """Log what judging has cost since the last rollout, over all processes, and add this one's part to the card."""
        total = judge.spent()
        mine, self._judged = total - self._judged, total
        self.trainer.card.spent.update({f"judge_{name}": mine[name] for name in COUNTS})
        spent = sum(gather(mine), Counter[str]())
        self.trainer.record({f"judge/{name}": spent[name] for name in COUNTS})

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
        tasks_of = functools.cache(trainer.sampler.batch)  # a mixture deals all batches before it, too
        specs = []
        for number in numbers:
            batch, place = divmod(number, trainer.args.batch_tasks)
            row = trainer.train_dataset[tasks_of(batch)[place]]
            seed = derive_seed(trainer.args.seed, batch)
            specs += [dataclasses.replace(s, group=number) for s in self._specs([row] * size, place * size, seed)]
        return specs

    def _specs(self, rows: Sequence[Mapping[str, Any]], first: int, seed: int) -> list[EpisodeSpec]:
        """Make the episodes of this process, and for the first of each group a greedy one where that is needed."""
        size = self.trainer.num_generations
        specs = group_specs(rows, first=first, group_size=size, sampling_seed=seed)
        if self.trainer.estimator.needs_baseline:
            specs += [dataclasses.replace(spec, greedy=True, member=size) for spec in specs if spec.member == 0]
        return specs

    def _log_rewards(self, episodes: Sequence[Episode]) -> tuple[dict[int, list[float]], dict[int, int]]:
        """Log what the sampler's tasks earned, and return the returns of each group, and its environment.

        Refills do not count here: they are drawn because of what these earned.
        """
        returns, source_of, played = _returns(episodes)
        scored = [value for values in returns.values() for value in values]
        compared = returns
        if self.trainer.num_generations == 1:
            # Groups of one have no spread. That of their environment shows whether there is anything to learn from.
            compared = {source: [] for source in source_of.values()}
            for group, values in returns.items():
                compared[source_of[group]] += values
        spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in compared.values()]
        tokens = Counter[int]()  # by how many optimizer steps came after the weights that sampled them
        for version, count in (run for e in sampled(episodes) for made in e.steps for run in made.versions):
            tokens[self.trainer.state.global_step - version] += count
        ages = sum(gather(tokens), Counter[int]()) or Counter({0: 1})
        middle, most = np.quantile([*ages], [0.5, 0.9], weights=[*ages.values()], method="inverted_cdf").tolist()
        self.trainer.record(
            {
                "rollout/staleness": sum(age * count for age, count in ages.items()) / ages.total(),
                "rollout/staleness_p50": middle,
                "rollout/staleness_p90": most,
                "rollout/staleness_max": max(ages),
                "reward": sum(scored) / max(1, len(scored)),
                "reward_std": sum(spreads) / len(spreads),
                "frac_reward_zero_std": sum(spread < 1e-6 for spread in spreads) / len(spreads),
                "rollout/failed": 1 - len(scored) / played,
            }
        )
        return returns, source_of


def check_judge(judge: Judge, args: Any) -> None:
    """Find the judge's server; `ConfigError` if it is not there, or compares what no process has together."""
    check_judged(args)
    if judge.kind.compares:
        if args.num_generations < 2:
            raise ConfigError("the judge compares episodes of a task: num_generations must be 2 or more")
        # Without rounds each process plays whole groups anyway.
        share, rest = divmod(args.generation_batch_size, args.world_size)
        if (
            args.world_size > 1
            and not args.max_staleness
            and (rest or share % args.num_generations or args.max_refills)
        ):
            raise ConfigError(
                f"the judge compares the {args.num_generations} episodes of a task in one process, and each of the "
                f"{args.world_size} processes plays {share}: let num_generations divide that, without max_refills"
            )
    judge.connect()


def group_specs(
    rows: Sequence[Mapping[str, Any]], *, first: int, group_size: int, sampling_seed: int
) -> list[EpisodeSpec]:
    """Turn rows that a sampler repeated `group_size` times into one spec each, members of a group side by side.

    Args:
        rows: one row per episode.
        first: global position of the first row among all processes. Seeds depend on the global position alone, so that
            one process and four sample the same episodes.
        group_size: episodes per task, G. Members share task and environment seed and differ in sampling only.
        sampling_seed: base of the sampling seeds of this rollout.
    """
    return [
        EpisodeSpec(
            row["env_id"],
            json.loads(row["env_kwargs"]),
            seed=row["seed"],
            split=row["split"],
            index=row["index"],
            group=(first + i) // group_size,
            member=(first + i) % group_size,
            sampling_seed=derive_seed(sampling_seed, first + i),
            source=row.get("source", 0),
        )
        for i, row in enumerate(rows)
    ]


def sampled(episodes: Iterable[Episode]) -> list[Episode]:
    """Leave out the greedy episodes: they are baselines, and not samples of the policy."""
    return [episode for episode in episodes if not episode.spec.greedy]


def _returns(episodes: Sequence[Episode]) -> tuple[dict[int, list[float]], dict[int, int], int]:
    """Return each group's rewards, over all processes and without failed episodes, its environment, and all played."""
    mine = [(e.spec.group, e.spec.member, e.reward, source_number(e.spec)) for e in sampled(episodes)]
    played = sorted(gather_items(mine), key=lambda one: one[:2])
    returns: dict[int, list[float]] = {group: [] for group, *_ in played}
    for group, _, reward, _ in played:
        if reward == reward:  # an episode whose machinery broke has NaN
            returns[group].append(reward)
    return returns, {group: source for group, _, _, source in played}, len(played)
