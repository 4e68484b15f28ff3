"""The room of environment ids, as environments.toml has them. Strings only: importing it imports no environment."""

from __future__ import annotations

if __name__ != "agent_gym.registry":
    raise ImportError("this folder is not the package 'registry': import 'agent_gym.registry'")

import functools
import re
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import gymnasium

from agent_gym.errors import ConfigError
from agent_gym.registry.names import EnvLike, resolve_env, resolve_env_id
from agent_gym.renamed import renamed

if TYPE_CHECKING:
    from agent_gym.env import TextEnv

__all__ = [
    "ENVS",
    "EnvEntry",
    "EnvLike",
    "entries",
    "list_envs",
    "make",
    "register",
    "register_all",
    "resolve_env",
    "resolve_env_id",
]


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """One registered id."""

    id: str
    entry_point: str  # "module:Class"
    summary: str  # one line for `agent-gym list` and the README
    tools: tuple[str, ...] = ()  # names of the tools the policy may call
    data: str = ""  # where its tasks come from, by default and otherwise
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # the arguments that tell this id from its siblings
    extra: str | None = None  # the pip extra it needs
    needs: str | None = None  # arguments without which it cannot be made, in words


def _read() -> Iterator[EnvEntry]:
    rows = tomllib.loads(files(__package__).joinpath("environments.toml").read_text(encoding="utf-8"))
    for env_id, row in rows.items():
        sibling = rows.get(row.pop("variant_of", None), {})
        shared = {key: sibling[key] for key in ("entry_point", "data", "extra") if key in sibling}
        given = row.pop("kwargs", {}).items()
        kwargs = {key: tuple(value) if isinstance(value, list) else value for key, value in given}
        yield EnvEntry(id=env_id, **{**shared, **row, "tools": tuple(row.get("tools", ()))}, kwargs=kwargs)


ENVS: tuple[EnvEntry, ...] = tuple(_read())
_registered: dict[str, EnvEntry] = {}


def make(env_id: EnvLike, **kwargs: Any) -> TextEnv:
    """Make an environment by its id, `gsm8k` for short, or as `module:id`: `gymnasium.make` without its wrappers.

    A class, a function or a spec may take the place of the id (`resolve_env`).

    Raises:
        ConfigError: for an unknown id, an argument that the environment does not take, or an environment that is not a
            `TextEnv`.
    """
    env_id, kwargs = resolve_env(env_id, kwargs)
    try:
        env: Any = gymnasium.make(env_id, **kwargs).unwrapped
    except TypeError as error:
        if found := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
            raise ConfigError(f"{env_id} takes no argument {found[1]!r}; leave it out") from error
        if found := re.search(r"__init__\(\) missing \d+ required \S+ arguments?: (.+?)(?: was raised|$)", str(error)):
            names = found[1].replace("'", "")
            raise ConfigError(f"{env_id} cannot be made without {names}; give it: make(..., {names}=...)") from error
        raise
    if hasattr(env, "reward_weights") and not hasattr(env, "transcript"):
        name = type(env).__name__
        raise ConfigError(f"{name}.__init__ does not call the one of its base: super().__init__(tasks, **kwargs)")
    if not hasattr(env, "transcript"):
        raise ConfigError(f"{env_id} is a {type(env).__name__} and no agent_gym.TextEnv; make it by gymnasium.make")
    return env


def register(entry: EnvEntry) -> None:
    """Register an id with Gymnasium, with a vector environment for text, and list it in `agent-gym list`.

    Registering an id again replaces it.

    Raises:
        ConfigError: if the id has no namespace or no version.
    """
    if not re.fullmatch("[^/]+/.*-v.*", entry.id):
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


@functools.cache
def register_all() -> None:
    """Register the ids of agent_gym and of other packages, which name a module as entry point "agent_gym.envs".

    A module that cannot be imported is a warning and costs the others nothing. Calling it again changes nothing.
    """
    for entry in ENVS:
        register(entry)
    for plugin in entry_points(group="agent_gym.envs"):
        try:
            plugin.load()
        except Exception as error:
            missing = f"the environments of plugin {plugin.name!r} ({plugin.value}) are missing"
            warnings.warn(f"{missing}: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)


def entries() -> list[EnvEntry]:
    """Return the registered entries: agent_gym's own, then entries of plugins and of `register`."""
    return list(_registered.values())


def list_envs() -> list[str]:
    """Return the ids of `entries`."""
    return list(_registered)


__getattr__ = renamed(__name__, {"check_env_id": "resolve_env_id", "recipe": "resolve_env"})
