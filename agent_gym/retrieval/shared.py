"""What every engine does the same way: it checks what it is asked, and it is one thing however often it is passed on.

`gym.make` deep-copies its arguments, vector environments fork or pickle them. An index of gigabytes must not be copied
for each environment, and a lock that a fork copied while somebody held it is never released.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from agent_gym.errors import ConfigError

# A policy can write a megabyte into one call. Nobody searches for that on purpose; what follows is not looked at, so
# that tokenizers, caches and requests stay small.
MAX_QUERY_CHARACTERS = 16_384


def checked(queries: Sequence[str], k: int) -> list[str]:
    """Check the arguments of `search` and cut queries to `MAX_QUERY_CHARACTERS`.

    Raises:
        ConfigError: for k below 1, one text instead of several, or a query that is no text.
    """
    if isinstance(queries, str):
        raise ConfigError(f"queries must be a sequence of texts and is the text {queries[:50]!r}; write [query]")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ConfigError(f"k is {k!r}; it must be a whole number of at least 1")
    for query in queries:
        if not isinstance(query, str):
            raise ConfigError(f"a query must be text, not {type(query).__name__}: {str(query)[:50]!r}")
    return [query[:MAX_QUERY_CHARACTERS] for query in queries]


class Shared:
    """A base for engines: a deep copy is the engine itself, and forks and pickles get fresh locks.

    A subclass lists in `live` the attributes that belong to this process alone (locks, connections), sets them in
    `renew`, and calls `Shared.__init__` last.
    """

    live: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.renew()
        _alive.add(self)

    def renew(self) -> None:
        """Make what belongs to this process alone; called once, and again in a process that got a copy."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self.live}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        Shared.__init__(self)


_alive: weakref.WeakSet[Shared] = weakref.WeakSet()


def _renew_all() -> None:
    for instance in list(_alive):
        instance.renew()


os.register_at_fork(after_in_child=_renew_all)
