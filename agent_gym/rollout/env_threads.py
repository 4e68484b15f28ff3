"""Threads in which environments live.

An environment is made, reset, stepped and closed in one and the same thread: a SQLite connection or a browser allows
nothing else. So each live episode has a thread, which keeps its environments for the episodes that come after. All are
daemons: one hung environment must not keep a finished run alive.

Of all these threads only so many run at the same time; the calls of the others wait in line. Threads that are awake and
wait for Python's lock ask for it every 5 ms, each of them, and a thousand of them leave little time for anything else.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import gymnasium

from agent_gym.errors import ConfigError
from agent_gym.rollout.env_processes import RemoteEnv
from agent_gym.rollout.envs import close_env
from agent_gym.rollout.episode import EpisodeSpec
from agent_gym.rollout.failures import Failure
from agent_gym.workers import Job, Worker

PATIENCE_S = 0.02
"""A call that takes longer is taken to wait for something else than Python's lock, unless that is hard to get."""
_KEPT = 8
"""Environments that a thread keeps, one for each id and arguments."""
_GRACE_S = 2.0
"""Time that environments have to close at the end."""

MakeEnv = Callable[[str, Any], gymnasium.Env[str, str]]
Answer = Callable[[Any, Failure | ConfigError | None], None]


class Line:
    """Where calls wait until fewer than `limit` run. A thread has one call at a time.

    A call that takes longer than `PATIENCE_S` waits for a server or a clock and is not counted any more. So slow
    environments do not hold up the others, and hung ones do not, either. Where calls begin late, because too many
    threads are awake, the patience is longer, so that no more of them are woken than can work.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[EnvThread, Job] = {}  # in the order of their coming
        self._running: dict[EnvThread, float] = {}  # since when
        self._slow: set[EnvThread] = set()
        self._lag = 0.0  # how late calls begin, in the mean
        self._lock = threading.Lock()

    def enter(self, thread: EnvThread, job: Job) -> None:
        """Let a thread do a job, now or when its turn has come."""
        with self._lock:
            self._waiting[thread] = job
            self._admit()

    def begin(self, thread: EnvThread) -> None:
        """A call that was let in begins, in its thread."""
        with self._lock:
            if admitted := self._running.get(thread):
                self._lag += 0.1 * (time.monotonic() - admitted - self._lag)

    def leave(self, thread: EnvThread) -> bool:
        """A call is over or given up; returns whether it had begun and was not over."""
        with self._lock:
            if self._waiting.pop(thread, None):
                return False
            begun = self._running.pop(thread, None) is not None or thread in self._slow
            self._slow.discard(thread)
            self._admit()
            return begun

    def move_up(self) -> bool:
        """Let calls begin that have waited for slow ones; returns whether others still wait."""
        if self._waiting:
            with self._lock:
                self._admit()
        return bool(self._waiting)

    def _admit(self) -> None:
        if not self._waiting:
            return
        now = time.monotonic()
        late = now - min(max(PATIENCE_S, 4 * self._lag), 5 * PATIENCE_S)
        while (first := next(iter(self._running), None)) and self._running[first] < late:
            del self._running[first]
            self._slow.add(first)
        while self._waiting and len(self._running) < self._limit:
            thread = next(iter(self._waiting))
            self._running[thread] = now
            thread.submit(self._waiting.pop(thread))


class EnvThread(Worker):
    """One thread and the environments that were made in it.

    Args:
        make: makes an environment from its id and arguments.
        line: where its calls wait.
        name: of the thread.

    Attributes:
        hangs: whether a call was given up that had begun.
    """

    def __init__(self, make: MakeEnv, line: Line, name: str) -> None:
        """Start the thread."""
        super().__init__(name)
        self.hangs = False
        self._make, self._line = make, line
        self._envs: dict[str, gymnasium.Env[str, str]] = {}

    def env(self, spec: EpisodeSpec) -> gymnasium.Env[str, str]:
        """Return the environment of an episode, which is made if there is none. Called in the thread."""
        key = key_of(spec)
        env = self._envs.pop(key, None)
        if env is None or isinstance(env, RemoteEnv) and not env.process.alive:
            env = self._make(spec.env_id, spec.env_kwargs)
        self._envs[key] = env
        if len(self._envs) > _KEPT:
            close_env(self._envs.pop(next(iter(self._envs))))
        return env

    def call(self, function: Callable[[], Any], answer: Answer) -> None:
        """Call a function in the thread when its turn has come.

        Args:
            function: what to call.
            answer: takes what it returned and what it raised, in the thread, and must not raise.
        """

        def job() -> None:
            result: Any = None
            error: Failure | ConfigError | None = None
            self._line.begin(self)
            try:
                result = function()
            except ConfigError as raised:
                error = raised
            except BaseException as raised:  # whatever an environment raises ends one episode; SystemExit, too
                error = Failure.of(raised)
            # Before the answer, since the next call may follow at once, and a thread has one call at a time.
            self._line.leave(self)
            answer(result, error)

        self._line.enter(self, job)

    def give_up(self) -> None:
        """Wait no longer for the call: a thread cannot be stopped. One that has not begun never does."""
        self.hangs = self._line.leave(self)

    def retire(self) -> None:
        """Let the thread end after what it does, and close its environments before."""
        self.submit(self._close_envs)
        self.close()

    def _close_envs(self) -> None:
        while self._envs:
            close_env(self._envs.popitem()[1])


class EnvThreads:
    """One thread for each live episode.

    Args:
        make: makes an environment from its id and arguments.
        limit: threads that are kept, besides those of more live episodes.
        running: most calls that run at the same time.
    """

    def __init__(self, make: MakeEnv, limit: int, running: int) -> None:
        """Start nothing yet."""
        self.line = Line(running)
        self._make, self._limit, self._started = make, limit, 0
        self._threads: set[EnvThread] = set()
        self._ending: list[EnvThread] = []
        self._free: defaultdict[str, list[EnvThread]] = defaultdict(list)  # by the environment that they had last

    def take(self, spec: EpisodeSpec) -> EnvThread:
        """Find a free thread, best one that has such an environment, or start one."""
        if same := self._free[key_of(spec)]:
            return same.pop()
        if len(self._threads) >= self._limit and (other := next(filter(None, self._free.values()), None)):
            return other.pop()
        self._started += 1
        thread = EnvThread(self._make, self.line, f"agent-gym-env-{self._started}")
        self._threads.add(thread)
        return thread

    def give(self, spec: EpisodeSpec, thread: EnvThread) -> None:
        """Take back a thread whose episode ended in order."""
        self._free[key_of(spec)].append(thread)

    def retire(self, thread: EnvThread) -> None:
        """End a thread whose episode did not end in order: its environment must not meet another episode."""
        self._threads.discard(thread)
        thread.retire()
        self._ending = [one for one in self._ending if not one.join(0)]
        if not thread.hangs:
            self._ending.append(thread)

    def close(self) -> None:
        """Close all environments, each in its thread, and wait a little for those that take their time."""
        self._free.clear()
        for thread in list(self._threads):
            self.retire(thread)
        deadline = time.monotonic() + _GRACE_S
        for thread in self._ending:
            thread.join(max(0.0, deadline - time.monotonic()))


def key_of(spec: EpisodeSpec) -> str:
    """What two episodes have in common that can use one environment."""
    return spec.env_id + json.dumps(spec.env_kwargs, sort_keys=True, default=repr)
