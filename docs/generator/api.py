"""The API reference: the public names of each module, from their docstrings, by mkdocstrings."""

from __future__ import annotations

import importlib
import inspect

HEAD = """\
# Python API

The public names, by module, from their docstrings. Settings of the trainers are on the page [Settings](settings.md),
commands on the page [Command line](cli.md).

"""
CHAPTERS = {
    "Environments": ("agent_gym", "agent_gym.vector", "agent_gym.players", "agent_gym.testing", "agent_gym.rewards"),
    "Training": ("agent_gym.trainers", "agent_gym.trainers.hook", "agent_gym.speedrun.quickstart"),
    "Rollouts and policies": ("agent_gym.rollout", "agent_gym.policies", "agent_gym.gateway"),
    "Evaluation": ("agent_gym.evaluate", "agent_gym.certify", "agent_gym.viewer", "agent_gym.judges"),
    "Tools of environments": ("agent_gym.search", "agent_gym.sandbox"),
    "Adapters": tuple(f"agent_gym.contrib.{name}" for name in ("gymnasium", "mcp", "reasoning_gym", "textarena")),
}
"""Chapters of the page to modules, of which it has the public names; no adapters that import another framework."""

CONFIGS = {"AgentGRPOConfig", "AgentPPOConfig"}  # settings.py makes their page


def public_names(module: str) -> list[str]:
    """Return what a module exports: `__all__`, or the classes and functions that it defines without an underscore."""
    found = importlib.import_module(module)
    own = [name for name, value in vars(found).items() if getattr(value, "__module__", "") == module]
    names = getattr(found, "__all__", [name for name in own if not name.startswith("_")])
    return [name for name in names if name not in CONFIGS and _described(getattr(found, name))]


def _described(value: object) -> bool:
    """Whether a value is a class or function, which have docstrings; aliases of types and constants have none."""
    return inspect.isclass(value) or inspect.isfunction(value)


def _home(module: str, name: str) -> str:
    """Return the path of a name where it is defined: a name that is loaded at its first use is in no module before."""
    value = getattr(importlib.import_module(module), name)
    return f"{value.__module__}.{name}"


def page() -> str:
    """Write the page, with a directive of mkdocstrings for each name."""
    lines = [HEAD]
    for chapter, modules in CHAPTERS.items():
        lines.append(f"## {chapter}\n")
        for module in modules:
            if names := public_names(module):
                lines.append(f"### `{module}`\n")
                lines += [f"::: {_home(module, name)}\n" for name in names]
    return "\n".join(lines)
