"""A process that runs environments for another one: the loop inside of it.

All of its environments run in one thread, one call after the other, so that an engine that is not thread-safe is safe
here. It has no tokenizer and no torch: what an environment wants of its renderer is asked of the process that plays.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any

import gymnasium

from agent_gym.errors import EnvFailure, described
from agent_gym.rollout.envs import close_env, make_env
from agent_gym.rollout.failures import Failure

RENDERER_FACTS = ("observation_role", "prefill", "renders_tools")
"""What an environment reads of its renderer; the rest of what it uses are calls."""


class RemoteRenderer:
    """The renderer as an environment here sees it: three facts, and calls that the other process answers.

    Args:
        connection: to the thread that waits for this environment.
        facts: the values of `RENDERER_FACTS`.
    """

    def __init__(self, connection: Connection, facts: Mapping[str, Any]) -> None:
        self._connection = connection
        self.__dict__.update(facts)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def ask(*args: Any, **kwargs: Any) -> Any:
            self._connection.send(("render", (name, args, kwargs)))
            kind, value = self._connection.recv()
            if kind == "error":
                raise value
            return value

        return ask


class _Served:
    """One environment and the calls that it takes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._env: Any = None

    def make(
        self, spec: gymnasium.envs.registration.EnvSpec, env_id: str, env_kwargs: Any, facts: Mapping[str, Any]
    ) -> None:
        # Whoever registered the id over there need not have done so here.
        gymnasium.registry.setdefault(spec.id, spec)
        self._env = make_env(env_id, env_kwargs)
        self._env.unwrapped.renderer = RemoteRenderer(self._connection, facts)

    def reset(self, seed: int | None, options: Any) -> Any:
        return self._env.reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        return self._env.step(action)

    def get(self, name: str) -> tuple[bool, Any]:
        """Return whether the attribute is something to call, and if not its value."""
        value = self._env.get_wrapper_attr(name)
        return (True, None) if callable(value) else (False, value)

    def call(self, name: str, args: Any, kwargs: Any) -> Any:
        return self._env.get_wrapper_attr(name)(*args, **kwargs)

    def close(self) -> None:
        if self._env is not None:
            close_env(self._env)


def serve(control: Connection) -> None:
    """Serve environments, each over a connection that comes as a handle through `control`, until that is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to everybody; the process that plays decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    served: dict[Any, _Served] = {}
    while True:
        for ready in wait([control, *served]):
            if ready is control:
                try:
                    connection: Connection = Connection(recv_handle(control))
                except (EOFError, OSError):
                    for one in served.values():
                        one.close()
                    return
                served[connection] = _Served(connection)
            elif not _answer(ready, served[ready]):
                served.pop(ready).close()


def _answer(connection: Any, one: _Served) -> bool:
    """Answer one request; False if nobody will ask again."""
    try:
        name, args = connection.recv()
    except (EOFError, OSError):
        return False
    try:
        answer = ("ok", getattr(one, name)(*args))
    except BaseException as error:  # whatever an environment raises ends one episode; SystemExit, too
        answer = ("error", (portable(error), Failure.of(error)))
    try:
        connection.send(answer)
    except (BrokenPipeError, ConnectionResetError):
        return False
    except Exception as error:
        failure = EnvFailure(f"{name} gave what cannot be sent to another process: {described(error)}")
        connection.send(("error", (failure, Failure.of(failure))))
    return True


def portable(error: BaseException) -> BaseException:
    """The error, or one that says the same, if it would not survive the way."""
    with suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return EnvFailure(described(error))


def _end_with_parent() -> None:
    """Leave nothing behind: neither the end nor the death of the process that plays may leave this one running."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
