"""Turns a user's name for an environment into an id and arguments that make it.

Each episode, and each process, makes its own environment. So an id is enough, in full or in short, and so is whatever
makes one: a class, a function, or the spec of an environment that `gymnasium.make` made. The last three get an id in
the namespace "Local", in this process and in the processes that it starts.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from agent_gym.errors import ConfigError, shown

LOCAL = "Local"
EnvLike = str | Callable[..., Any] | gymnasium.Env[Any, Any] | EnvSpec
"""An id, a class or function that makes an environment, an environment of `gymnasium.make`, or its spec."""


def resolve_env_id(env_id: Any) -> str:
    """Return the id if Gymnasium can make it, after loading its module if it is written `module:id`.

    `module:Class` registers a class under its name, so that every process that is given this text can make it. If the
    module has registered the class itself, its id is meant.

    `gsm8k`, `GSM8K-v0` or `agentr1/gsm8k` means `AgentR1/GSM8K-v0`, if no other id is meant by it as well. An
    environment made of a class or a function is found only where no other matches.

    Raises:
        ConfigError: with the nearest known ids.
    """
    module, _, name = str(env_id).rpartition(":")
    if module:
        if module.startswith(".") or module.endswith(".py"):
            cure = f"give MODULE:CLASS, here {Path(module).stem}:{name}, with the file's folder on PYTHONPATH"
            raise ConfigError(f"environment {env_id!r}: {module!r} is a file; {cure}")
        try:
            import_module(module)
        except ImportError as error:
            raise ConfigError(f"environment {env_id!r}: cannot import module {module!r}: {error}") from error
    made = getattr(sys.modules.get(module), name, None)
    made = made if isinstance(made, type) and issubclass(made, gymnasium.Env) else None
    if name in gymnasium.registry:
        if made and _maker(name) is not made:
            taken = f"{gymnasium.registry[name].entry_point} has this name in this process"
            raise ConfigError(f"environment {env_id!r}: {taken}; give one of both another")
        return str(env_id)
    # Gymnasium's own environments do not speak text, so that none of them was meant.
    where = {key: getattr(spec.entry_point, "__module__", spec.entry_point) for key, spec in gymnasium.registry.items()}
    named = [key for key, module_of in where.items() if not str(module_of).startswith("gymnasium.")]
    meant = [key for key in named if _matches(name, key)]
    meant = [key for key in meant if not key.startswith(f"{LOCAL}/")] or meant
    if made:  # an id that sounds alike, such as one of ours, is meant only if it was registered with this class
        meant = [key for key in meant if _maker(key) is made]
        if not meant:
            gymnasium.register(name, entry_point=f"{module}:{name}")
            return str(env_id)
    if len(meant) == 1:
        return f"{module}:{meant[0]}" if module else meant[0]
    near = meant or difflib.get_close_matches(name, named, n=3, cutoff=0.5) or _near(name, named)
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"known here: {', '.join(named)}; one of yours is MODULE:ID or MODULE:CLASS"
    )
    if name.startswith(f"{LOCAL}/"):
        hint = "a Python program made it of a class; to use it elsewhere, gymnasium.register it in a module of yours"
    raise ConfigError(f"unknown environment {env_id!r}; {hint}")


def _maker(env_id: str) -> Any:
    """Return the class or function of an id."""
    found = gymnasium.registry[env_id].entry_point
    return load_env_creator(found) if isinstance(found, str) else found


def _parts(env_id: str) -> tuple[str, str, str]:
    """Return namespace, name and version in small letters, "" for missing ones."""
    namespace, _, rest = env_id.lower().rpartition("/")
    name, version = re.fullmatch(r"(.*?)(-v\d+)?", rest, re.DOTALL).groups()  # type: ignore[union-attr]  # always
    return namespace, re.sub("[-_]", "", name), version or ""


def _matches(short: str, env_id: str) -> bool:
    (namespace, name, version), known = _parts(short), _parts(env_id)
    return name == known[1] and namespace in ("", known[0]) and version in ("", known[2])


def _near(short: str, named: list[str]) -> list[str]:
    """Return the ids whose name, without namespace and version, is like that of a short form."""
    names = {_parts(env_id)[1]: env_id for env_id in named}
    return [names[near] for near in difflib.get_close_matches(_parts(short)[1], names, n=3)]


def resolve_env(env: EnvLike, env_kwargs: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    """Return the id and the arguments by which `gymnasium.make` makes an environment again.

    A class or function is registered as `Local/NAME-v0`; a class replaces one of the same module and name, since the
    cells of notebooks run again. So is the spec of an environment with wrappers, or with arguments that are not JSON.

    Args:
        env: an environment, see `EnvLike`.
        env_kwargs: further arguments; they win over the arguments of a spec.

    Raises:
        ConfigError: for an unknown id, an environment that was not made by `gymnasium.make`, or anything else.
    """
    kwargs = dict(env_kwargs or {})
    if isinstance(env, str):
        return resolve_env_id(env), kwargs
    spec = env if isinstance(env, EnvSpec) else env.spec if isinstance(env, gymnasium.Env) else None
    if spec is not None:
        with suppress(TypeError):
            json.dumps(spec.kwargs)
            if spec.id in gymnasium.registry and not spec.additional_wrappers:
                return spec.id, {**spec.kwargs, **kwargs}
        env_id = _local_id(spec.name, lambda known: known == replace(spec, id=known.id))
        gymnasium.registry[env_id] = replace(spec, id=env_id)
        return env_id, kwargs
    if isinstance(env, gymnasium.Env):
        name = type(env).__name__
        raise ConfigError(
            f"env is an instance of {name}, and each episode makes its own: give env={name} and env_kwargs"
        )
    if isinstance(env, type) and not issubclass(env, gymnasium.Env) and hasattr(env, "reset"):
        hint = f"if TRL makes it, wrap it: env=lambda: agent_gym.contrib.trl.FromTRL({env.__name__}, rows)"
        raise ConfigError(f"env is {env.__name__}, which is not a gymnasium.Env; {hint}")
    if not callable(env):
        raise ConfigError(f"env is {shown(env)}; it must be an id, a class, a function or what gymnasium.make made")
    return _registered(env), kwargs


def _registered(make: Callable[..., Any]) -> str:
    inner = make.func if isinstance(make, partial) else make
    name = re.sub(r"\W", "", getattr(inner, "__name__", type(inner).__name__))
    env_id = _local_id(name, lambda known: _same(known.entry_point, make))
    gymnasium.registry.pop(env_id, None)  # it would warn of an id that is registered again
    gymnasium.register(env_id, entry_point=make, vector_entry_point=f"agent_gym.vector:{env_id}")
    return env_id


def _local_id(name: str, same: Callable[[EnvSpec], bool]) -> str:
    """Return the first id of this name that is free, or that means the same."""
    ids = (f"{LOCAL}/{name}{number if number > 1 else ''}-v0" for number in itertools.count(1))
    return next(one for one in ids if one not in gymnasium.registry or same(gymnasium.registry[one]))


def _same(known: Any, make: Any) -> bool:
    """Whether this is the same maker, or a later definition of the same name."""
    names = [(getattr(one, "__module__", ""), getattr(one, "__qualname__", "<>")) for one in (known, make)]
    # Two functions called <lambda>, or made in one function, are two environments.
    return known is make or (names[0] == names[1] and "<" not in names[1][1] and isinstance(make, type))
