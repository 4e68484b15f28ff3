"""Environments of other packages, found where they are installed.

A package names a module in its `pyproject.toml`; importing that module registers its environments:

    [project.entry-points."agent_gym.envs"]
    my_task = "my_task.registration"

Gymnasium 1.x has no such loader: an id of another package is there only after `import`, or as `module:id`.
"""

from __future__ import annotations

import functools
import warnings
from importlib.metadata import entry_points

GROUP = "agent_gym.envs"


@functools.cache
def load_plugins() -> None:
    """Import the module of each plugin, once; one that cannot be imported is a warning and costs the others nothing."""
    for plugin in entry_points(group=GROUP):
        try:
            plugin.load()
        except Exception as error:
            warnings.warn(
                f"the environments of plugin {plugin.name!r} ({plugin.value}) are missing: "
                f"{type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
