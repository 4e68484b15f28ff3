"""The room of environment ids. Strings only: importing it imports no environment."""

if __name__ != "agent_gym.registry":
    raise ImportError("this folder is not the package 'registry': import 'agent_gym.registry'")

import difflib
from typing import Any

import gymnasium

from agent_gym.errors import ConfigError
from agent_gym.registry.specs import ENVS, EnvEntry

__all__ = ["ENVS", "EnvEntry", "check_env_id", "list_envs", "register_all"]


def register_all() -> None:
    """Register every id with Gymnasium; calling it again changes nothing."""
    for entry in ENVS:
        if entry.id not in gymnasium.registry:
            gymnasium.register(entry.id, entry_point=entry.entry_point, kwargs=dict(entry.kwargs))


def list_envs() -> list[str]:
    """Return the ids that agent_gym registers."""
    return [entry.id for entry in ENVS]


def check_env_id(env_id: Any) -> str:
    """Return the id if Gymnasium can make it, after loading its module if it is written `module:id`.

    Raises:
        ConfigError: with the nearest known ids.
    """
    module, _, name = str(env_id).rpartition(":")
    if module:
        import importlib

        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"environment {env_id!r}: cannot import module {module!r}: {error}") from error
    if name in gymnasium.registry:
        return str(env_id)
    # Gymnasium's own environments do not speak text, so that none of them was meant; hardly one has a namespace.
    named = [key for key in gymnasium.registry if "/" in key]
    near = difflib.get_close_matches(name, named, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"known here: {', '.join(list_envs())}"
    raise ConfigError(f"unknown environment {env_id!r}; {hint}")
