"""Rollouts without rounds: groups of episodes begin as soon as `max_staleness` allows, and are trained on when done.

    max_staleness 0     | play batch 0 | update 0 | play batch 1 | update 1 | ...

    one rollout         | play groups of batches 0 and 1 ... 1 and 2 ... 2 and 3 ...
    of updates                          | update 0 | update 1 | update 2 | ...

Groups are numbered through the run, in the order of the sampler. With m = rollouts of updates in `max_staleness` and n
groups in a batch, rollout k may begin groups up to (k + 1 + m) n, and its batch are those that must be in it, then the
first that are done. A group must be in the batch of rollout k if a later one would be more than m rollouts younger than
the weights that began it: as at most (m + 1) n are begun and not trained on, these are never more than n. So no batch
waits for a slow episode before it is m rollouts old, and no token is older when it is trained on.

What is in play when weights are handed over is interrupted, in the middle of a turn if need be, and goes on under the
new ones (Kimi k1.5, arXiv:2501.12599; AReaL, arXiv:2505.24298). Each token keeps the logprob and the version of the
weights that sampled it, and `losses.engine_ratio` evens out the difference. Nothing is dropped: what is not done when a
batch is full is long, and a policy that is trained on the rest learns to be short.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

from agent_gym.errors import ConfigError
from agent_gym.policies.ranks import gather_items
from agent_gym.rollout import Episode

if TYPE_CHECKING:
    from agent_gym.trainers.schedule import RolloutScheduler

IN_PLAY = "in_play"
"""Where the trainer's state, which checkpoints keep, has the groups in play."""


class ContinuousRollouts:
    """Chooses what each rollout begins and trains on, and keeps in the trainer's state what is in play.

    Processes take equal shares of each batch, in whole groups. A run that is resumed plays what was in play when the
    checkpoint was made anew, and no group twice. A checkpoint made between two updates on the same rollout plays that
    rollout's groups again, as a synchronous run does.
    """

    def __init__(self, scheduler: RolloutScheduler) -> None:
        self._scheduler, self._trainer = scheduler, scheduler.trainer
        self._tasks, processes = self._trainer.args.batch_tasks, self._trainer.accelerator.num_processes
        self._share, self._rank = self._tasks // processes, self._trainer.accelerator.process_index
        self._late = self._trainer.args.stale_rollouts
        self._shape = {"tasks": self._tasks, "processes": processes, "stale_rollouts": self._late}
        self._in_play: dict[int, list[Episode]] = {}  # by number of the group, in the order in which they were begun
        self._missing: Counter[int] = Counter()  # episodes of a group that are not over

    def rollout(self) -> list[Episode]:
        """Return the batch of the present rollout, as soon as it is full.

        Raises `ConfigError` if the run was begun with other batches, another staleness or number of processes.
        """
        scheduler, number = self._scheduler, self._trainer._rollout_number
        state = self.state(number)
        again = state["rollout"] == number  # resumed between two updates on this rollout
        held = [n for n in state["batch" if again else "carried"] if self._is_mine(n)]
        stop = state["begun"]
        if not again:
            stop = max(stop, min((number + 1 + self._late) * self._share, scheduler.rollouts * self._share))
        fresh = [self._number(place) for place in range(state["begun"], stop)]
        if sorted(self._in_play) != held:  # the run was resumed, or begun anew
            if self._in_play:
                warnings.warn(
                    f"groups {sorted(self._in_play)} that were in play are discarded: other tasks come next than those "
                    "that were foreseen. This is usual once after a second call of train()",
                    RuntimeWarning,
                    stacklevel=3,
                )
            self._in_play, fresh = {}, [*held, *fresh]
        due = {n for n in held if again or (number >= self._late and n // self._tasks <= number)}
        specs = scheduler.group_specs(fresh)
        self._missing.update(spec.group for spec in specs)

        def play() -> list[Episode]:
            for episode in scheduler.stream.add(specs, self._trainer.temperature, self._ended):
                self._in_play.setdefault(episode.spec.group, []).append(episode)
            scheduler.stream.wait(lambda: self._is_full(due))
            others = [n for n in self._in_play if n not in due and not self._missing[n]]
            chosen = [*sorted(due), *others[: self._share - len(due)]]
            for n in chosen:
                del self._missing[n]
            return [episode for n in chosen for episode in self._in_play.pop(n)]

        episodes = scheduler.play(play)
        self._trainer._metrics["train"]["rollout/carried_over"].append(len(held) / self._share)
        if not again:
            groups = {"batch": list({episode.spec.group for episode in episodes}), "carried": list(self._in_play)}
            kept = {name: sorted(gather_items(numbers)) for name, numbers in groups.items()}
            self._trainer.kept[IN_PLAY] = {**self._shape, "rollout": number, "begun": stop, **kept}
        return episodes

    def state(self, number: int) -> dict[str, Any]:
        """Return what the rollout before left: the groups of its batch, those in play, and how many were begun.

        Raises `ConfigError` if groups are in play that this run would not train on.
        """
        state = self._trainer.kept.get(IN_PLAY)
        if state is None or state["rollout"] not in (number - 1, number):
            return {"rollout": number - 1, "begun": number * self._share, "batch": [], "carried": []}
        if state | self._shape != state:
            was, now = (
                f"{of['tasks']} tasks per rollout in {of['processes']} processes, {of['stale_rollouts']} rollouts stale"
                for of in (state, self._shape)
            )
            raise ConfigError(f"the checkpoint was made with {was}, this run has {now}: resume as it was")
        return dict(state)

    def _ended(self, episode: Episode) -> None:
        self._missing[episode.spec.group] -= 1

    def _is_full(self, due: set[int]) -> bool:
        done = sum(not self._missing[number] for number in self._in_play)
        return done >= self._share and not any(self._missing[number] for number in due)

    # A group is the `place`-th of its process, and has a number in the order of the sampler.

    def _number(self, place: int) -> int:
        batch, rest = divmod(place, self._share)
        return batch * self._tasks + self._rank * self._share + rest

    def _is_mine(self, number: int) -> bool:
        return number % self._tasks // self._share == self._rank
