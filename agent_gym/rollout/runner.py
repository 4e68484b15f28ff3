"""`Runner` holds the parts that rollouts share; `Rollout` drives the engine and resumes the episodes' coroutines.

Each episode advances on its own (episode_run.py): a slow environment delays its own episode only. One thread, the
caller's, drives the engine, since engines are not thread-safe; it never decodes text and never runs an environment.

Playing may end before the episodes do. They are then paused, half-written turns included, and resumed when `drive`
is called again, with the weights that the engine has by then (stream.py does so in a thread). A crash inside an
environment ends one episode (`Episode.failure`, reward NaN). A crash of the engine is the caller's.
"""

from __future__ import annotations

import itertools
import queue
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from tqdm import tqdm

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.base import Generation, Interruptible, Policy, Request, SamplingParams
from agent_gym.renamed import renamed_methods
from agent_gym.rollout.contexts import Context, make_context, tighten
from agent_gym.rollout.env_processes import EnvProcesses
from agent_gym.rollout.env_threads import PATIENCE_S, EnvThreads, make_env, notify_truncated
from agent_gym.rollout.episode import Episode, EpisodeSpec
from agent_gym.rollout.episode_run import (
    Budget,
    DeadlineExceeded,
    EnvCall,
    EpisodeRun,
    EpisodeSettings,
    OnEnd,
    RolloutStats,
    SampleRequest,
    SideRequest,
)
from agent_gym.rollout.failures import Failure, check_failures
from agent_gym.rollout.live_episode import LiveEpisode

SLOW_CALL_S = 300.0
"""When a line on stderr names an environment that does not answer; again after two, four, eight times as long."""


class EpisodeJudge(Protocol):
    """Completes the reward of episodes after they have ended, such as `judges.Judge`."""

    def follow(self, rollout: Rollout, specs: Sequence[EpisodeSpec], on_end: OnEnd) -> OnEnd: ...

    def describe(self) -> dict[str, Any]: ...

    def spent(self) -> Counter[str]: ...


class Runner:
    """Runs episodes with one policy, keeping threads and environments between rollouts.

    Args:
        tokenizer: a tokenizer or `ChatRenderer`.
        context: the context policy, by name ("append", "window:4", see `contexts.CONTEXTS`) or as an object.
        workers: calls of environments that compute at the same time; calls that wait for a server or a clock are not
            counted
        env_processes: processes that run the environments, while the threads wait; 0 for none. For environments that
            compute in Python or are not thread-safe.
        max_live: episodes alive at the same time, each with an environment in a separate thread.
        judge: completes the reward of an episode after it has ended; None where the environment gives all of it.

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
        judge: EpisodeJudge | None = None,
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
        rollout.drive()
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
        self._waiting: deque[tuple[LiveEpisode, EpisodeSettings]] = deque()  # not started
        self._runs: dict[EpisodeRun, None] = {}  # started and not over; the oldest first, whose time is up first
        self._env_calls: dict[EpisodeRun, None] = {}  # runs that wait for their threads
        self._requests: dict[int, EpisodeRun | SideRequest] = {}  # by the request's id
        self._paused_side_requests: deque[SideRequest] = deque()  # submitted again when playing resumes
        self._numbers = itertools.count(1)
        self._max_runs = runner.max_live  # fewer where the system has no more threads
        self._deferred: set[object] = set()  # tickets of `defer` without a result
        self._answers: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None only wakes
        self._goal_reached = self._halted = self._pausing = False
        self._stopped = self._tick = time.perf_counter()
        self._next_look = self._stopped + SLOW_CALL_S / 10

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + len(self._runs) + len(self._deferred)

    def add(
        self,
        specs: Iterable[EpisodeSpec],
        temperature: float = 1.0,
        on_end: OnEnd | None = None,
        *,
        first: bool = False,
    ) -> list[Episode]:
        """Add episodes under the present budget, in front of the ones that have not started if they are `first`."""
        episodes = [LiveEpisode(spec) for spec in specs]
        ended: OnEnd = partial(self._on_ended, on_end or (lambda episode: None))
        if self.runner.judge is not None:
            ended = self.runner.judge.follow(self, [episode.spec for episode in episodes], ended)
        settings = EpisodeSettings(self.runner.budget, temperature, ended)
        if first:
            self._waiting.extendleft((episode, settings) for episode in reversed(episodes))
        else:
            self._waiting.extend((episode, settings) for episode in episodes)
        self._answers.put(None)
        return [*episodes]

    def halt(self, halted: bool = True) -> None:
        """Let `drive` return soon, and at once if it is called again, until `halted` is False."""
        self._halted = halted
        self._answers.put(None)

    def defer(self) -> Callable[[Callable[[], None]], None]:
        """Defer a function: return its resolver, to be called once and from any thread with the function to run.

        The function runs in the thread that plays, and `drive` does not return before.
        """
        self._deferred.add(ticket := object())
        return lambda function: self._answers.put(partial(self._resolve, ticket, function))

    def sample(self, prompt_ids: list[int], params: SamplingParams) -> Future[Generation]:
        """Let the policy answer a prompt that belongs to no episode, while episodes are played; from any thread.

        The future raises `ConfigError` for a prompt that the policy cannot take.
        """
        side_request = SideRequest(prompt_ids, params, Future())
        self._answers.put(partial(self._submit_side_request, side_request))
        return side_request.answer

    def drive(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Play until all episodes are over, or `until` returns True, which is called whenever an episode has ended.

        Episodes that are not over are then paused; their time does not run until `drive` is called again.
        """
        self._until, self._goal_reached = until, False
        self._tick = time.perf_counter()
        with tqdm(total=self.unfinished, desc="episodes", disable=not self.runner.progress, leave=False) as bar:
            self._bar = bar
            try:
                self._resume_all()
                while self.unfinished and not (self._goal_reached or self._halted):
                    self._start()
                    self.runner.threads.concurrency.admit()
                    self._resume_answered()
                    # An engine without continuous batching runs whatever it has to the end, so it is better handed a
                    # full batch: it waits for the environments instead of starting with the first that answered.
                    generations: Sequence[Generation] = ()
                    ready = self.policy.continuous or not self._env_calls
                    if self.policy.pending and ready and not self._goal_reached:
                        generations = self._engine(self.policy.poll)
                        self._resume_answered(wait=False)  # the time that the policy took is not the environments'
                    self._expire()
                    for generation in generations:
                        self._resume_sampled(generation)
                    self._report_slow_calls()
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
        started: list[EpisodeRun] = []
        while self._waiting and len(self._runs) < self._max_runs:
            episode, settings = self._waiting.popleft()
            try:
                thread = self.runner.threads.take(episode.spec)
            except RuntimeError as error:  # the system has no more threads
                self._waiting.appendleft((episode, settings))
                if not self._runs:
                    message = f"no thread for an environment: {error}; a limit of processes is reached"
                    raise RolloutError(message) from error
                self._max_runs = len(self._runs)
                break
            started.append(EpisodeRun(episode, self, thread, settings))
            self._runs[started[-1]] = None
        # Not before all threads run: one that starts has to wait for the ones that work.
        for run in started:
            self._resume(run)

    def _resume(self, run: EpisodeRun, answer: Any = None, error: BaseException | None = None) -> None:
        """Resume an episode's coroutine until it waits again, or ends."""
        try:
            pending = run.coroutine.send(answer) if error is None else run.coroutine.throw(error)
        except StopIteration:
            return self._end(run)
        run.pending, run.waiting_since = pending, time.perf_counter()
        if isinstance(pending, EnvCall):
            run.reminder = run.waiting_since + SLOW_CALL_S
            self._env_calls[run] = None
            run.thread.call(pending.function, lambda *answer: self._answers.put(partial(self._answered, run, answer)))
        elif not self._pausing:
            self._submit(run, pending)

    def _submit(self, run: EpisodeRun, request: SampleRequest) -> None:
        run.request_id = next(self._numbers)
        self._requests[run.request_id] = run
        self._engine(self.policy.submit, run.request(request.begun))

    def _submit_side_request(self, side_request: SideRequest) -> None:
        number = next(self._numbers)
        try:
            self._engine(self.policy.submit, Request(number, side_request.prompt_ids, side_request.params))
        except ConfigError as error:  # for example, the prompt is too long
            return side_request.answer.set_exception(error)
        self._requests[number] = side_request

    def _answered(self, run: EpisodeRun, answer: tuple[Any, Failure | ConfigError | None]) -> None:
        if run in self._env_calls:  # otherwise its time ran out while the thread worked
            del self._env_calls[run]
            self._resume(run, answer)

    def _resolve(self, ticket: object, function: Callable[[], None]) -> None:
        if ticket in self._deferred:  # otherwise it was deferred before playing failed
            self._deferred.remove(ticket)
            function()

    def _resume_answered(self, *, wait: bool = True) -> None:
        """Handle the answers of other threads, and `wait` for one if the engine has nothing to do."""
        continuous = self.policy.continuous
        # An engine that does not batch continuously waits for all environments, but not for deferred functions.
        idle = wait and (not self.policy.pending or (not continuous and bool(self._env_calls)))
        while self._env_calls or self._deferred:
            patience = 0.0
            tick = time.perf_counter()
            if idle:
                patience = min(next((run.deadline for run in self._runs), self._next_look), self._next_look) - tick
                patience = min(patience, PATIENCE_S) if self.runner.threads.concurrency.admit() else patience
            try:
                message = self._answers.get(timeout=max(0.0, patience))
            except queue.Empty:
                return
            finally:
                self.stats.wait_seconds += time.perf_counter() - tick if idle else 0.0
            if message is None:
                return
            message()
            # An engine that batches continuously needs one answer only; any other waits for all.
            idle = wait and not continuous and bool(self._env_calls)

    def _resume_sampled(self, generation: Generation) -> None:
        waiting = self._requests.pop(generation.id, None)
        if isinstance(waiting, EpisodeRun):
            self._resume(waiting, generation)
        elif waiting and generation.finish_reason == "abort":
            self._paused_side_requests.append(waiting)
        elif waiting:
            waiting.answer.set_result(generation)

    def _end(self, run: EpisodeRun) -> None:
        episode = run.episode
        del self._runs[run]
        run.pending = None  # it refers to the run: a reference cycle, and work for the garbage collector
        episode.seconds = time.perf_counter() - run.started_at
        episode.cut(run.budget.max_tokens)
        if episode.truncated and episode.env is not None:
            run.thread.put(partial(notify_truncated, episode.env))
        episode.release()
        if episode.failure or run.thread.hangs:
            self.runner.threads.retire(run.thread)
        else:
            self.runner.threads.give(episode.spec, run.thread)
        run.settings.on_end(episode)

    def _on_ended(self, on_end: OnEnd, episode: Episode) -> None:
        on_end(episode)
        self._bar.update()  # an episode that is shown as done is on disk
        self._goal_reached = self._goal_reached or self._until()

    def _expire(self) -> None:
        now = time.perf_counter()
        # The first that began ends first, so that each round looks at one deadline and not at thousands.
        while (oldest := next(iter(self._runs), None)) and oldest.deadline <= now:
            if oldest in self._env_calls:
                del self._env_calls[oldest]
                oldest.thread.give_up()
            if self._requests.pop(oldest.request_id, None):
                self.policy.abort(oldest.request_id)
            self._resume(oldest, error=DeadlineExceeded())

    def _report_slow_calls(self) -> None:
        """Print a line if environments have not answered for long; one line, however many there are."""
        now = time.perf_counter()
        if now < self._next_look:
            return
        self._next_look = now + SLOW_CALL_S / 10
        silent = [run for run in self._env_calls if run.reminder <= now]
        for run in silent:
            run.reminder = now + (now - run.waiting_since)
        if silent:
            others = f" ({len(silent) - 1} more like it)" if len(silent) > 1 else ""
            tqdm.write(f"agent-gym: {silent[0].slow_call_message(now, others)}", file=sys.stderr)

    def _pause(self) -> None:
        """Take the unfinished turns out of the engine, with the tokens sampled so far. Threads keep running."""
        self._pausing = True
        if isinstance(self.policy, Interruptible):
            for generation in self.policy.interrupt():
                self._resume_sampled(generation)
        # Nothing is left of the other turns, so they are sampled again, with the same seeds: otherwise long turns,
        # which are interrupted more often than short ones, would get a second chance to be short.
        for number in list(self._requests):
            self.policy.abort(number)
            self._resume_sampled(Generation(number, [], [], "abort"))
        self._pausing, self._stopped = False, time.perf_counter()

    def _resume_all(self) -> None:
        lost = time.perf_counter() - self._stopped
        for run in self._runs:
            run.started_at, run.deadline = run.started_at + lost, run.deadline + lost
            if isinstance(run.pending, SampleRequest):
                self._submit(run, run.pending)
        while self._paused_side_requests:
            self._submit_side_request(self._paused_side_requests.popleft())

    def abandon(self) -> None:
        """Empty the engine and close the environments. These episodes are never resumed."""
        self._waiting.clear()
        runs, self._runs = self._runs, {}
        try:
            for number in self._requests:
                self.policy.abort(number)
        finally:
            for waiting in (*self._requests.values(), *self._paused_side_requests):
                if isinstance(waiting, SideRequest):
                    waiting.answer.cancel()
            for run in runs:
                run.coroutine.close()
                run.episode.release()
                run.thread.give_up()
                run.thread.hangs = False  # it may still end, and close its environment
                self.runner.threads.retire(run.thread)
            self._env_calls, self._requests, self._paused_side_requests, self._deferred = {}, {}, deque(), set()


renamed_methods(Rollout, {"play": "drive"})
