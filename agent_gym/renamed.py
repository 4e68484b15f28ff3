"""Old names of modules, classes and functions: each works for one release and warns with `DeprecationWarning`.

A module that was moved is found by `RenamedModules`, which `agent_gym/__init__.py` installs. A module whose public
names have changed sets `__getattr__ = renamed(__name__, {...})`. A method that environments override is in a table of
its class, which `renamed_methods` reads.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_SPEEDRUN = ("controls", "dashboard", "figure", "imitation", "presets", "quickstart", "tables", "tiny")
MODULES = {
    "agent_gym.cores": "agent_gym.threads",
    "agent_gym.installed": "agent_gym.dependencies",
    "agent_gym.policies.ranks": "agent_gym.distributed",
    "agent_gym.rollout.play": "agent_gym.rollout.episode_run",
    "agent_gym.trainers.agreement": "agent_gym.trainers.hooks.agreement",
    "agent_gym.trainers.demonstrations": "agent_gym.trainers.hooks.demonstrations",
    "agent_gym.trainers.echo_trap": "agent_gym.trainers.hooks.echo_trap",
    "agent_gym.trainers.grouping": "agent_gym.trainers.credit",
    "agent_gym.trainers.input_dependence": "agent_gym.trainers.hooks.input_dependence",
    "agent_gym.trainers.metrics": "agent_gym.trainers.hooks.metrics",
    "agent_gym.trainers.room": "agent_gym.trainers.hooks.room",
    "agent_gym.trainers.run_card": "agent_gym.trainers.hooks.run_card",
    "agent_gym.trainers.shortcuts": "agent_gym.trainers.model_probes",
    "agent_gym.trainers.teachers": "agent_gym.trainers.hooks.teacher",
    "agent_gym.examples": "agent_gym.speedrun",
    "agent_gym.examples.speedrun": "agent_gym.speedrun.run",
    **{f"agent_gym.examples.{name}": f"agent_gym.speedrun.{name}" for name in _SPEEDRUN},
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
    """Let a class's methods under old names be the ones under the new names, and the other way round.

    So an override under an old name is called, and so is a base class's method under its old name.
    """
    for old, new in names.items():
        if old in vars(cls) and new not in vars(cls):
            warn_of(f"{cls.__name__}.{old}", new, depth=4)
            setattr(cls, new, vars(cls)[old])
        elif new in vars(cls):
            setattr(cls, old, _old_method(old, new, vars(cls)[new]))


def _old_method(old: str, new: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        warn_of(f"{type(self).__name__}.{old}", new)
        return method(self, *args, **kwargs)

    return call


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
