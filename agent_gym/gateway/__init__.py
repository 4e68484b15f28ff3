"""Training and evaluating agents that one did not write: functions and programs that speak to a model server.

    env_id, env_kwargs = agent_env(my_agent, tasks=[{"question": "2+2", "answer": "4"}], reward=my_reward)
    make_specs(env_id, env_kwargs)        # as with any other environment

docs/gateway.md explains it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any

import gymnasium

from agent_gym.errors import ConfigError, described, quoted

__all__ = ["ENV_ID", "agent_env"]

ENV_ID = f"{__name__}:AgentR1/Agent-v0"
"""The id of `AgentEnv`; it names this module, which registers it."""

if "AgentR1/Agent-v0" not in gymnasium.registry:
    gymnasium.register(
        "AgentR1/Agent-v0", f"{__name__}.env:AgentEnv", vector_entry_point="agent_gym.vector:AgentR1/Agent-v0"
    )

Rows = Sequence[Mapping[str, Any]]
_OBJECTS: dict[str, Any] = {}  # objects under the name `object:NUMBER`, in this process only
_numbers = itertools.count(1)


def agent_env(
    agent: Callable[..., Any] | str | Sequence[str],
    tasks: Rows | Mapping[str, Rows] | str | None = None,
    reward: Callable[..., float] | str | None = None,
    **settings: Any,
) -> tuple[str, dict[str, Any]]:
    """Return the id and the arguments of the environment in which an agent plays.

    Args:
        agent: `async def agent(client, task)` or a plain function, with a client of the package openai; such a function
            as `module:function`; or a program, as a list of words.
        tasks: rows, rows by split (rows alone are "train"), or a file or folder of them.
        reward: `reward(task, result, transcript)`, or such a function as `module:function`.
        **settings: further arguments of `AgentEnv`, such as `world` instead of tasks and reward.

    Raises:
        ConfigError: for an agent that is none of these.
    """
    given: dict[str, Any] = {"tasks": tasks, "reward": reward}
    if callable(agent) or isinstance(agent, str):
        given["agent"] = agent
    elif isinstance(agent, list | tuple) and agent and all(isinstance(word, str) for word in agent):
        settings["agent"] = [*agent]  # JSON as it is
    else:
        raise ConfigError(f"agent is {quoted(agent)}; it must be a function, module:function, or a list of words")
    named = {name: one if isinstance(one, str) else place_of(one) for name, one in given.items() if one is not None}
    return ENV_ID, {**named, **settings}


def place_of(thing: Any) -> str:
    """Return the name by which `thing_at` finds a thing, so that the arguments of an environment stay JSON.

    A function of a module is `module:name`. Anything else, such as a function of a notebook or a list of tasks, is kept
    in this process as `object:NUMBER`; a process of environments (`env_processes`) does not have it.
    """
    place = f"{getattr(thing, '__module__', None)}:{getattr(thing, '__qualname__', '<')}"
    # The main module has another name in every other process.
    if "<" not in place and not place.startswith("__main__:"):
        try:
            if thing_at(place) is thing:
                return place
        except ConfigError:
            pass
    known = next((name for name, one in _OBJECTS.items() if one is thing), None)
    place = known or f"object:{next(_numbers)}"
    _OBJECTS[place] = thing
    return place


def thing_at(place: str) -> Any:
    """Find the object of a name; `ConfigError` for an unknown name."""
    if place in _OBJECTS:
        return _OBJECTS[place]
    module, colon, name = place.partition(":")
    if not colon or not module or not name or module == "object":
        cure = "write module:function; a function or list of a notebook works with env_processes=0 only"
        raise ConfigError(f"there is nothing at {place!r}: {cure}")
    try:
        return attrgetter(name)(import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot find {place!r}: {described(error)}") from error
