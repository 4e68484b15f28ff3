"""`Stream`: episodes that are played while their caller does something else, and are resumed under newer weights.

    add     takes episodes at any time
    wait    returns when a condition holds; episodes still in play continue, or are paused
    paused  takes all unfinished turns out of the engine, so that its weights may be replaced

In the background a thread drives the engine, from the first episode that is added to the last that ends. Without, the
thread that waits does: for engines that share their device with the caller's computation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from agent_gym.renamed import renamed_methods
from agent_gym.rollout.episode import Episode, EpisodeSpec
from agent_gym.rollout.episode_run import OnEnd, RolloutStats
from agent_gym.rollout.runner import Rollout, Runner


class Stream:
    """Plays with one runner; `add`, `rollout`, `wait` and `paused` belong to one thread, the caller's."""

    def __init__(self, runner: Runner, *, background: bool) -> None:
        self.runner, self.background = runner, background
        self._rollout = Rollout(runner)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None  # while there is something to play
        self._paused = False
        self._error: BaseException | None = None
        self._waited = 0.0
        self._looked = time.perf_counter()

    def add(
        self, specs: Iterable[EpisodeSpec], temperature: float, on_end: OnEnd, *, first: bool = False
    ) -> list[Episode]:
        """Add episodes, in front of the ones that have not begun if they are `first`.

        `on_end` is called with each of them as it ends, and never at the same time as the condition of `wait`.
        """

        def ended(episode: Episode) -> None:
            with self._changed:
                on_end(episode)
                self._changed.notify_all()

        episodes = self._rollout.add(specs, temperature, ended, first=first)
        with self._changed:
            self._begin()
        return episodes

    def rollout(self, specs: Iterable[EpisodeSpec], temperature: float) -> list[Episode]:
        """Play episodes before the ones that have not begun, and return them when all are over."""
        ended: list[Episode] = []
        episodes = self.add(specs, temperature, ended.append, first=True)
        self.wait(lambda: len(ended) == len(episodes))
        return episodes

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait until `done`, which may become true whenever an episode ends. An error of playing is raised here."""
        began = time.perf_counter()
        if self.background:
            with self._changed:
                self._changed.wait_for(lambda: self._error is not None or done())
                error, self._error = self._error, None
            if error is not None:
                raise error
        elif not done():
            self._rollout.drive(until=done)
        self._waited += time.perf_counter() - began

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep the engine empty meanwhile. Environments that are at work continue."""
        with self._changed:
            self._paused = True
            self._rollout.halt()
            self._changed.wait_for(lambda: self._thread is None)
            self._rollout.halt(False)
        yield
        with self._changed:
            self._paused = False
            self._begin()

    def clear(self) -> None:
        """Forget the episodes that are not over, and the error of playing them."""
        with self.paused():
            self._rollout.abandon()
            self._error = None

    def take_times(self) -> tuple[RolloutStats, dict[str, float]]:
        """Return where the time of playing went since the last call, and how all time since then was used.

        `time/waited` are the seconds in which the caller waited, `time/engine_idle` the seconds in which the engine had
        nothing to sample. `perf/trainer_busy` and `perf/engine_busy` are the rest of each, as shares of the time.
        """
        now = time.perf_counter()
        if self._thread is not None:
            self._rollout.count_time()
        stats, self._rollout.stats = self._rollout.stats, RolloutStats()
        seconds, waited = now - self._looked, self._waited
        self._looked, self._waited = now, 0.0
        idle = max(0.0, seconds - (stats.wall_seconds - stats.wait_seconds))
        shares = {"perf/engine_busy": 1 - idle / seconds, "perf/trainer_busy": 1 - waited / seconds}
        return stats, {"time/waited": waited, "time/engine_idle": idle, **shares}

    def _begin(self) -> None:
        if self.background and self._thread is None and not self._paused and self._rollout.unfinished:
            # A daemon, so that an interrupted run does not wait for it.
            self._thread = threading.Thread(target=self._drive, name="rollout", daemon=True)
            self._thread.start()

    def _drive(self) -> None:
        try:
            self._rollout.drive()
        except BaseException as error:  # raised again in `wait`
            self._error = error
        with self._changed:
            self._thread = None
            self._begin()  # episodes that were added meanwhile
            self._changed.notify_all()


renamed_methods(Stream, {"play": "rollout"})
