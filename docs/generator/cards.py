"""The cards of the environments: the docstring of each class, with its ids, arguments, tools, and an episode played.

One page per class, since several ids share one and differ in arguments only.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import gymnasium

import agent_gym  # noqa: F401 (registers the ids)
from agent_gym.env import TextEnv
from agent_gym.registry import ENVS, EnvEntry
from agent_gym.tool_env import ToolEnv

LONGEST = 1500
"""Characters of one text of an episode that are shown."""


@functools.cache
def by_page() -> dict[str, list[EnvEntry]]:
    """Return name of a page to the ids it shows, in the order of the registry."""
    found: dict[str, list[EnvEntry]] = {}
    for entry in ENVS:
        found.setdefault(entry.entry_point.rpartition(":")[2].removesuffix("Env").lower(), []).append(entry)
    return found


def pages() -> dict[str, str]:
    """Return page of the site to markdown: the list of all ids, and the cards."""
    rows = [
        f"| [`{entry.id}`]({page}.md) | {entry.summary} | {', '.join(f'`{tool}`' for tool in entry.tools) or 'none'} |"
        for page, entries in by_page().items()
        for entry in entries
    ]
    listed = "\n".join(["# Environments", "", "| id | task | tools |", "|---|---|---|", *rows]) + "\n"
    return {"cards/index.md": listed} | {f"cards/{page}.md": _card(entries) for page, entries in by_page().items()}


def _card(entries: list[EnvEntry]) -> str:
    module, _, name = entries[0].entry_point.partition(":")
    env_class = getattr(import_module(module), name)
    first = next((entry for entry in entries if entry.needs is None), None)
    env = gymnasium.make(first.id).unwrapped if first else None
    parts = [f"# {name.removesuffix('Env')}", _escape(inspect.getdoc(env_class) or ""), *_ids(entries)]
    parts += ["## Defaults", "```python\n" + ",\n".join(_defaults(env_class)) + "\n```"]
    weights = {term: float(weight) for term, weight in env_class.reward_weights.items()}
    parts += ["`reward_weights` by default:", f"```python\n{weights}\n```"]
    if isinstance(env, ToolEnv) and env.tool_schemas:
        parts += ["## Tools", "As the chat template gets them:"]
        parts += [f"```json\n{json.dumps(schema['function'], indent=2)}\n```" for schema in env.tool_schemas]
    if isinstance(env, TextEnv) and first:
        parts += ["## An episode", f"`{first.id}`, seed 0, played by the expert of the environment:", *_episode(env)]
    return "\n\n".join(parts) + "\n"


def _ids(entries: list[EnvEntry]) -> Iterator[str]:
    yield "## Registered ids"
    rows = []
    for entry in entries:
        arguments = ", ".join(f"`{key}={value!r}`" for key, value in entry.kwargs.items()) or "defaults"
        needs = f"; needs {entry.needs}" if entry.needs else ""
        extra = f"`agent-gym[{entry.extra}]`" if entry.extra else "nothing more"
        rows.append(f"| `{entry.id}` | {entry.summary} | {arguments}{needs} | {extra} |")
    yield "\n".join(["| id | task | arguments | install |", "|---|---|---|---|", *rows])
    yield f"Data: {entries[0].data}"


def _defaults(env_class: type[Any]) -> Iterator[str]:
    """Yield `name=default` of what the class takes, its own arguments before those of its bases."""
    seen: set[str] = set()
    for base in env_class.__mro__:
        # What a base requires or `ToolEnv` adds is given by the subclasses and not by the user.
        if "__init__" not in vars(base) or base is ToolEnv or not issubclass(base, TextEnv):
            continue
        for name, parameter in inspect.signature(base.__init__).parameters.items():
            if parameter.default is not parameter.empty and name not in seen:
                seen.add(name)
                yield f"{name}={parameter.default!r}"


def _episode(env: Any) -> Iterator[str]:
    env.reset(seed=0)
    ended = False
    while not ended:
        *_, terminated, truncated, _ = env.step(env.expert_action())
        ended = terminated or truncated
    for segment in env.transcript.segments:
        if segment.text:
            text = segment.text if len(segment.text) <= LONGEST else segment.text[:LONGEST] + " ..."
            author = {"agent": "policy", "env": "world"}.get(segment.source, segment.source)
            yield f'``````text title="{author}"\n{text}\n``````'
    env.close()


def _escape(docstring: str) -> str:
    """Keep tags that stand outside of code from becoming HTML."""
    parts = re.split(r"(`[^`]*`)", docstring)
    return "".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))
