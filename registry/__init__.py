"""The room of environment ids. Strings only: importing it imports no environment."""

if __name__ != "agent_gym.registry":
    raise ImportError("this folder is not the package 'registry': import 'agent_gym.registry'")

import difflib
from importlib import import_module
from typing import Any

import gymnasium

from agent_gym.errors import ConfigError
from agent_gym.registry.plugins import load_plugins
from agent_gym.registry.specs import ENVS, EnvEntry

__all__ = ["ENVS", "EnvEntry", "check_env_id", "entries", "list_envs", "register", "register_all"]

_registered: dict[str, EnvEntry] = {}


def register(entry: EnvEntry) -> None:
    """Register an id with Gymnasium, with a vector environment for text, and list it in `agent-gym list`.

    `gymnasium.register` alone does for `gym.make`, rollouts and training; this is for environments that want to be
    found. Registering an id again replaces it.

    Raises:
        ConfigError: if the id has no namespace or no version.
    """
    namespace, slash, name = entry.id.partition("/")
    if not (namespace and slash and "-v" in name):
        raise ConfigError(f"environment id {entry.id!r} should read Namespace/Name-v0")
    # Gymnasium warns when an id is registered over another, which a notebook's cell does each time it runs.
    gymnasium.registry.pop(entry.id, None)
    gymnasium.register(
        entry.id,
        entry_point=entry.entry_point,
        vector_entry_point=f"agent_gym.vector:{entry.id}",
        kwargs=dict(entry.kwargs),
    )
    _registered[entry.id] = entry


def register_all() -> None:
    """Register the ids of agent_gym and of installed plugins; calling it again changes nothing."""
    for entry in ENVS:
        if entry.id not in _registered or entry.id not in gymnasium.registry:
            register(entry)
    load_plugins()


def entries() -> list[EnvEntry]:
    """Return what is registered: agent_gym's own, then those of plugins and of `register`."""
    return list(_registered.values())


def list_envs() -> list[str]:
    """Return the ids that are registered, in the order of `entries`."""
    return list(_registered)


def check_env_id(env_id: Any) -> str:
    """Return the id if Gymnasium can make it, after loading its module if it is written `module:id`.

    Raises:
        ConfigError: with the nearest known ids.
    """
    module, _, name = str(env_id).rpartition(":")
    if module:
        try:
            import_module(module)
        except ImportError as error:
            raise ConfigError(f"environment {env_id!r}: cannot import module {module!r}: {error}") from error
    if name in gymnasium.registry:
        return str(env_id)
    # Gymnasium's own environments do not speak text, so that none of them was meant; hardly one has a namespace.
    named = [key for key in gymnasium.registry if "/" in key]
    near = difflib.get_close_matches(name, named, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"known here: {', '.join(list_envs())}"
    raise ConfigError(f"unknown environment {env_id!r}; {hint}")
