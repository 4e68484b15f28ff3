"""Environments for rollouts, and the threads in which they live.

An environment is made, reset, stepped and closed in one and the same thread: a SQLite connection or a browser allows
nothing else. So each live episode has a thread, which keeps its environments for the episodes that come after. All are
daemons: a hung environment must not keep a finished run alive (`concurrent.futures` would wait for it).

Only so many of these threads run at the same time. Calls that wait for a server come back in any number. A thread that
is awake asks for Python's lock every 5 ms; so that a thousand leave time for work, many ask less often.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import gymnasium

from agent_gym.chat import ChatRenderer
from agent_gym.env import TextEnv
from agent_gym.errors import ConfigError
from agent_gym.registry import EnvLike, resolve_env
from agent_gym.rollout.episode import EpisodeSpec
from agent_gym.rollout.failures import Failure

PATIENCE_S = 0.02
"""A call that takes longer is taken to wait for something else than Python's lock, unless that is hard to get."""
_INTERVAL_S = sys.getswitchinterval()  # between two questions of a thread for Python's lock, while few calls wait
_KEPT = 8
"""Environments that a thread keeps, one for each id and arguments."""
_GRACE_S = 2.0
"""Time that environments have to close at the end."""

Env = gymnasium.Env[str, str]
Job = Callable[[], None]
Answer = Callable[[Any, Failure | ConfigError | None], None]
Result = TypeVar("Result")


def make_env(env_id: EnvLike, env_kwargs: Mapping[str, Any] | None = None, tokenizer: Any = None) -> Env:
    """Make an environment that reports token ids, by a tokenizer or `ChatRenderer`; without one it has characters only.

    `registry.resolve_env` lists the alternatives to an id.

    Raises:
        ConfigError: for an unknown id, arguments the environment does not take, or an environment that is not a
            `TextEnv`.
    """
    env_id, kwargs = resolve_env(env_id, env_kwargs)
    try:
        env = gymnasium.make(env_id, **kwargs)
    except TypeError as error:
        raise ConfigError(f"cannot make {env_id} with arguments {kwargs}: {error}") from error
    if not isinstance(env.unwrapped, TextEnv):
        raise ConfigError(f"{env_id} is a {type(env.unwrapped).__name__}; rollouts need an agent_gym.TextEnv")
    if tokenizer is not None:
        env.unwrapped.renderer = ChatRenderer.of(tokenizer)
    return env


def close_env(env: Env) -> None:
    """Close an environment. An error is a line on stderr: its episodes are over, and no result may be lost."""
    _call_last("closing", env.close)


def notify_truncated(env: Env) -> None:
    """Tell an environment that its episode was stopped (`TextEnv.on_truncated`); errors are as in `close_env`."""
    _call_last("leaving", lambda: env.get_wrapper_attr("on_truncated")())


def _call_last(deed: str, function: Callable[[], object]) -> None:
    try:
        function()
    except BaseException as error:  # SystemExit, too
        print(f"agent-gym: {deed} an environment failed: {Failure.of(error).line}", file=sys.stderr, flush=True)


def shows_images(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> bool:
    """Whether an environment shows images (`TextEnv.shows_images`)."""
    env = make_env(env_id, env_kwargs)
    shown = bool(env.get_wrapper_attr("shows_images"))
    close_env(env)
    return shown


class Worker:
    """One daemon thread, which runs jobs in the order in which they come."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Run a job, which must not raise."""
        self._jobs.put(job)

    def submit(self, function: Callable[..., Result], *args: Any) -> Future[Result]:
        """Call a function in the thread; the future has its result or error."""
        if self._closed:
            raise RuntimeError("the thread of this environment has ended: it was closed")
        future: Future[Result] = Future()

        def job() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:  # a thread that ends by SystemExit would never answer
                future.set_exception(error)

        self.put(job)
        return future

    def run(self, function: Callable[[], Result]) -> Result:
        return self.submit(function).result()

    def close(self) -> None:
        """Let the thread end after the jobs that it has."""
        self._closed = True
        self._jobs.put(None)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end of the thread; returns whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # an idle thread keeps nothing alive


class ConcurrencyLimit:
    """Lets at most `limit` calls run at the same time; the others wait. A thread has one call at a time.

    A call that takes longer than `PATIENCE_S` is taken to wait for a server or a clock, and is not counted any more, so
    that slow and hung environments do not hold up the others. Where calls begin late, because too many threads are
    awake, the patience is longer, so that no more of them are woken than can work.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[EnvThread, Job] = {}  # in the order of their coming
        self._running: dict[EnvThread, float] = {}  # since when
        self._slow: set[EnvThread] = set()
        self._lag = 0.0  # how late calls begin, in the mean
        self._stretch = 1  # of the time between two questions of a thread for Python's lock
        self._lock = threading.Lock()

    def enter(self, thread: EnvThread, job: Job) -> None:
        with self._lock:
            self._waiting[thread] = job
            self._admit()

    def release(self, thread: EnvThread, began: float | None = None) -> bool:
        """Release the slot of a call that has ended, begun at `began`, or is given up; returns whether it had one."""
        with self._lock:
            if self._waiting.pop(thread, None):
                return False
            admitted = self._running.pop(thread, None)
            if admitted and began:
                self._lag += 0.1 * (began - admitted - self._lag)
            known = admitted is not None or thread in self._slow
            self._slow.discard(thread)
            self._admit()
            return known

    def admit(self) -> bool:
        """Start calls for which slots are free now; returns whether others still wait."""
        if self._waiting:
            with self._lock:
                self._admit()
        return bool(self._waiting)

    def _admit(self) -> None:
        stretch, self._stretch = self._stretch, max(1, len(self._slow) // 32)
        if stretch != self._stretch:  # else the interval may be a user's
            sys.setswitchinterval(_INTERVAL_S * self._stretch)
        now = time.monotonic()
        late = now - min(max(PATIENCE_S, 4 * self._lag), 5 * PATIENCE_S)
        while self._waiting and (first := next(iter(self._running), None)) and self._running[first] < late:
            del self._running[first]
            self._slow.add(first)
        while self._waiting and len(self._running) < self._limit:
            thread = next(iter(self._waiting))
            self._running[thread] = now
            thread.put(self._waiting.pop(thread))


class EnvThread(Worker):
    """One thread and the environments that were made in it; `hangs` if a call was given up that had begun."""

    def __init__(self, make: Callable[[str, Any], Env], line: ConcurrencyLimit, name: str) -> None:
        super().__init__(name)
        self.hangs = False
        self._make, self._concurrency = make, line
        self._envs: dict[str, Env] = {}

    def env(self, spec: EpisodeSpec) -> Env:
        """Return the environment of an episode, which is made if there is none. Called in the thread."""
        key = _key_of(spec)
        env = self._envs.pop(key, None)
        if env is None or getattr(env, "process_died", False):
            env = self._make(spec.env_id, spec.env_kwargs)
        self._envs[key] = env
        if len(self._envs) > _KEPT:
            close_env(self._envs.pop(next(iter(self._envs))))
        return env

    def call(self, function: Callable[[], Any], answer: Answer) -> None:
        """Call a function when the thread's turn has come; `answer` gets its result and its error, in the thread."""

        def job() -> None:
            result: Any = None
            error: Failure | ConfigError | None = None
            began = time.monotonic()
            try:
                result = function()
            except ConfigError as raised:
                error = raised
            except BaseException as raised:  # whatever an environment raises ends one episode; SystemExit, too
                error = Failure.of(raised)
            # Before the answer, since the next call may follow at once, and a thread has one call at a time.
            self._concurrency.release(self, began)
            answer(result, error)

        self._concurrency.enter(self, job)

    def give_up(self) -> None:
        """Wait no longer for the call: a thread cannot be stopped. One that has not begun never does."""
        self.hangs = self._concurrency.release(self)

    def retire(self) -> None:
        """Let the thread end after its present job, and close its environments before."""

        def close_envs() -> None:
            while self._envs:
                close_env(self._envs.popitem()[1])

        self.put(close_envs)
        self.close()


class EnvThreads:
    """One thread for each live episode, of which about `limit` are kept and `running` run at the same time."""

    def __init__(self, make: Callable[[str, Any], Env], limit: int, running: int) -> None:
        self.concurrency = ConcurrencyLimit(running)
        self._make, self._limit, self._started = make, limit, 0
        self._threads: set[EnvThread] = set()
        self._ending: list[EnvThread] = []
        self._free: defaultdict[str, list[EnvThread]] = defaultdict(list)  # by the environment that they had last

    def take(self, spec: EpisodeSpec) -> EnvThread:
        """Find a free thread, best one that has such an environment, or start one."""
        if same := self._free[_key_of(spec)]:
            return same.pop()
        if len(self._threads) >= self._limit and (other := next(filter(None, self._free.values()), None)):
            return other.pop()
        self._started += 1
        thread = EnvThread(self._make, self.concurrency, f"agent-gym-env-{self._started}")
        self._threads.add(thread)
        return thread

    def give(self, spec: EpisodeSpec, thread: EnvThread) -> None:
        self._free[_key_of(spec)].append(thread)

    def retire(self, thread: EnvThread) -> None:
        """End a thread whose episode did not end in order: its environment must not meet another episode."""
        self._threads.discard(thread)
        thread.retire()
        self._ending = [one for one in (*self._ending, thread) if not one.hangs and not one.join(0)]

    def close(self) -> None:
        """Close all environments, each in its thread, and wait a little for the slow ones."""
        self._free.clear()
        for thread in self._threads:
            thread.retire()
        deadline = time.monotonic() + _GRACE_S
        for thread in (*self._ending, *self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads.clear()


def _key_of(spec: EpisodeSpec) -> str:
    return spec.env_id + json.dumps(spec.env_kwargs, sort_keys=True, default=repr)
