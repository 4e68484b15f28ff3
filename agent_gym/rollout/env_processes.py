"""Environments in processes of their own, for those that compute in Python or are not thread-safe.

Threads share one interpreter: while one environment computes, the others and the engine's loop wait. Here a number of
processes, started by a fork server, run several environments each, and the threads of a rollout only wait for
their answers. Observations, infos and errors are those of the same environment in a thread.

A process that dies takes the episodes that were in it along: each fails as `EnvFailure`. The next environment that is
needed starts another process in its place.
"""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

import gymnasium

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.registry import check_env_id
from agent_gym.rollout.env_worker import RENDERER_FACTS, portable, serve
from agent_gym.rollout.failures import RaisedElsewhere

_GRACE_S = 2.0
"""Time that a process has to end by itself."""


class EnvProcesses:
    """Makes environments that live in other processes.

    Like everything that starts processes without a fork, it imports the main script again in each of them: a script
    needs `if __name__ == "__main__":`.

    Args:
        tokenizer: a tokenizer or `ChatRenderer`. It stays here, and renders what the environments ask for.
        count: number of processes.
        timeout: returns the seconds that a call of an environment may take, None for ever. What takes longer hangs, and
            its process is killed.

    Raises:
        ConfigError: for a number of processes below 1.
    """

    def __init__(self, tokenizer: Any, count: int, timeout: Callable[[], float | None]) -> None:
        """Start nothing yet: processes come with the first environments."""
        if count < 1:
            raise ConfigError(f"env_processes is {count}; it must be 0 (threads of this process) or more")
        self._renderer = ChatRenderer.of(tokenizer)
        self._timeout = timeout
        self._processes: list[_Process | None] = [None] * count
        self._starting = threading.Lock()

    def close(self) -> None:
        """Let the processes close their environments and end, and kill those that hang."""
        with self._starting:
            processes = [process for process in self._processes if process is not None]
            self._processes = [None] * len(self._processes)
        _end(processes)

    def make(self, env_id: str, env_kwargs: Mapping[str, Any]) -> RemoteEnv:
        """Make an environment in the process that has the fewest.

        Raises:
            ConfigError: if it cannot be made, or not in another process.
            EnvFailure: if the process died.
        """
        check_env_id(env_id)
        facts = {name: getattr(self._renderer, name) for name in RENDERER_FACTS}
        request = gymnasium.registry[env_id.rpartition(":")[2]], env_id, dict(env_kwargs), facts
        try:
            pickle.dumps(request)
        except Exception as error:
            raise ConfigError(
                f"{env_id} cannot run in a process of its own: {error}. Its class must be importable by name and its "
                "arguments picklable; env_processes=0 runs it in a thread"
            ) from error
        env = RemoteEnv(*self._connect(), self._renderer, self._timeout)
        env.ask("make", *request)
        return env

    def _connect(self) -> tuple[_Process, Connection]:
        """Connect to the process with the fewest environments; one that is missing or dead has none."""
        with self._starting:
            loads = [len(one.envs) if one and one.alive else 0 for one in self._processes]
            place = loads.index(min(loads))
            process = self._processes[place]
            if process is None or not process.alive:
                if process is not None:
                    _end([process])
                process = self._processes[place] = _Process()
            return process, process.connect()


class RemoteEnv(gymnasium.Env[str, str]):
    """An environment in another process. What it does not have itself it finds there."""

    def __init__(
        self,
        process: _Process,
        connection: Connection,
        renderer: ChatRenderer,
        timeout: Callable[[], float | None],
    ) -> None:
        self.process = process
        self._connection = connection
        self._renderer = renderer
        self._timeout = timeout
        process.envs.add(self)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode, as `TextEnv.reset`."""
        return self.ask("reset", seed, options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action, as `TextEnv.step`."""
        return self.ask("step", action)

    def close(self) -> None:
        """Let the process close the environment."""
        self._connection.close()

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the environment over there, or a function that calls it there."""
        is_call, value = self.ask("get", name)
        return (lambda *args, **kwargs: self.ask("call", name, args, kwargs)) if is_call else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.get_wrapper_attr(name)

    def ask(self, name: str, *args: Any) -> Any:
        """Call something over there, and render for it meanwhile.

        Raises:
            EnvFailure: if the process died or does not answer; and whatever the call raised.
        """
        try:
            self._connection.send((name, args))
            while True:
                if not self._connection.poll(self._timeout()):
                    self.process.kill()
                    raise EnvFailure(f"no answer to {name} in {self._timeout()} s; its process was killed")
                kind, value = self._connection.recv()
                if kind == "ok":
                    return value
                if kind == "error":
                    error, failure = value
                    raise error from RaisedElsewhere(failure)
                self._connection.send(self._render(*value))
        except (EOFError, ConnectionError) as error:
            raise self.process.failure() from error

    def _render(self, name: str, args: Any, kwargs: Any) -> tuple[str, Any]:
        try:
            return "ok", getattr(self._renderer, name)(*args, **kwargs)
        except Exception as error:  # raised over there, where the call was made
            return "error", portable(error)


class _Process:
    """One process and the way to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        # Without this the server would import nothing, and each process all of it again.
        context.set_forkserver_preload(["agent_gym.rollout.env_worker"])
        self._control, theirs = context.Pipe()
        # A daemon, because multiprocessing waits for all others at the end of the interpreter.
        self._process = context.Process(target=serve, args=(theirs,), name="agent-gym-env", daemon=True)
        self._process.start()
        theirs.close()
        # The fork server tells the exit code once: of two threads that ask at the same time one would get nonsense.
        self._asking = threading.Lock()
        self.envs: weakref.WeakSet[RemoteEnv] = weakref.WeakSet()

    @property
    def pid(self) -> int | None:
        """Its number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        with self._asking:
            return self._process.is_alive()

    def connect(self) -> Connection:
        """Open a way for one more environment.

        Raises:
            EnvFailure: if the process died this moment.
        """
        mine, theirs = socket.socketpair()
        try:
            with theirs:
                send_handle(self._control, theirs.fileno(), self.pid)
        except ConnectionError as error:
            mine.close()
            raise self.failure() from error
        return Connection(mine.detach())

    def failure(self) -> EnvFailure:
        """Say what became of it."""
        with self._asking:
            self._process.join(_GRACE_S)
            code = self._process.exitcode
        if code is None:
            fate = "broke the connection"
        else:
            fate = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return EnvFailure(f"the environment's process {self.pid} {fate}")

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    def release(self) -> None:
        """Let it end when it has answered."""
        self._control.close()

    def end(self, timeout: float) -> None:
        """Wait for its end, and kill it if that does not come."""
        with self._asking:
            self._process.join(timeout)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()


def _end(processes: Sequence[_Process]) -> None:
    """End processes, all within one time of grace."""
    for process in processes:
        process.release()
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        process.end(max(0.0, deadline - time.monotonic()))
