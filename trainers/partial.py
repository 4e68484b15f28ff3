"""Rollouts that do not wait for their slowest episodes: more groups in play than a batch needs.

    rollout 0    begin n + m groups             train the first n that are done
    rollout 1    begin n more, with those m     train those m, and the first n - m of the others that are done
    ...
    the last     begin n - m more               train all

What is not done when a batch is full is interrupted and goes on in the next rollout, under the next weights (Kimi k1.5,
arXiv:2501.12599; APRIL, arXiv:2509.18521). Each token keeps the logprob and the version of the weights that sampled it,
and `losses.engine_ratio` evens out the difference.

Every group that was begun is trained on once, and those that were begun in the rollout before come first: none is more
than one rollout older than the weights that learn from it. To drop what is not done would be biased: it is long.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object

from agent_gym.errors import ConfigError
from agent_gym.rollout import Episode, EpisodeSpec, Rollout, Runner

if TYPE_CHECKING:
    from agent_gym.trainers.schedule import RolloutScheduler

_KEY = "over_sampling"  # in the trainer's state, which checkpoints keep


class GroupsInPlay:
    """Groups of episodes, of which a rollout takes as many as it needs."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._rollout = Rollout(runner)
        self._groups: dict[int, list[Episode]] = {}
        self._missing: Counter[int] = Counter()  # episodes of a group that are not done

    @property
    def numbers(self) -> list[int]:
        """The groups in play, in the order in which they were begun; they may be done and wait for a batch."""
        return list(self._groups)

    def play(
        self, specs: Sequence[EpisodeSpec], due: Collection[int], wanted: int, temperature: float
    ) -> list[Episode]:
        """Play until a batch is full, pause the rest, and return the batch: what is due, then the first that are done.

        Args:
            specs: episodes of whole groups that begin now, under numbers that no group in play has.
            due: numbers of the groups that must be in the batch, even if others are done before them.
            wanted: groups of the batch, at least as many as are due. If there are fewer, all are in it.
            temperature: of the policy's sampling.
        """
        for episode in self._rollout.add(specs):
            self._groups.setdefault(episode.spec.group, []).append(episode)
            self._missing[episode.spec.group] += 1

        def on_end(episode: Episode) -> None:
            self._missing[episode.spec.group] -= 1

        def full() -> bool:
            done = sum(not self._missing[number] for number in self._groups)
            return done >= wanted and not any(self._missing[number] for number in due)

        self._rollout.play(temperature, until=full, on_end=on_end)
        self._runner.stats = self._rollout.stats
        others = [number for number in self._groups if number not in due and not self._missing[number]]
        chosen = [*due, *others[: wanted - len(due)]]
        return [episode for number in chosen for episode in self._groups.pop(number)]


class PartialRollouts:
    """Chooses what each rollout begins, and keeps in the trainer's state what it left unfinished.

    Groups are numbered through the run, in the order of the sampler; processes take equal shares of each batch. A run
    that is resumed plays what was in play when the checkpoint was made anew, and no group twice. A checkpoint made
    between two updates on the same rollout plays that rollout's groups again, as a run without over-sampling does.
    """

    def __init__(self, scheduler: RolloutScheduler) -> None:
        self._scheduler, self._trainer = scheduler, scheduler.trainer
        self._tasks, self._processes = self._trainer.args.batch_tasks, self._trainer.accelerator.num_processes
        self._share, self._rank = self._tasks // self._processes, self._trainer.accelerator.process_index
        self._in_play: GroupsInPlay | None = None

    def rollout(self) -> list[Episode]:
        """Play the present rollout and return the episodes of its batch.

        Raises `ConfigError` if the run was begun with other batches, or another number of processes.
        """
        trainer, number, mine = self._trainer, self._trainer._rollout_number, self._share
        state = self._state(number)
        again, begun = state["rollout"] == number, state["begun"]
        due = [n for n in state["batch" if again else "carried"] if n % self._tasks // mine == self._rank]
        stop = begun
        if not again:
            stop = max(begun, min((number + 1) * mine + trainer.args.extra_tasks, self._scheduler.rollouts * mine))
        batches = (divmod(place, mine) for place in range(begun, stop))
        fresh = [batch * self._tasks + self._rank * mine + rest for batch, rest in batches]
        if self._in_play is None or self._in_play.numbers != due:
            # Nothing of these is here: the run was resumed, or begun anew.
            if self._in_play is not None and self._in_play.numbers:
                warn_discarded(f"groups {self._in_play.numbers} that were in play")
            self._in_play, fresh = GroupsInPlay(trainer.runner), [*due, *fresh]
        specs, in_play = self._scheduler.group_specs(fresh), self._in_play
        episodes = self._scheduler.play(lambda: in_play.play(specs, due, mine, trainer.temperature))
        trainer._metrics["train"]["rollout/carried_over"].append(len(due) / mine)
        if not again:
            state |= {"rollout": number, "begun": stop}
            groups = {"batch": list({e.spec.group for e in episodes}), "carried": in_play.numbers}
            trainer.kept[_KEY] = state | {name: sorted(gather_object(held)) for name, held in groups.items()}
        return episodes

    def _state(self, number: int) -> dict[str, Any]:
        """Return what the last rollout left: the groups of its batch, those in play, and how many were begun."""
        shape = {"tasks": self._tasks, "processes": self._processes}
        state = self._trainer.kept.get(_KEY)
        if state is None or state["rollout"] not in (number - 1, number):
            return {**shape, "rollout": number - 1, "begun": number * self._share, "batch": [], "carried": []}
        if state | shape != state:
            raise ConfigError(
                f"the checkpoint was made with {state['tasks']} tasks per rollout in {state['processes']} processes, "
                f"this run has {self._tasks} in {self._processes}: groups are in play, resume as it was"
            )
        return dict(state)


def warn_discarded(what: str) -> None:
    """Warn that something was played for nothing."""
    warnings.warn(
        f"{what} are discarded: other tasks come next than those that were foreseen. This is usual once after a second "
        "call of train(); if it happens again and again, the order of the tasks changes in the run",
        RuntimeWarning,
        stacklevel=3,
    )
