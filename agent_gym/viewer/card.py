"""The card of an environment in markdown: its class's docstring, and facts read off by playing it.

`agent-gym info` prints it, and the site shows it (docs/generator/cards.py). The sections are the ones of Gymnasium's
own environments. Baselines are in registry/baselines.json, which `benchmarks/baselines.py` writes; published numbers
are in registry/published.json
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from agent_gym.dependencies import DISTRIBUTION
from agent_gym.env import TextEnv
from agent_gym.errors import ConfigError
from agent_gym.registry import EnvEntry, make
from agent_gym.testing import play
from agent_gym.tool_env import ToolEnv

_NEARLY_ALL = 90  # per cent


def card(
    entries: Sequence[EnvEntry], made: type[Any], env_kwargs: Mapping[str, Any] | None = None, longest: int = 1500
) -> str:
    """Return the card of some ids of one class; the first that can be made is played.

    Args:
        entries: the ids.
        made: their class.
        env_kwargs: arguments with which it is played, for ids that need some.
        longest: characters of one text of an episode that are shown.
    """
    first = next((entry for entry in entries if entry.needs is None or env_kwargs), None)
    parts = [f"# {made.__name__.removesuffix('Env')}", inspect.getdoc(made) or "", *_ids(entries)]
    taken = [(f"`{name}`", f"`{value!r}`") for name, value in defaults(made)]
    parts += ["## Defaults", _table(("argument", "default"), taken)]
    terms = [
        (f"`{name}`", f"{weight:g}", "process" if name in made.process_terms else "outcome")
        for name, weight in made.reward_weights.items()
    ]
    parts += ["## Reward terms", _table(("term", "weight", "kind"), terms)]
    if first is None:
        parts += baselines(entries)
    else:
        env = make(first.id, **(env_kwargs or {}))
        parts += [*_spaces(env), *_tools(env), *baselines(entries), *_episode(first, env, longest)]
        env.close()
    return "\n\n".join(parts) + "\n"


def _ids(entries: Sequence[EnvEntry]) -> Iterator[str]:
    rows = []
    for entry in entries:
        arguments = ", ".join(f"`{key}={value!r}`" for key, value in entry.kwargs.items()) or "defaults"
        needs = f"; needs {entry.needs}" if entry.needs else ""
        extra = f"`{DISTRIBUTION}[{entry.extra}]`" if entry.extra else "nothing more"
        rows.append((f"`{entry.id}`", entry.summary, arguments + needs, extra))
    yield "## Registered ids"
    yield _table(("id", "task", "arguments", "install"), rows)
    if entries[0].data:
        yield f"Data: {entries[0].data}"


def defaults(made: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and default of a class's arguments, its own before the ones of its bases."""
    seen: set[str] = set()
    for base in made.__mro__:
        # Arguments that a base requires or `ToolEnv` adds are given by the subclasses and not by the user.
        if "__init__" not in vars(base) or base is ToolEnv or not issubclass(base, TextEnv):
            continue
        for name, parameter in inspect.signature(base.__init__).parameters.items():
            if parameter.default is not parameter.empty and name not in seen:
                seen.add(name)
                yield name, parameter.default


def _spaces(env: TextEnv) -> Iterator[str]:
    sizes = ", ".join(f"{split} {len(tasks):,}" for split, tasks in env.tasks.items())
    rows: list[tuple[str, Any]] = [("action space", env.action_space), ("observation space", env.observation_space)]
    rows += [("turns", env.max_turns), ("stop strings", list(env.stop)), ("tasks", sizes)]
    yield "## Spaces and splits"
    yield _table(("", ""), rows)


def _tools(env: TextEnv) -> Iterator[str]:
    if env.tool_schemas:
        yield "## Tools"
        yield "As the chat template gets them:"
        for schema in env.tool_schemas:
            yield f"```json\n{json.dumps(schema['function'], indent=2)}\n```"


def baselines(entries: Sequence[EnvEntry]) -> Iterator[str]:
    """Yield the results of scripts and models, and published ones, where they are known."""
    measured, published = _read("baselines.json"), _read("published.json")
    for entry in entries:
        if entry.id in measured:
            about = measured[entry.id]
            yield f"## Baselines of {entry.id}"
            yield f"The first {about['tasks']} tasks of {about['split']}; `agent-gym certify {entry.id}` plays scripts."
            yield _table(("who plays", "reward", "success", "how"), [*about["rows"], *about["models"]])
            yield from _without_learning(about["rows"])
            yield from _recipes(about.get("recipes", []))
        if entry.id in published:
            yield f"## Published numbers of {entry.id}"
            yield "On official data, in per cent:"
            yield _table(("protocol", "who plays", "data", "%", "source"), published[entry.id])


def _without_learning(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Say so where a script without learning and without gold answers solves nearly all tasks."""
    easy = [(success, how) for who, _, success, how in rows if who == "script" or "no gold" in how]
    for success, how in easy:
        if float(success.rstrip("%")) > _NEARLY_ALL:
            yield (
                f"**A script without learning solves {success}** ({how}). So success shows that a policy has learned "
                "the form of a task, its tools and its turns; it is no evidence of language or reasoning."
            )


def _recipes(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield "After the recipe of a preset, in per cent by seed, on test tasks of the preset, which may be easier:"
        head = ("`speedrun --preset`", "who plays", "greedy", "sampled", "tasks", "seeds", "in benchmarks/RESULTS.md")
        yield _table(head, rows)


def _read(name: str) -> dict[str, Any]:
    return json.loads(files("agent_gym.registry").joinpath(name).read_text(encoding="utf-8"))


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows))


def _episode(entry: EnvEntry, env: TextEnv, longest: int) -> Iterator[str]:
    try:
        (_, opening), *_, (*_, info) = play(env, iter(env.expert_action, None), seed=0)
    except ConfigError:  # it has no expert
        return
    yield "## Info"
    yield f"`reset`: {', '.join(opening)}. `step`: {', '.join(info)}."
    if info["metrics"]:
        yield f"Metrics: {', '.join(info['metrics'])}."
    yield "## An episode"
    yield f"`{entry.id}`, seed 0, played by the expert of the environment:"
    for segment in env.transcript.segments:
        if segment.text:
            text = segment.text if len(segment.text) <= longest else segment.text[:longest] + " ..."
            kind, _, name = segment.source.partition(":")
            author = ", ".join(filter(None, ({"agent": "policy", "env": "world"}.get(kind, kind), name)))
            yield f'``````text title="{author}"\n{text}\n``````'
