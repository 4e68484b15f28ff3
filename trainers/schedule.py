"""The schedule of playing: the engine, its weights, and the rollouts of a run by their numbers.

With `max_staleness` 0 a rollout is a batch: all its episodes are played with the weights that it updates. Above 0
episodes are played without rounds, under weights that change during an episode (continuous.py). Both kinds, refills and
evaluations play in one `Stream`. With servers the stream plays in the background. If the engine shares the trainer's
device, the stream plays while the trainer waits.

The scheduler knows nothing of the trainer: specs, the temperature and the version of the weights are arguments.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agent_gym.distributed import barrier_on_error, gather_items
from agent_gym.policies.base import Engine, Measured, Policy
from agent_gym.rollout import Episode, EpisodeSpec, Runner, Stream, check_failures, derive_seed, failure_summary
from agent_gym.trainers.batch import source_number
from agent_gym.trainers.continuous import ContinuousRollouts


class RolloutScheduler:
    """Plays rollouts with an engine, which starts with the first one.

    Args:
        make_runner: makes the rollout loop, with its engine.
        weights: yields the current weights by name.
        accelerator: knows the other processes.
        policy: an engine that is given; the runner's, once there is one.
        background: whether episodes are played while the caller computes.
    """

    def __init__(
        self,
        make_runner: Callable[[], Runner],
        weights: Callable[[], Iterable[Any]],
        accelerator: Any,
        *,
        policy: Policy | None = None,
        background: bool = False,
    ) -> None:
        self._make_runner, self._weights, self._accelerator = make_runner, weights, accelerator
        self.policy, self._background = policy, background
        self._metrics: dict[str, float] = {}
        self.begin()

    def begin(self) -> None:
        """Forget the episodes in play from an earlier call of `train`, because after a failure they never end."""
        self._continuous = ContinuousRollouts()
        if "stream" in self.__dict__:
            self.stream.clear()

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics of the last episodes, and clear them."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    @functools.cached_property
    def runner(self) -> Runner:
        runner = self._make_runner()
        self.policy = runner.policy
        return runner

    @functools.cached_property
    def stream(self) -> Stream:
        return Stream(self.runner, background=self._background)

    def hand_over(self, version: int) -> None:
        """Hand the current weights to the engine; `version` is the number of optimizer steps that they have seen."""
        started, runner = time.perf_counter(), self.runner
        with self.stream.paused():
            if self.stream.background:  # other processes may sample from the same servers
                self._accelerator.wait_for_everyone()
            runner.version = version
            if isinstance(runner.policy, Engine):
                runner.policy.wake()
                # Weights are handed over every time, even twice in a step. The step does not identify the weights (a
                # second `train()`, the best checkpoint loaded at the end), and an engine that slept has no weights.
                runner.policy.sync(self._weights())
        self._metrics["time/sync"] = time.perf_counter() - started

    def rollout(self, specs: Sequence[EpisodeSpec], temperature: float, version: int) -> list[Episode]:
        """Play episodes with the current weights; all processes call it at the same point.

        Raises `RolloutError` if playing failed in a process, or if every episode failed in all processes.
        """
        return self._with_weights(version, lambda: self.stream.rollout(specs, temperature))

    def rollout_ahead(
        self, batches: Sequence[int], specs_of: Callable[[int], Sequence[EpisodeSpec]], temperature: float, version: int
    ) -> list[Episode]:
        """Return this process's episodes of the first of these rollouts, and begin the episodes of the others.

        The method is for `max_staleness` above 0. `specs_of` makes the episodes of a rollout. Raises as `rollout`.
        """
        collect = self._continuous.collect
        return self._with_weights(version, lambda: collect(self.stream, batches, specs_of, temperature))

    def _with_weights(self, version: int, collect: Callable[[], list[Episode]]) -> list[Episode]:
        self.hand_over(version)
        with barrier_on_error():
            episodes = collect()
        if isinstance(self.runner.policy, Engine):
            self.runner.policy.sleep()
        self._finish(episodes)
        return episodes

    def _finish(self, episodes: Sequence[Episode]) -> None:
        """Measure the times of a rollout, and name the failed episodes, which are left out of every mean of rewards.

        All processes stop if every episode of all processes failed. They do not stop if only one process has failed in
        all of its few episodes: the episodes of the others are trained on, as a single process would train on them.
        """
        self.runner.stats, shares = self.stream.take_times()
        policy = self.runner.policy
        load = policy.take_load() if isinstance(policy, Measured) else {}
        self._metrics |= self.runner.stats.metrics() | shares | load
        failures = gather_items([episode.failure for episode in episodes])
        if all(failures):
            check_failures(failures)
        if any(failures):  # in all processes alike
            kinds = gather_items(failure_summary(episodes))
            if self._accelerator.is_main_process:
                lost = f"{sum(map(bool, failures))} of {len(failures)} episodes failed and are not in the reward"
                print("\n  ".join([f"agent-gym: warning: {lost}", *kinds]), file=sys.stderr, flush=True)


def group_specs(
    rows: Sequence[Mapping[str, Any]], *, first: int, group_size: int, sampling_seed: int
) -> list[EpisodeSpec]:
    """Turn rows that a sampler repeated `group_size` times into one spec each, with the members of a group together.

    Args:
        rows: one row per episode.
        first: global position of the first row among all processes. Seeds depend on the global position alone, so that
            one process and four processes sample the same episodes.
        group_size: episodes per task, G. Members share task and environment seed, and differ only in sampling.
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


def without_greedy(episodes: Iterable[Episode]) -> list[Episode]:
    """Leave out greedy episodes, which are baselines and not samples of the policy."""
    return [episode for episode in episodes if not episode.spec.greedy]


def returns_by_group(episodes: Sequence[Episode]) -> tuple[dict[int, list[float]], dict[int, int], int]:
    """Return three results over all processes: the rewards of each group, its environment, and the number of episodes.

    Failed episodes are left out of the rewards, and count in the number of episodes.
    """
    mine = [(e.spec.group, e.spec.member, e.reward, source_number(e.spec)) for e in without_greedy(episodes)]
    played = sorted(gather_items(mine), key=lambda one: one[:2])
    returns: dict[int, list[float]] = {group: [] for group, *_ in played}
    for group, _, reward, _ in played:
        if reward == reward:  # the reward of a failed episode is NaN
            returns[group].append(reward)
    return returns, {group: source for group, _, _, source in played}, len(played)
