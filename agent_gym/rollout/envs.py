"""Environments for rollouts: made once, reused by later episodes, with a tokenizer attached."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from typing import Any

import gymnasium

from agent_gym.chat import ChatRenderer
from agent_gym.env import TextEnv
from agent_gym.errors import ConfigError
from agent_gym.registry import check_env_id
from agent_gym.rollout.failures import Failure


def make_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, tokenizer: Any = None
) -> gymnasium.Env[str, str]:
    """Make an environment and let it report token ids.

    Args:
        env_id: a Gymnasium id.
        env_kwargs: arguments of the environment.
        tokenizer: a tokenizer or `ChatRenderer`; None for characters only.

    Raises:
        ConfigError: for an unknown id, arguments the environment does not take, or an environment that is no `TextEnv`.
    """
    check_env_id(env_id)
    try:
        env = gymnasium.make(env_id, **dict(env_kwargs or {}))
    except TypeError as error:
        raise ConfigError(f"cannot make {env_id} with arguments {dict(env_kwargs or {})}: {error}") from error
    if not isinstance(env.unwrapped, TextEnv):
        raise ConfigError(f"{env_id} is a {type(env.unwrapped).__name__}; rollouts need an agent_gym.TextEnv")
    if tokenizer is not None:
        env.unwrapped.renderer = ChatRenderer.of(tokenizer)
    return env


def close_env(env: gymnasium.Env[str, str]) -> None:
    """Close an environment. What it raises is a line on stderr: its episodes are over, and no result may be lost."""
    try:
        env.close()
    except BaseException as error:  # SystemExit, too
        print(f"agent-gym: closing an environment failed: {Failure.of(error).line}", file=sys.stderr, flush=True)


class EnvPool:
    """Idle environments by id and arguments. Thread-safe: workers take and give back.

    `env_processes.EnvProcesses` is the same with processes.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Start empty."""
        self._renderer = ChatRenderer.of(tokenizer)
        self._idle: dict[tuple[str, str], list[gymnasium.Env[str, str]]] = {}
        self._lock = threading.Lock()

    def take(self, env_id: str, env_kwargs: Mapping[str, Any]) -> gymnasium.Env[str, str]:
        """Return an idle environment, or make one."""
        with self._lock:
            idle = self._idle.get(_key(env_id, env_kwargs))
            while idle:
                env = idle.pop()
                if self._usable(env):
                    return env
        return self._make(env_id, env_kwargs)

    def give(self, env_id: str, env_kwargs: Mapping[str, Any], env: gymnasium.Env[str, str]) -> None:
        """Take back an environment whose episode ended in order. A broken one must not come back."""
        with self._lock:
            self._idle.setdefault(_key(env_id, env_kwargs), []).append(env)

    def close(self) -> None:
        """Close every idle environment."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for envs in idle.values():
            for env in envs:
                close_env(env)

    def _make(self, env_id: str, env_kwargs: Mapping[str, Any]) -> gymnasium.Env[str, str]:
        return make_env(env_id, env_kwargs, self._renderer)

    def _usable(self, env: gymnasium.Env[str, str]) -> bool:
        """Whether an idle environment still is what it was."""
        return True


def _key(env_id: str, env_kwargs: Mapping[str, Any]) -> tuple[str, str]:
    return env_id, json.dumps(env_kwargs, sort_keys=True, default=repr)
