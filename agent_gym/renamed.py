"""Old names of modules, classes and functions: each works for one release and warns with `DeprecationWarning`.

A module that was moved is found by `RenamedModules`, which `agent_gym/__init__.py` installs. A module whose public
names have changed sets `__getattr__ = renamed(__name__, {...})`. A method that environments override is in a table of
its class, which `renamed_methods` reads.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {
    "agent_gym.rollout.play": "agent_gym.rollout.episode_run",
}
"""Modules that were moved, by their old names."""


def warn_of(old: str, new: str, depth: int = 3) -> None:
    """Warn that a name has changed, in the line of the code that is `depth` calls away."""
    warnings.warn(f"{old} is now {new}; the old name goes with the next release", DeprecationWarning, stacklevel=depth)


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which finds old names; a new one is "NAME" of this module, or "MODULE:NAME"."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = names[name].rpartition(":")
        warn_of(f"{module}.{name}", f"{place or module}.{new}")
        return getattr(importlib.import_module(place or module), new)

    return find


def renamed_methods(cls: type, names: Mapping[str, str]) -> None:
    """Let methods that a class overrides under old names override the new names."""
    for old, new in names.items():
        if old in vars(cls):
            warn_of(f"{cls.__name__}.{old}", new, depth=4)
            if new not in vars(cls):
                setattr(cls, new, vars(cls)[old])


class RenamedModules(MetaPathFinder, Loader):
    """Finds a moved module under its old name: it is the module of the new name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        warn_of(module.__name__, MODULES[module.__name__], depth=6)
        # The import statement returns the entry of this table.
        sys.modules[module.__name__] = importlib.import_module(MODULES[module.__name__])
