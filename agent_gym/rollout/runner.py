"""`Runner` holds what rollouts share, and `Rollout` drives the engine and resumes the coroutines of the episodes.

Each episode advances on its own (play.py): a slow environment delays its own episode only. One thread, the caller's,
drives the engine, since engines are not thread-safe; it never decodes text and never runs an environment.

Playing may end before the episodes do. They are then paused, half-written turns included, and go on when `play` is
called again, with the weights that the engine has by then (stream.py does so in a thread). A crash inside an
environment ends one episode (`Episode.failure`, reward NaN). A crash of the engine is the caller's.
"""

from __future__ import annotations

import itertools
import queue
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.base import Generation, Interruptible, Policy, Request, SamplingParams
from agent_gym.rollout.contexts import Context, make_context, tighten
from agent_gym.rollout.env_processes import EnvProcesses
from agent_gym.rollout.env_threads import PATIENCE_S, EnvThreads, leave_env, make_env
from agent_gym.rollout.episode import Episode, EpisodeSpec
from agent_gym.rollout.failures import Failure, check_failures
from agent_gym.rollout.play import Aside, Ask, Budget, Call, Life, OnEnd, RolloutStats, Terms, TimeUp

if TYPE_CHECKING:
    from agent_gym.judges import Judge

SILENCE_S = 300.0
"""When a line on stderr names an environment that does not answer; again after two, four, eight times as long."""


class Runner:
    """Runs episodes with one policy, keeping threads and environments between rollouts.

    Args:
        tokenizer: a tokenizer or `ChatRenderer`.
        context: what the policy sees next, by name ("append", "window:4", see `contexts.CONTEXTS`) or as an object.
        workers: calls of environments that compute at the same time; those that wait for a server or a clock are not
            counted.
        env_processes: processes that run the environments, while the threads wait; 0 for none. For environments that
            compute in Python or are not thread-safe.
        max_live: episodes alive at the same time, each with an environment in a thread of its own.
        judge: what completes the reward of an episode after it has ended; None where the environment gives all of it.

    Raises:
        ConfigError: for a context policy that does not exist or wants more tokens than the budget has.
    """

    def __init__(
        self,
        policy: Policy,
        tokenizer: Any,
        budget: Budget | None = None,
        *,
        context: str | Context = "append",
        workers: int = 32,
        env_processes: int = 0,
        max_live: int = 512,
        progress: bool = False,
        judge: Judge | None = None,
    ) -> None:
        self.policy, self.renderer = policy, ChatRenderer.of(tokenizer)
        self.context = make_context(context)
        self.budget = budget or Budget()
        self.stats = RolloutStats()  # of the last rollout
        self.version = 0  # of the policy's weights, which marks each token; a trainer that hands over weights sets it
        self.max_live, self.progress, self.judge = max_live, progress, judge
        self._processes: EnvProcesses | None = None
        if env_processes:
            self._processes = EnvProcesses(self.renderer, env_processes, lambda: self.budget.max_seconds)
        make = self._processes.make if self._processes else partial(make_env, tokenizer=self.renderer)
        self.threads = EnvThreads(make, max_live, workers)

    @property
    def budget(self) -> Budget:
        """The limits of each episode. A bound of the context policy tightens them, and how much the engine can read."""
        return self._budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._budget = tighten(budget, self.context, getattr(self.policy, "context", None))

    def run(
        self, specs: Sequence[EpisodeSpec], *, temperature: float = 1.0, on_end: OnEnd | None = None
    ) -> list[Episode]:
        """Play one episode per spec and return them in that order, failed ones included.

        At the temperature 0 the policy is greedy. `on_end` is called in this thread. `RolloutError` if every episode
        failed, since the cause is then in the set-up and not in an episode.
        """
        episodes = self.run_share(specs, temperature=temperature, on_end=on_end)
        check_failures([episode.failure for episode in episodes])
        return episodes

    def run_share(
        self, specs: Sequence[EpisodeSpec], *, temperature: float = 1.0, on_end: OnEnd | None = None
    ) -> list[Episode]:
        """Play one process's share of a rollout: as `run`, but all of it may fail while other processes succeed."""
        rollout = Rollout(self)
        episodes = rollout.add(specs, temperature, on_end)
        rollout.play()
        self.stats = rollout.stats
        return episodes

    def close(self) -> None:
        """Close the environments, each in its thread. The policy stays open: it belongs to the caller."""
        if self._processes is not None:
            self._processes.close()
        self.threads.close()


class Rollout:
    """Episodes in play, which share a runner's policy and threads. `add` and `halt` may be called by other threads."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.policy = runner, runner.policy
        self.renderer, self.context = runner.renderer, runner.context
        self.stats = RolloutStats()  # since somebody set it last
        self._waiting: deque[tuple[Episode, Terms]] = deque()  # not started
        self._lives: dict[Life, None] = {}  # started and not over; the oldest first, whose time is up first
        self._calls: dict[Life, None] = {}  # those that wait for their threads
        self._asks: dict[int, Life | Aside] = {}  # what waits for the policy, by the number of the request
        self._asides: deque[Aside] = deque()  # asked again when playing goes on
        self._numbers = itertools.count(1)
        self._most = runner.max_live  # fewer where the system has no more threads
        self._promises: set[object] = set()  # what `later` has promised
        self._answers: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None only wakes
        self._enough = self._halted = self._pausing = False
        self._stopped = self._tick = time.perf_counter()
        self._next_look = self._stopped + SILENCE_S / 10

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + len(self._lives) + len(self._promises)

    def add(
        self,
        specs: Iterable[EpisodeSpec],
        temperature: float = 1.0,
        on_end: OnEnd | None = None,
        *,
        first: bool = False,
    ) -> list[Episode]:
        """Add episodes under the present budget, in front of those that have not started if they are `first`."""
        episodes = [Episode(spec) for spec in specs]
        ended: OnEnd = partial(self._ended, on_end or (lambda episode: None))
        if self.runner.judge is not None:
            ended = self.runner.judge.follow(self, [episode.spec for episode in episodes], ended)
        terms = Terms(self.runner.budget, temperature, ended)
        if first:
            self._waiting.extendleft((episode, terms) for episode in reversed(episodes))
        else:
            self._waiting.extend((episode, terms) for episode in episodes)
        self._answers.put(None)
        return episodes

    def halt(self, halted: bool = True) -> None:
        """Let `play` return soon, and at once if it is called again, until `halted` is False."""
        self._halted = halted
        self._answers.put(None)

    def later(self) -> Callable[[Callable[[], None]], None]:
        """Return what takes, once and from any thread, a function for the thread that plays; `play` waits for it."""
        self._promises.add(promise := object())
        return lambda function: self._answers.put(partial(self._keep, promise, function))

    def sample(self, prompt_ids: list[int], params: SamplingParams) -> Future[Generation]:
        """Let the policy answer a prompt that belongs to no episode, while episodes are played; from any thread.

        The future raises `ConfigError` for a prompt that the policy cannot take.
        """
        aside = Aside(prompt_ids, params, Future())
        self._answers.put(partial(self._ask_aside, aside))
        return aside.answer

    def play(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Play until all episodes are over, or `until` returns True, which is called whenever an episode has ended.

        What is not over is then paused, and its time does not run until `play` is called again.
        """
        self._until, self._enough = until, False
        self._tick = time.perf_counter()
        with tqdm(total=self.unfinished, desc="episodes", disable=not self.runner.progress, leave=False) as bar:
            self._bar = bar
            try:
                self._go_on()
                while self.unfinished and not (self._enough or self._halted):
                    self._start()
                    self.runner.threads.line.move_up()
                    self._resume_answered()
                    # An engine without continuous batching runs whatever it has to the end, so it is better handed a
                    # full batch: it waits for the environments instead of starting with the first that answered.
                    sampled: Sequence[Generation] = ()
                    if self.policy.pending and not self._enough and (self.policy.continuous or not self._calls):
                        sampled = self._engine(self.policy.poll)
                        self._resume_answered(wait=False)  # the time that the policy took is not the environments'
                    self._expire()
                    for generation in sampled:
                        self._resume_sampled(generation)
                    self._remind()
                self._pause()
            except BaseException:
                self.abandon()
                raise
        self.count_time()

    def count_time(self) -> None:
        """Add the time since this was last done to `stats`."""
        now = time.perf_counter()
        self.stats.wall_seconds += now - self._tick
        self._tick = now

    def _engine(self, function: Callable[..., Any], *args: Any) -> Any:
        tick = time.perf_counter()
        result = function(*args)
        self.stats.engine_seconds += time.perf_counter() - tick
        return result

    def _start(self) -> None:
        started: list[Life] = []
        while self._waiting and len(self._lives) < self._most:
            episode, terms = self._waiting.popleft()
            try:
                thread = self.runner.threads.take(episode.spec)
            except RuntimeError as error:  # the system has no more threads
                self._waiting.appendleft((episode, terms))
                if not self._lives:
                    message = f"no thread for an environment: {error}; a limit of processes is reached"
                    raise RolloutError(message) from error
                self._most = len(self._lives)
                break
            started.append(Life(episode, self, thread, terms))
            self._lives[started[-1]] = None
        # Not before all threads run: one that starts has to wait for those that work.
        for life in started:
            self._resume(life)

    def _resume(self, life: Life, answer: Any = None, error: BaseException | None = None) -> None:
        """Let an episode go on to where it waits next, or to its end."""
        try:
            wish = life.coroutine.send(answer) if error is None else life.coroutine.throw(error)
        except StopIteration:
            return self._end(life)
        life.wish, life.since = wish, time.perf_counter()
        if isinstance(wish, Call):
            life.reminder = life.since + SILENCE_S
            self._calls[life] = None
            life.thread.call(wish.function, lambda *answer: self._answers.put(partial(self._answered, life, answer)))
        elif not self._pausing:
            self._ask(life, wish)

    def _ask(self, life: Life, ask: Ask) -> None:
        life.number = next(self._numbers)
        self._asks[life.number] = life
        self._engine(self.policy.submit, life.request(ask.begun))

    def _ask_aside(self, aside: Aside) -> None:
        number = next(self._numbers)
        try:
            self._engine(self.policy.submit, Request(number, aside.prompt_ids, aside.params))
        except ConfigError as error:  # for example, the prompt is too long
            return aside.answer.set_exception(error)
        self._asks[number] = aside

    def _answered(self, life: Life, answer: tuple[Any, Failure | ConfigError | None]) -> None:
        if life in self._calls:  # otherwise its time ran out while the thread worked
            del self._calls[life]
            self._resume(life, answer)

    def _keep(self, promise: object, function: Callable[[], None]) -> None:
        if promise in self._promises:  # otherwise it was made before playing failed
            self._promises.remove(promise)
            function()

    def _resume_answered(self, *, wait: bool = True) -> None:
        """Take what other threads have to say, and `wait` for it if the engine has nothing to do."""
        continuous = self.policy.continuous
        # An engine that does not batch continuously waits for all environments, but not for a promise.
        idle = wait and (not self.policy.pending or (not continuous and bool(self._calls)))
        while self._calls or self._promises:
            patience = 0.0
            tick = time.perf_counter()
            if idle:
                patience = min(next((life.deadline for life in self._lives), self._next_look), self._next_look) - tick
                patience = min(patience, PATIENCE_S) if self.runner.threads.line.move_up() else patience
            try:
                message = self._answers.get(timeout=max(0.0, patience))
            except queue.Empty:
                return
            finally:
                self.stats.wait_seconds += time.perf_counter() - tick if idle else 0.0
            if message is None:
                return
            message()
            # With an engine that batches continuously one answer is enough to go on; any other waits for all.
            idle = wait and not continuous and bool(self._calls)

    def _resume_sampled(self, generation: Generation) -> None:
        waiting = self._asks.pop(generation.id, None)
        if isinstance(waiting, Life):
            self._resume(waiting, generation)
        elif waiting and generation.finish_reason == "abort":
            self._asides.append(waiting)
        elif waiting:
            waiting.answer.set_result(generation)

    def _end(self, life: Life) -> None:
        episode = life.episode
        del self._lives[life]
        life.wish = None  # which knows the life: a circle, and work for the garbage collector
        episode.seconds = time.perf_counter() - life.began
        episode.cut(life.budget.max_tokens)
        if episode.truncated and episode.env is not None:
            life.thread.put(partial(leave_env, episode.env))
        episode.release()
        if episode.failure or life.thread.hangs:
            self.runner.threads.retire(life.thread)
        else:
            self.runner.threads.give(episode.spec, life.thread)
        life.terms.on_end(episode)

    def _ended(self, on_end: OnEnd, episode: Episode) -> None:
        on_end(episode)
        self._bar.update()  # what is shown as done is on disk
        self._enough = self._enough or self._until()

    def _expire(self) -> None:
        now = time.perf_counter()
        # The first that began ends first, so that each round looks at one deadline and not at thousands.
        while (oldest := next(iter(self._lives), None)) and oldest.deadline <= now:
            if oldest in self._calls:
                del self._calls[oldest]
                oldest.thread.give_up()
            if self._asks.pop(oldest.number, None):
                self.policy.abort(oldest.number)
            self._resume(oldest, error=TimeUp())

    def _remind(self) -> None:
        """Print a line if environments have not answered for long; one line, however many there are."""
        now = time.perf_counter()
        if now < self._next_look:
            return
        self._next_look = now + SILENCE_S / 10
        silent = [life for life in self._calls if life.reminder <= now]
        for life in silent:
            life.reminder = now + (now - life.since)
        if silent:
            others = f" ({len(silent) - 1} more like it)" if len(silent) > 1 else ""
            tqdm.write(f"agent-gym: {silent[0].silence(now, others)}", file=sys.stderr)

    def _pause(self) -> None:
        """Take the unfinished turns out of the engine, with what is written of them. Threads go on."""
        self._pausing = True
        if isinstance(self.policy, Interruptible):
            for generation in self.policy.interrupt():
                self._resume_sampled(generation)
        # Of the others nothing is left, and their turns are sampled anew. With the seeds that they had, or long turns,
        # which are interrupted more often than short ones, would get a second chance to be short.
        for number in list(self._asks):
            self.policy.abort(number)
            self._resume_sampled(Generation(number, [], [], "abort"))
        self._pausing, self._stopped = False, time.perf_counter()

    def _go_on(self) -> None:
        lost = time.perf_counter() - self._stopped
        for life in self._lives:
            life.began, life.deadline = life.began + lost, life.deadline + lost
            if isinstance(life.wish, Ask):
                self._ask(life, life.wish)
        while self._asides:
            self._ask_aside(self._asides.popleft())

    def abandon(self) -> None:
        """Leave nothing in the engine, and let the environments close. These episodes never go on."""
        self._waiting.clear()
        lives, self._lives = self._lives, {}
        try:
            for number in self._asks:
                self.policy.abort(number)
        finally:
            for waiting in (*self._asks.values(), *self._asides):
                if isinstance(waiting, Aside):
                    waiting.answer.cancel()
            for life in lives:
                life.coroutine.close()
                life.episode.release()
                life.thread.give_up()
                life.thread.hangs = False  # it may still end, and close its environment
                self.runner.threads.retire(life.thread)
            self._calls, self._asks, self._asides, self._promises = {}, {}, deque(), set()
