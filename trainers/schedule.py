"""When the episodes of a run are played, and which of them are trained on.

    tasks of the sampler -> episodes -> (DAPO: replace groups that agree by fresh tasks, again and again)
                                     -> (StarPO-S: keep the groups of largest spread)

There are three policies of when to play, side by side in `RolloutScheduler`:

    sync       | rollout 0 | update 0 | rollout 1 | update 1 | ...            `play`
    ahead      | rollout 0 | rollout 1            | rollout 2            | ... `play_ahead`, with `overlap`
                           | update 0 |           | update 1 |
    partial    as sync, but a rollout ends when its batch is full             `play_part`, with `over_sampling`

Ahead: weights are handed over between rollouts only, so that every token of a rollout has the same author, who is one
rollout of updates behind the trainer: never more. Each token's logprob under its author is known, and the correction
that evens out the engine's rounding (`losses.engine_ratio`) evens out this difference, too: truncated importance
sampling (IMPALA, arXiv:1802.01561; Noukhovitch et al., arXiv:2410.18252, find one step behind to cost next to nothing).

Nothing is logged of the chosen episodes alone, or a filter could make a policy look better than it is: rewards and
their spread are those of the sampler's tasks, and the numbers about episodes those of all that were played.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object

from agent_gym.policies.base import Engine, Policy, barrier_on_error
from agent_gym.policies.transformers import TransformersPolicy
from agent_gym.rollout import Episode, EpisodeSpec, Runner, derive_seed
from agent_gym.trainers.batch import source_number
from agent_gym.trainers.engine import build_policy, named_weights
from agent_gym.trainers.metrics import check_failures_everywhere, group_spreads, staleness
from agent_gym.trainers.partial import PartialRollouts, warn_discarded
from agent_gym.trainers.selection import Refill, informative_groups, keep_groups
from agent_gym.trainers.tasks import COLUMNS

if TYPE_CHECKING:
    from agent_gym.trainers.grpo import AgentGRPOTrainer


class RolloutScheduler:
    """Plays the rollouts of a trainer with the trainer's engine, which starts with the first one.

    Args:
        trainer: whose settings, weights and tasks decide.
        policy: an engine to sample with instead of the one that the settings describe.
    """

    def __init__(self, trainer: AgentGRPOTrainer, policy: Policy | None = None) -> None:
        self.trainer, self.policy = trainer, policy
        self._budget, self._curriculum = trainer.args.budget, trainer.args.curriculum
        self._begun_ahead: tuple[list[EpisodeSpec], Future[list[Episode]]] | None = None

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
            episodes = self._partial.rollout()
        else:
            specs = self._specs(rows, trainer.accelerator.process_index * len(rows), seed)
            episodes = self._take_ahead(specs) or trainer.rollout(specs, trainer.temperature)
        metrics = trainer._metrics["train"]
        for name, value in staleness(sampled(episodes), trainer.state.global_step).items():
            metrics[name].append(value)
        returns, groups, sources = _returns(episodes)
        self._log(returns, groups, sources)
        kept = set(groups)
        if args.max_refills:
            refill = Refill(args.batch_tasks, args.max_refills)
            refill.add(informative_groups(returns, groups), drawn=args.batch_tasks)
            tasks = dict.fromkeys(key for keys in gather_object([[_key(row) for row in rows]]) for key in keys)
            taken = [self._place[key] for key in tasks]
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
            metrics["rollout/refills"].append(refill.rounds - 1)
        if args.keep_groups < 1.0:
            chosen = [i for i, group in enumerate(groups) if group in kept]
            found, of, origins = ([column[i] for i in chosen] for column in (returns, groups, sources))
            kept = set(keep_groups(found, of, args.keep_groups, origins))
        if trainer.estimator.needs_baseline:
            kept &= _with_baseline(episodes)
        metrics["rollout/groups_kept"].append(len(kept) / len(set(groups)))
        if args.overlap:
            self._play_next(len(rows))
        return episodes, kept

    # The engine.

    @functools.cached_property
    def runner(self) -> Runner:
        """The rollout loop with the trainer's engine."""
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
            context=args.context,
        )

    def hand_over(self) -> None:
        """Hand the current weights to the engine, and set the limits of the episodes to come."""
        trainer, runner = self.trainer, self.runner
        started = time.perf_counter()
        runner.budget, runner.version = self._budget, trainer.state.global_step
        if self._curriculum is not None and trainer.model.training:
            turns = self._curriculum.turns(trainer.state.global_step)
            trainer._metrics["train"]["rollout/max_turns"].append(turns)
            most = min(turns, self._budget.max_turns or turns)
            runner.budget = dataclasses.replace(self._budget, max_turns=most)
        if isinstance(runner.policy, Engine):
            runner.policy.wake()
            # Every time, even twice in a step: the step says little about the weights (a second `train()`, the best
            # checkpoint loaded at the end), and an engine that slept has none.
            runner.policy.sync(named_weights(trainer.accelerator.unwrap_model(trainer.model)))
        trainer._metrics[trainer._mode]["time/sync"].append(time.perf_counter() - started)

    # The three policies: sync, ahead, partial.

    def play(self, play: Callable[[], list[Episode]]) -> list[Episode]:
        """Call something that plays episodes when the engine has the current weights, in all processes at once.

        Raises:
            RolloutError: if it failed in a process, or if every episode failed in all of them.
        """
        trainer = self.trainer
        self._wait()
        self.hand_over()
        training = trainer.model.training
        with barrier_on_error(trainer.accelerator.num_processes > 1):
            episodes = play()
        if isinstance(self.runner.policy, Engine):
            self.runner.policy.sleep()
        trainer.model.train(training)
        self._log_times()
        check_failures_everywhere(episodes)
        return episodes

    def play_ahead(self, specs: Sequence[EpisodeSpec]) -> None:
        """Hand over the present weights, and begin to play in a thread."""
        self.hand_over()
        future: Future[list[Episode]] = Future()
        self._begun_ahead = list(specs), future

        def play() -> None:
            try:
                future.set_result(self.runner.run_share(specs, temperature=self.trainer.temperature))
            except BaseException as error:  # raised again where the result is asked for
                future.set_exception(error)

        # A daemon, so that an interrupted run does not wait for episodes that it does not need any more.
        threading.Thread(target=play, name="rollout-ahead", daemon=True).start()

    @functools.cached_property
    def _partial(self) -> PartialRollouts:
        return PartialRollouts(self)

    def _wait(self) -> None:
        """Let the rollout that was begun ahead end: an engine serves one at a time. `_take_ahead` raises its error."""
        if self._begun_ahead is not None:
            started = time.perf_counter()
            self._begun_ahead[1].exception()
            self.trainer._metrics["train"]["time/rollout_awaited"].append(time.perf_counter() - started)

    def _take_ahead(self, specs: Sequence[EpisodeSpec]) -> list[Episode] | None:
        """Return the episodes, or None if these were not played ahead; warns if others were.

        Raises:
            RolloutError: what the rollout failed with.
        """
        if self._begun_ahead is None:
            return None
        self._wait()
        (begun, future), self._begun_ahead = self._begun_ahead, None
        with barrier_on_error(self.trainer.accelerator.num_processes > 1):
            episodes = future.result()
        check_failures_everywhere(episodes)
        self._log_times()
        if begun == list(specs):
            return episodes
        warn_discarded(f"{len(episodes)} episodes that were played ahead")
        return None

    def _play_next(self, count: int) -> None:
        """Begin the rollout that comes next, if one does, with this process's `count` rows of it."""
        trainer, number = self.trainer, self.trainer._rollout_number + 1
        if number == self.rollouts:
            return
        first = trainer.accelerator.process_index * count
        tasks = trainer.sampler.batch(number)
        tasks = [task for task in tasks for _ in range(trainer.num_generations)][first : first + count]
        rows = [trainer.train_dataset[task] for task in tasks]
        self.play_ahead(self._specs(rows, first, derive_seed(trainer.args.seed, number)))

    def _play_everywhere(self, places: Sequence[int], first_group: int, seed: int) -> list[Episode]:
        """Play further tasks, each process its share of them."""
        trainer, size = self.trainer, self.trainer.num_generations
        rows = [trainer.train_dataset[place] for place in places for _ in range(size)]
        rank, processes = trainer.accelerator.process_index, trainer.accelerator.num_processes
        start, stop = len(rows) * rank // processes, len(rows) * (rank + 1) // processes
        return trainer.rollout(self._specs(rows[start:stop], first_group * size + start, seed), trainer.temperature)

    # Tasks.

    @functools.cached_property
    def _place(self) -> dict[tuple[Any, ...], int]:
        """Where each task stands in the data set, so that a fresh one can be told from one of the batch."""
        dataset = self.trainer.train_dataset
        return {key: i for i, key in enumerate(zip(*(dataset[name] for name in COLUMNS), strict=True))}

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

    def _specs(self, rows: Sequence[Mapping[str, Any]], first: int, seed: int) -> list[EpisodeSpec]:
        """Make the episodes of this process, and beside the first of each group a greedy one where that is needed."""
        size = self.trainer.num_generations
        specs = group_specs(rows, first=first, group_size=size, sampling_seed=seed)
        if self.trainer.estimator.needs_baseline:
            specs += [replace(spec, greedy=True, member=size) for spec in specs if spec.member == 0]
        return specs

    # Logs.

    def _log_times(self) -> None:
        """Log where the time of the last rollout went."""
        for name, value in self.runner.stats.metrics().items():
            self.trainer._metrics[self.trainer._mode][name].append(value)

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


def group_specs(
    rows: Sequence[Mapping[str, Any]], *, first: int, group_size: int, sampling_seed: int
) -> list[EpisodeSpec]:
    """Turn rows that a sampler repeated `group_size` times into episodes.

    Args:
        rows: one row per episode; the members of a group stand next to each other.
        first: global position of the first row among all processes.
        group_size: episodes per task, G.
        sampling_seed: base of the sampling seeds of this rollout.

    Returns:
        One spec per row. Members of a group share task and environment seed and differ in sampling only. The seeds
        depend on the global position alone, so that one process and four sample the same episodes.
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
