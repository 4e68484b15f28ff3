"""The scheduler of a rollout: it drives the engine, and resumes the coroutines of the episodes with what they wait for.

Each episode advances on its own (play.py). There is no turn barrier: a slow environment delays its own episode only,
and the engine decodes as long as any episode has work for it. One thread, the caller's, drives the engine, since
engines are not thread-safe; it never decodes text and never runs an environment. What the scheduler costs besides
engine and waiting is measured (`RolloutStats.overhead_seconds`).

Playing may end before the episodes do. They are then paused, half-written turns included, and go on when `play` is
called again, with whatever weights the engine has by then.
"""

from __future__ import annotations

import queue
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.base import Generation, Interruptible
from agent_gym.rollout.budget import RolloutStats
from agent_gym.rollout.env_threads import PATIENCE_S
from agent_gym.rollout.episode import Episode, EpisodeSpec
from agent_gym.rollout.failures import Failure
from agent_gym.rollout.play import Ask, Call, Life, TimeUp

if TYPE_CHECKING:
    from agent_gym.rollout.runner import Runner

SILENCE_S = 300.0
"""After so many seconds without an answer a line on stderr says which environment is waited for, and again after two,
four, eight times as many."""

OnEnd = Callable[[Episode], None]


def _never() -> bool:
    return False


class Rollout:
    """Episodes in play.

    Args:
        runner: whose policy, threads and limits they share.

    Attributes:
        stats: where the time of the last `play` went.
    """

    def __init__(self, runner: Runner) -> None:
        """Play nothing yet."""
        self.runner, self.policy = runner, runner.policy
        self.renderer, self.context, self.budget = runner.renderer, runner.context, runner.budget
        self.temperature, self.stats = 1.0, RolloutStats()
        self._waiting: deque[Episode] = deque()  # not started yet
        self._lives: dict[Life, None] = {}  # started and not over; the oldest first, whose time is up first
        self._calls: dict[Life, None] = {}  # those that wait for their threads
        self._asks: dict[int, Life] = {}  # those that wait for the policy, by the number of the request
        self._paused: list[Life] = []  # those that waited for the policy when playing ended
        self._n_requests = 0
        self._room = sys.maxsize  # threads that the system has
        self._answers: queue.SimpleQueue[tuple[Life, tuple[Any, Failure | ConfigError | None]]] = queue.SimpleQueue()
        self._enough = self._pausing = False
        self._until: Callable[[], bool] = _never
        self._on_end: OnEnd | None = None
        self._stopped = time.perf_counter()
        self._next_look = self._stopped + SILENCE_S / 10

    @property
    def unfinished(self) -> int:
        """How many episodes are not over."""
        return len(self._waiting) + len(self._lives)

    def add(self, specs: Iterable[EpisodeSpec]) -> list[Episode]:
        """Let episodes wait for their start and return them, empty as they are."""
        episodes = [Episode(spec) for spec in specs]
        self._waiting += episodes
        return episodes

    def play(self, temperature: float, *, until: Callable[[], bool] = _never, on_end: OnEnd | None = None) -> None:
        """Play until all episodes are over, or what is over is enough.

        Args:
            temperature: of the policy's sampling; 0 is greedy.
            until: asked whenever an episode has ended. Once it returns True, playing ends: what is not over is paused,
                and its time does not run until `play` is called again.
            on_end: called with each episode as it ends, in this thread.
        """
        self.temperature, self._until, self._on_end = temperature, until, on_end
        self.budget, self.stats, self._enough = self.runner.budget, RolloutStats(), False
        begin = time.perf_counter()
        with tqdm(total=self.unfinished, desc="episodes", disable=not self.runner.progress, leave=False) as bar:
            self._bar = bar
            try:
                self._go_on()
                self._drive()
                self._pause()
            except BaseException:
                self._abandon()
                raise
        self.stats.wall_seconds = time.perf_counter() - begin

    def _drive(self) -> None:
        continuous = self.policy.continuous
        while self.unfinished and not self._enough:
            self._start()
            self.runner.threads.line.move_up()
            self._resume_answered()
            # An engine without continuous batching runs whatever it has to the end, so it is better handed a full
            # batch: it waits for the environments instead of starting with the first that answered.
            if self.policy.pending and not self._enough and (continuous or not self._calls):
                tick = time.perf_counter()
                finished = self.policy.poll()
                self.stats.engine_seconds += time.perf_counter() - tick
                for generation in finished:
                    self._resume_sampled(generation)
            self._expire()
            self._remind()

    def _start(self) -> None:
        """Start what waits, as many episodes as may be alive."""
        while self._waiting and len(self._lives) < min(self.runner.max_live, self._room):
            try:
                thread = self.runner.threads.take(self._waiting[0].spec)
            except RuntimeError as error:  # the system has no more threads
                if not self._lives:
                    raise RolloutError(
                        f"no thread for an environment: {error}; a limit of processes is reached"
                    ) from error
                self._room = len(self._lives)
                return
            life = Life(self._waiting.popleft(), self, thread)
            self._lives[life] = None
            self._resume(life)

    def _resume(self, life: Life, answer: Any = None, error: BaseException | None = None) -> None:
        """Let an episode go on to where it waits next, or to its end."""
        try:
            wish = life.coroutine.send(answer) if error is None else life.coroutine.throw(error)
        except StopIteration:
            self._end(life)
            return
        life.wish, life.since = wish, time.perf_counter()
        if isinstance(wish, Call):
            life.reminder = life.since + SILENCE_S
            self._calls[life] = None
            life.thread.call(wish.function, lambda *answer: self._answers.put((life, answer)))
        elif self._pausing:
            self._paused.append(life)
        else:
            self._ask(life, wish)

    def _ask(self, life: Life, ask: Ask) -> None:
        self._n_requests += 1
        self._asks[self._n_requests] = life
        tick = time.perf_counter()
        self.policy.submit(life.request(self._n_requests, ask.begun))
        self.stats.engine_seconds += time.perf_counter() - tick

    def _resume_answered(self) -> None:
        """Resume the episodes whose threads have answered, and wait for an answer if the engine has nothing to do."""
        continuous = self.policy.continuous
        idle = not (self.policy.pending and continuous)
        while self._calls:
            try:
                life, answer = self._wait_for_answer() if idle else self._answers.get_nowait()
            except queue.Empty:
                return
            # With an engine that batches continuously one answer is enough to go on; any other waits for all.
            idle = idle and not continuous
            if life in self._calls:  # otherwise its time ran out while the thread worked
                del self._calls[life]
                self._resume(life, answer)

    def _wait_for_answer(self) -> tuple[Life, Any]:
        tick = time.perf_counter()
        until = min(next(iter(self._lives)).deadline, self._next_look)
        if self.runner.threads.line.move_up():
            until = min(until, tick + PATIENCE_S)
        try:
            return self._answers.get(timeout=max(0.0, until - tick))
        finally:
            self.stats.wait_seconds += time.perf_counter() - tick

    def _resume_sampled(self, generation: Generation) -> None:
        if life := self._asks.pop(generation.id, None):
            self._resume(life, generation)

    def _end(self, life: Life) -> None:
        del self._lives[life]
        life.end()
        if life.episode.failure or life.thread.hangs:
            self.runner.threads.retire(life.thread)
        else:
            self.runner.threads.give(life.episode.spec, life.thread)
        if self._on_end is not None:
            self._on_end(life.episode)
        self._bar.update()  # what is shown as done is on disk
        self._enough = self._enough or self._until()

    def _expire(self) -> None:
        now = time.perf_counter()
        # The first that began ends first, so that each round looks at one deadline and not at thousands.
        while (oldest := next(iter(self._lives), None)) and oldest.deadline <= now:
            self._let_go(oldest)
            self._resume(oldest, error=TimeUp())

    def _let_go(self, life: Life) -> None:
        """Wait no longer for what an episode waits for."""
        if life in self._calls:
            del self._calls[life]
            life.thread.give_up()
        for number in [number for number, one in self._asks.items() if one is life]:
            del self._asks[number]
            self.policy.abort(number)

    def _remind(self) -> None:
        """Tell a person about an environment that has not answered for long; one line, however many there are."""
        now = time.perf_counter()
        if now < self._next_look:
            return
        self._next_look = now + SILENCE_S / 10
        silent = [life for life in self._calls if life.reminder <= now]
        if not silent:
            return
        for life in silent:
            life.reminder = now + (now - life.since)
        life, spec = silent[0], silent[0].episode.spec
        place = f"{spec.split or 'default'}/{'?' if spec.index is None else spec.index}"
        clock = time.strftime("%H:%M:%S", time.localtime(time.time() - (now - life.since)))
        others = f" ({len(silent) - 1} more like it)" if len(silent) > 1 else ""
        limit = self.budget.max_seconds
        end = "no max_seconds is set, so the rollout waits for it" if limit is None else f"max_seconds is {limit:g}"
        assert isinstance(life.wish, Call)
        task = f"{spec.env_id}, task {life.episode.task_id or place}, seed {spec.seed}"
        waited = f"{life.wish.what} has not answered for {now - life.since:.3g} s, since {clock}{others}"
        tqdm.write(f"agent-gym: {task}: {waited}; {end}", file=sys.stderr)

    def _pause(self) -> None:
        """Take the unfinished turns out of the engine, with what is written of them. Threads go on."""
        self._pausing = True
        if isinstance(self.policy, Interruptible):
            for generation in self.policy.interrupt():
                self._resume_sampled(generation)
        # Of the others nothing is left, and their turns are sampled anew. With the seeds that they had, or long turns,
        # which are interrupted more often than short ones, would get a second chance to be short.
        for number, life in list(self._asks.items()):
            del self._asks[number]
            self.policy.abort(number)
            self._resume(life, Generation(number, [], [], "abort"))
        self._pausing, self._stopped = False, time.perf_counter()

    def _go_on(self) -> None:
        """Take up what was paused."""
        lost = time.perf_counter() - self._stopped
        for life in self._lives:
            life.began, life.deadline = life.began + lost, life.deadline + lost
        paused, self._paused = self._paused, []
        for life in paused:
            assert isinstance(life.wish, Ask)
            self._ask(life, life.wish)

    def _abandon(self) -> None:
        """Leave nothing in the engine, and let the environments close. These episodes never go on."""
        self._waiting.clear()
        lives, self._lives = self._lives, {}
        try:
            for life in lives:
                self._let_go(life)
        finally:
            for life in lives:
                life.coroutine.close()
                life.episode.release()
                life.thread.hangs = False  # it may still end, and close its environment
                self.runner.threads.retire(life.thread)
            self._calls, self._asks, self._paused = {}, {}, []
