"""The rollout of the next update, played while this one is computed.

    without:  | rollout 0 | update 0 | rollout 1 | update 1 | ...
    with:     | rollout 0 | rollout 1            | rollout 2            | ...
                          | update 0 |           | update 1 |

Weights are handed over between rollouts only, so that every token of a rollout has the same author, who is one rollout
of updates behind the trainer: never more. Each token's logprob under its author is known, and the correction that
evens out the engine's rounding (correction.py) evens out this difference, too: truncated importance sampling (IMPALA,
arXiv:1802.01561; Noukhovitch et al., arXiv:2410.18252, find one step behind to cost next to nothing).

Nothing is dropped and nothing is played for nothing: the tasks are those that the sampler gives next, and slow episodes
are waited for, so that long ones are as frequent as without.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_gym.policies.base import barrier_on_error
from agent_gym.rollout import Episode, EpisodeSpec
from agent_gym.trainers.metrics import check_failures_everywhere

if TYPE_CHECKING:
    from agent_gym.trainers.episodes import EpisodeTrainer


@dataclass(slots=True)
class _Playing:
    specs: list[EpisodeSpec]
    future: Future[list[Episode]]


class RolloutAhead:
    """Plays one rollout in a thread.

    Args:
        trainer: whose engine plays it.
    """

    def __init__(self, trainer: EpisodeTrainer) -> None:
        """Play nothing yet."""
        self._trainer = trainer
        self._playing: _Playing | None = None

    def start(self, specs: Sequence[EpisodeSpec]) -> None:
        """Hand over the present weights and begin to play."""
        trainer = self._trainer
        trainer.ready_engine()
        future: Future[list[Episode]] = Future()
        self._playing = _Playing(list(specs), future)

        def play() -> None:
            try:
                future.set_result(trainer.runner.run_share(specs, temperature=trainer.temperature))
            except BaseException as error:  # raised again where the result is asked for
                future.set_exception(error)

        # A daemon, so that an interrupted run does not wait for episodes that nobody wants any more.
        threading.Thread(target=play, name="rollout-ahead", daemon=True).start()

    def wait(self) -> None:
        """Let the rollout end: an engine serves one at a time. What it failed with is told by `take`."""
        if self._playing is not None:
            started = time.perf_counter()
            self._playing.future.exception()
            self._trainer._metrics["train"]["time/rollout_awaited"].append(time.perf_counter() - started)

    def take(self, specs: Sequence[EpisodeSpec]) -> list[Episode] | None:
        """Return the episodes, or None if these were not played ahead; warns if others were.

        Raises:
            RolloutError: what the rollout failed with.
        """
        if self._playing is None:
            return None
        self.wait()
        played, self._playing = self._playing, None
        with barrier_on_error(self._trainer.accelerator.num_processes > 1):
            episodes = played.future.result()
        check_failures_everywhere(episodes)
        self._trainer.log_rollout()
        if played.specs == list(specs):
            return episodes
        discarded(f"{len(episodes)} episodes that were played ahead")
        return None


def discarded(what: str) -> None:
    """Warn that something was played for nothing."""
    warnings.warn(
        f"{what} are discarded: other tasks come next than those that were foreseen. This is usual once after a second "
        "call of train(); if it happens again and again, the order of the tasks changes in the run",
        RuntimeWarning,
        stacklevel=3,
    )
