"""Names for functions and tasks, so that the arguments of an environment stay JSON.

A function of a module is `module:name`. Anything else, such as a function of a notebook or a list of tasks, is kept in
this process as `object:NUMBER`; a process of environments (`env_processes`) does not have it.
"""

from __future__ import annotations

import itertools
from importlib import import_module
from operator import attrgetter
from typing import Any

from agent_gym.errors import ConfigError, described

_OBJECTS: dict[str, Any] = {}
_numbers = itertools.count(1)


def place_of(thing: Any) -> str:
    """Return the name by which `thing_at` finds a thing."""
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
    """Find what a name stands for.

    Raises:
        ConfigError: if there is no such thing.
    """
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
