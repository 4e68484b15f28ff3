"""Environments that data names: a stored trajectory, a row of a data set.

Data must not make agent_gym run code, read files or open connections. So data may name the ids that are registered,
and arguments that are plain options: numbers, truth values, and single words. A module (`module:ID`), an agent's
command, and an argument that names a file, a folder, a model, a server or a class come from the caller: code, the
command line, or a settings file that the user names. SECURITY.md has the rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium

from agent_gym.errors import ConfigError, shown
from agent_gym.registry.names import resolve_env_id

PLACES = frozenset(
    "agent cache checkpoint client code cmd command config corpus cwd data device dir directory encoder endpoint "
    "entry_point env file folder hook host index judge key model module path port program questions retriever sandbox "
    "script server source tasks token tokenizer url world world_kwargs wrappers "
    "adapter addr address argv basedir bin bind binary callback class cls datadir datafile exec executable factory "
    "filename filepath fn func function home homedir hostname import interpreter lib library loader mount net package "
    "pathname pipe plugin proxy pythonpath root shell socket template uri weights workdir".split()
)
"""Names of arguments that name a place, or a program; parts of names count (`api_key`, `baseUrl`, `files`)."""
_NUMBERED = frozenset("addr address fd descriptor host port socket".split())
"""A number under such a name is a place, too."""
_PROTECTIONS = frozenset("allow insecure network privileged shell trust unsafe unsafely verify waive waived".split())
"""Names of arguments that give a protection up, whatever their values are."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_DEFAULTS = frozenset({"embedded", "bm25", "local"})
"""Default values of such arguments, which are not places."""
_TEXTS = frozenset({"system_prompt"})
"""Arguments that may be any text: a policy reads it, and nothing else does."""
_OPTION = re.compile(r"[\w+][\w +-]*|-?\d+(\.\d+)*")
"""A word, words, or a version: it has no sign of a path, an address, an attribute, a flag or a command."""
_MAX_DEPTH = 8

_allowed: set[tuple[str, str]] = set()


def _key(env_id: str, env_kwargs: Mapping[str, Any]) -> tuple[str, str]:
    return env_id, json.dumps(env_kwargs, sort_keys=True, default=repr)


def allow(env_id: str, env_kwargs: Mapping[str, Any]) -> None:
    """Note that the code of this process has named this environment, so that rows made from it may name it, too."""
    _allowed.add(_key(env_id, env_kwargs))


def env_from_data(
    env_id: Any, env_kwargs: Any, where: str, *, given: Mapping[str, Any] | None = None, cure: str
) -> tuple[str, dict[str, Any]]:
    """Return the id and the arguments of an environment that data names.

    Args:
        env_id: the id in the data.
        env_kwargs: the arguments in the data.
        where: the place in the data, for messages.
        given: arguments of the caller, which replace the arguments of the data and are not checked.
        cure: a clause for messages that says how the caller allows names that data must not have.

    Raises:
        ConfigError: for an id that is not registered, or an argument that only the caller may give.
    """
    if not isinstance(env_id, str) or not isinstance(env_kwargs, Mapping):
        wrong = f"env_id {shown(env_id)} and env_kwargs {shown(env_kwargs)}"
        raise ConfigError(f"{where} has {wrong}; they must be a text and an object")
    given = dict(given or {})
    kwargs = {**env_kwargs, **given}
    if _key(env_id, kwargs) in _allowed:
        return env_id, kwargs
    if ":" in env_id:
        allowed = "data may name registered ids only, since a module is code"
        raise ConfigError(f"{where} names the environment {env_id!r}, and {allowed}: {cure}")
    env_id = resolve_env_id(env_id)
    unsafe = {name: reason for name in env_kwargs.keys() - given.keys() if (reason := _unsafe(name, env_kwargs[name]))}
    unsafe |= {"agent": "runs a program"} if _runs_agents(env_id) and "agent" not in given else {}
    for name, reason in sorted(unsafe.items()):
        value = env_kwargs.get(name, gymnasium.registry[env_id].kwargs.get(name))
        found = f"{where} gives {env_id} the argument {name}={shown(value)}, which {reason}"
        raise ConfigError(f"{found}: give it yourself, or {cure}")
    return env_id, kwargs


def _runs_agents(env_id: str) -> bool:
    return str(gymnasium.registry[env_id].entry_point).startswith("agent_gym.gateway.")


def _unsafe(name: Any, value: Any) -> str | None:
    """Return why only the caller may give this argument, None if data may."""
    if name in _TEXTS and isinstance(value, str):
        return None
    for path, leaf in _leaves(str(name), value, 0):
        if not path.isascii():  # letters that look like others
            return "has no plain name"
        if leaf is None:
            continue
        words = _words(path)
        if words & _PROTECTIONS and leaf is not False:
            return "may give a protection up"
        if isinstance(leaf, bool) or (isinstance(leaf, int | float) and not words & _NUMBERED):
            continue
        if words & PLACES and leaf not in _DEFAULTS:
            return "says where something is or what runs"
        if not isinstance(leaf, str):
            return "is no plain option"
        if not _OPTION.fullmatch(leaf):
            return "may be a path, an address or a command"
    return None


def _words(path: str) -> set[str]:
    """Return the words in the names that lead to a value, also of several (`urls`), in small letters."""
    found = {path.lower(), *re.split(r"[^a-z]+", _CAMEL.sub("_", path).lower())}
    return found | {word.removesuffix("s") for word in found}


def _leaves(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield each leaf with the names that lead to it; a value nested too deeply is one, too."""
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner, depth + 1)
    elif isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        for inner in value:
            yield from _leaves(name, inner, depth + 1)
    else:
        yield name, value
