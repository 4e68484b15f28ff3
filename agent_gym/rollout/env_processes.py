"""Environments in separate processes, for environments that compute in Python or are not thread-safe.

Threads share one interpreter: while one environment computes, the others and the engine's loop wait. Here processes,
started by a fork server, run several environments each, and the threads of a rollout only wait for their answers. A
process has no tokenizer and no torch: an environment's calls of its renderer are answered by the process that plays.

When a process dies, each episode in it fails as `EnvFailure`. The next environment that is
needed starts another process in its place.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import gymnasium

from agent_gym.call_format import CallFormat
from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError, EnvFailure, described
from agent_gym.registry import resolve_env_id
from agent_gym.rollout.env_threads import close_env, make_env
from agent_gym.rollout.failures import Failure, RaisedElsewhere

_GRACE_S = 2.0
"""Time that a process has to end by itself."""


class EnvProcesses:
    """Makes environments that live in other processes.

    The main script is imported again in each of them: it needs `if __name__ == "__main__":`.

    Args:
        tokenizer: a tokenizer or `ChatRenderer`. It stays here, and renders for the environments.
        count: number of processes; `ConfigError` below 1.
        timeout: returns the seconds that a call of an environment may take, or None; then its process is killed.
    """

    def __init__(self, tokenizer: Any, count: int, timeout: Callable[[], float | None]) -> None:
        if count < 1:
            raise ConfigError(f"env_processes is {count}; it must be 0 (threads of this process) or more")
        self._renderer, self._timeout = ChatRenderer.of(tokenizer), timeout
        self._processes: list[_Process | None] = [None] * count
        self._starting = threading.Lock()

    def make(self, env_id: str, env_kwargs: Mapping[str, Any]) -> RemoteEnv:
        """Make an environment in the process that has the fewest; `ConfigError` if it cannot be made there."""
        resolve_env_id(env_id)
        one = self._renderer
        facts = one.observation_role, one.prefill, one.renders_tools, one.call_format
        request = gymnasium.registry[env_id.rpartition(":")[2]], env_id, dict(env_kwargs), facts
        try:
            pickle.dumps(request)
        except Exception as error:
            raise ConfigError(
                f"{env_id} cannot run in its own process: {error}. Its class must be importable by name and its "
                "arguments picklable; env_processes=0 runs it in a thread"
            ) from error
        with self._starting:
            # One that is missing or dead has no environments.
            loads = [len(one.envs) if one and one.alive else 0 for one in self._processes]
            place = loads.index(min(loads))
            process = self._processes[place]
            if process is None or not process.alive:
                process = self._processes[place] = _Process(self._renderer, self._timeout)
            number = next(process.numbers)
            process.envs.add(number)
        process.ask(number, "make", *request)
        return RemoteEnv(process, number)

    def close(self) -> None:
        """Let the processes close their environments and end, and kill the ones that hang."""
        with self._starting:
            processes = [process for process in self._processes if process is not None]
            self._processes = [None] * len(self._processes)
        deadline = time.monotonic() + _GRACE_S
        for process in processes:
            process.release(deadline)
        for process in processes:
            process.end(deadline)


class RemoteEnv(gymnasium.Env[str, str]):
    """An environment in another process. Attributes that it lacks are looked up there."""

    def __init__(self, process: _Process, number: int) -> None:
        self.process, self._number = process, number

    @property
    def process_died(self) -> bool:
        return not self.process.alive

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return self.process.ask(self._number, "reset", seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self.process.ask(self._number, "step", action)

    def close(self) -> None:
        self.process.envs.discard(self._number)
        with suppress(EnvFailure):  # it has ended with its process
            self.process.ask(self._number, "close")

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the environment over there, or a function that calls it there."""
        is_call, value = self.process.ask(self._number, "get_wrapper_attr", name)
        return partial(self.process.ask, self._number, name) if is_call else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.get_wrapper_attr(name)


class _Process:
    """One process, and its connection, which carries one call at a time."""

    def __init__(self, renderer: ChatRenderer, timeout: Callable[[], float | None]) -> None:
        self._renderer, self._timeout = renderer, timeout
        self.envs: set[int] = set()  # the numbers of its environments
        self.numbers = itertools.count()
        context = multiprocessing.get_context("forkserver")
        # Without this the server would import nothing, and each process all of it again.
        context.set_forkserver_preload([__name__])
        self._connection, theirs = context.Pipe()
        # A daemon, because multiprocessing waits for all others at the end of the interpreter.
        self._process = context.Process(target=serve, args=(theirs,), name="agent-gym-env", daemon=True)
        # The fork server refuses Ctrl-C only when it has imported all of this, and would tell of it with a traceback.
        resource_tracker.ensure_running()  # it would let SIGINT through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._calling = threading.Lock()
        # The fork server gives the exit code once: of two threads that ask at the same time one would get nonsense.
        self._asking = threading.Lock()
        self._killed = False  # the fork server reports the death a moment later

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def alive(self) -> bool:
        with self._asking:
            return not self._killed and self._process.is_alive()

    def ask(self, number: int, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call something of an environment over there, and render for it meanwhile."""
        with self._calling:
            try:
                self._connection.send((number, name, args, kwargs))
                while True:
                    if not self._connection.poll(self._timeout()):
                        self._killed = True
                        self._process.kill()
                        raise EnvFailure(f"no answer to {name} in {self._timeout()} s; its process was killed")
                    kind, value = self._connection.recv()
                    if kind != "render":
                        break
                    method, given, named = value
                    try:
                        self._connection.send(("ok", getattr(self._renderer, method)(*given, **named)))
                    except Exception as error:  # raised over there, where the call was made
                        self._connection.send(("error", portable(error)))
            except (EOFError, OSError) as error:
                with self._asking:
                    self._process.join(_GRACE_S)
                    code = self._process.exitcode
                fate = f"ended with exit code {code}" if code is not None else "broke the connection"
                fate = f"was killed by signal {-code}" if code is not None and code < 0 else fate
                raise EnvFailure(f"the environment's process {self.pid} {fate}") from error
        if kind == "error":
            raised, failure = value
            raise raised from RaisedElsewhere(failure)
        return value

    def release(self, deadline: float) -> None:
        """Let it end when it has answered, if that is before the deadline."""
        if self._calling.acquire(timeout=max(0.0, deadline - time.monotonic())):
            self._connection.close()
            self._calling.release()

    def end(self, deadline: float) -> None:
        with self._asking:
            self._process.join(max(0.0, deadline - time.monotonic()))
            if self._process.is_alive():
                self._process.kill()
                self._process.join()


# The rest runs in the other process.


class RemoteRenderer:
    """The renderer as an environment here sees it: four facts, and four calls that the process that plays answers."""

    def __init__(self, connection: Connection, facts: tuple[str, str, bool, CallFormat]) -> None:
        self._connection = connection
        self.observation_role, self.prefill, self.renders_tools, self.call_format = facts

    def __getattr__(self, name: str) -> Any:
        if name not in ("prompt", "reply", "inline_reply", "encode_action"):
            raise AttributeError(name)
        return partial(self._ask, name)

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self._connection.send(("render", (name, args, kwargs)))
        kind, value = self._connection.recv()
        if kind == "error":
            raise value
        return value


def serve(connection: Connection) -> None:
    """Answer calls of environments until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the one that plays decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    envs: dict[int, Any] = {}
    with suppress(EOFError, OSError):
        while True:
            number, name, args, kwargs = connection.recv()
            try:
                answer = "ok", _answer(connection, envs, number, name, args, kwargs)
            except BaseException as error:  # whatever an environment raises ends one episode; SystemExit, too
                answer = "error", (portable(error), Failure.of(error))
            try:
                connection.send(answer)
            except (BrokenPipeError, ConnectionResetError):
                break
            except Exception as error:
                failure = EnvFailure(f"{name} gave what cannot be sent to another process: {described(error)}")
                connection.send(("error", (failure, Failure.of(failure))))
    for env in envs.values():
        close_env(env)


def _answer(connection: Connection, envs: dict[int, Any], number: int, name: str, args: Any, kwargs: Any) -> Any:
    if name == "make":
        spec, env_id, env_kwargs, facts = args
        # The id may have been registered in the other process only.
        gymnasium.registry.setdefault(spec.id, spec)
        env = envs[number] = make_env(env_id, env_kwargs)
        env.unwrapped.renderer = RemoteRenderer(connection, facts)  # type: ignore[attr-defined]
        return None
    if name == "close":
        return close_env(envs.pop(number)) if number in envs else None
    if name == "get_wrapper_attr":  # whether the attribute is something to call, and if not its value
        value = envs[number].get_wrapper_attr(*args)
        return (True, None) if callable(value) else (False, value)
    return envs[number].get_wrapper_attr(name)(*args, **kwargs)


def portable(error: BaseException) -> BaseException:
    """Return the error, or one with the same text if it cannot be pickled."""
    with suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return EnvFailure(described(error))


def _end_with_parent() -> None:
    """End when the process that plays ends or dies, so that no process is left over."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
