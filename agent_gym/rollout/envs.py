"""Environments for rollouts, with a tokenizer attached."""

from __future__ import annotations

import sys
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
