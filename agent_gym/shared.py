"""Things that are one however often they are passed on: engines, sandboxes, connections.

`gym.make` deep-copies its arguments, vector environments fork or pickle them. An index of gigabytes must not be copied
for each environment, and a lock that a fork copied while somebody held it is never released.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, ClassVar, Self


class Shared:
    """A base: a deep copy is the thing itself, and forks and pickles get fresh locks.

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
