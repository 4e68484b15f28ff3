"""Panels: fixed lists of tasks, pinned by hashes of their openings and of their gold answers.

Two numbers can be compared if they are of the same tasks, to the byte. A panel lists tasks of one split of an
environment. Each has its index and 16 hex digits of two hashes: of its opening (messages and tools of `reset`) and of
its gold answer (`TextEnv.gold`). The panel has a full SHA-256 over all openings, and one over all gold answers. The
part that an environment answers later, and how it rewards, is in no hash.

The panels of agent_gym are files in registry/panels, which `agent-gym export panels` makes anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from agent_gym.call_format import families
from agent_gym.errors import ConfigError, write_whole
from agent_gym.images import Image
from agent_gym.public import public
from agent_gym.registry import ENVS
from agent_gym.rollout import Episode, derive_seed, make_env
from agent_gym.rollout.env_threads import close_env
from agent_gym.rollout.trajectories import json_ready
from agent_gym.untrusted import count, read_json

SIZES = {"test": 200, "validation": 100, "train": 100}
"""How many tasks of a split are in a panel, if there are so many."""
_NAMED = 5  # most tasks that a message names
_SHAPE = {
    "name": str,
    "env_id": str,
    "env_kwargs": dict,
    "split": str,
    "version": count,
    "prompts_sha256": str,
    "golds_sha256": str,
    "tasks": [lambda task: isinstance(task, list) and list(map(type, task)) == [int, str, str] and task[0] >= 0],
}


@dataclass(frozen=True)
class Panel:
    """A list of tasks, (index, opening, gold); the gold is "" where the environment names none.

    `env_kwargs` are the arguments it was made with. With other hashes a panel of the same name has the next version.
    """

    name: str
    env_id: str
    env_kwargs: Mapping[str, Any]
    split: str
    version: int
    prompts_sha256: str
    golds_sha256: str
    tasks: tuple[tuple[int, str, str], ...]

    @classmethod
    def of(cls, name: str, env_id: str, env_kwargs: Mapping[str, Any], split: str, rows: Iterable[Any]) -> Panel:
        """Make a panel of the results of `look`; its hashes do not depend on the order."""
        found = sorted((one["index"], one["prompt_sha256"], one["gold_sha256"]) for one in rows)
        prompts, golds = (sha256(sorted(one[place] for one in found)) for place in (1, 2))
        tasks = tuple((index, prompt[:16], gold[:16]) for index, prompt, gold in found)
        return cls(name, env_id, without_folders(env_kwargs), split, 1, prompts, golds, tasks)

    @property
    def prompts(self) -> int:
        """How many distinct prompts the tasks are."""
        return len({prompt for _, prompt, _ in self.tasks})

    def check(self, env_kwargs: Mapping[str, Any]) -> None:
        """Raise `ConfigError`, which names the tasks that differ, unless the environment gives these bytes here."""
        rows = look(self.env_id, env_kwargs, self.split, [index for index, *_ in self.tasks])
        now = Panel.of(self.name, self.env_id, env_kwargs, self.split, rows)
        if same_tasks(self, now):
            return
        wrong = [f"{self.split}/{a[0]}" for a, b in zip(self.tasks, now.tasks, strict=True) if a != b]
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        made, given = json.dumps(self.env_kwargs), json.dumps(json_ready(env_kwargs))
        raise ConfigError(
            f"{self.env_id} gives other tasks here than panel {self.name}, version {self.version}, has: "
            f"{', '.join(wrong[:_NAMED])}{more} of {len(self.tasks)}. It was made with the arguments {made}, here they "
            f"are {given}: give the same data and arguments, use the agent_gym that made it, or leave out --panel"
        )

    def write(self, path: Path) -> None:
        """Write the panel as JSON, a line per task; over a panel with other hashes it is the next version of that."""
        if path.is_file():
            old = read_panel(str(path), self.env_id)
            self = replace(self, version=old.version + (not same_tasks(self, old)))
        head = json.dumps({key: value for key, value in vars(self).items() if key != "tasks"}, indent=0)
        tasks = ",\n".join(map(json.dumps, self.tasks))
        write_whole(path, f'{head[:-2]},\n"tasks": [\n{tasks}\n]\n}}\n')


def without_folders(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as JSON values, files and folders by their last name: where they are is nothing to others."""
    found = {key: value for key, value in env_kwargs.items() if isinstance(value, str) and os.path.exists(value)}
    return public(json_ready({**env_kwargs, **{key: Path(value).name for key, value in found.items()}}))


def same_tasks(a: Panel, b: Panel) -> bool:
    """Whether two panels have the same tasks, whatever their names."""
    return (a.prompts_sha256, a.golds_sha256) == (b.prompts_sha256, b.golds_sha256)


def prompt_sha256(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the SHA-256 of a policy's first view of a task."""
    return sha256({"messages": messages, "tools": tools})


def sha256(value: Any) -> str:
    """Return the SHA-256 of a value as canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def canonical(value: Any) -> str:
    """Return a value as JSON that is the same everywhere: keys sorted, no spaces, ASCII, images by their digest."""
    plain = lambda one: one.digest if isinstance(one, Image) else json_ready(one)  # noqa: E731
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=plain)


@contextmanager
def opened_env(env_id: str, env_kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Make an environment and close it, whatever that raises."""
    env = make_env(env_id, env_kwargs)
    try:
        yield env
    finally:
        close_env(env)


def count_tasks(env: Any, split: str) -> int:
    """Return how many tasks a split has; `ConfigError` if the split does not exist, or is empty."""
    tasks = env.get_wrapper_attr("tasks")
    count = len(tasks[split]) if split in tasks else 0
    if not count:
        what, names = "empty" if split in tasks else "unknown", ", ".join(name for name in tasks if len(tasks[name]))
        raise ConfigError(f"{what} split {split!r}; {env.spec.id} has: {names}; choose one by split")
    return count


def look(
    env_id: str, env_kwargs: Mapping[str, Any], split: str, indices: Iterable[int] | int | None = None
) -> Iterator[dict[str, Any]]:
    """Reset an environment, without a tokenizer, to tasks of a split; yield a policy's view of each, and its hashes.

    Of a number n of tasks, by default `SIZES`, the indices are drawn: the n with the smallest `derive_seed(index)`.
    Evenly spaced ones would miss kinds of tasks that come round in turn.

    Raises:
        ConfigError: for an unknown environment, split or index.
    """
    with opened_env(env_id, env_kwargs) as env:
        count = count_tasks(env, split)
        if indices is None or isinstance(indices, int):
            if indices is not None and indices > count:
                raise ConfigError(f"{indices} tasks asked for, but split {split!r} of {env_id} has {count}")
            n = indices or SIZES.get(split, count)
            indices = sorted(sorted(range(count), key=derive_seed)[:n])
        for index in indices:
            # Where the seed decides the view, it is the same for every policy.
            _, info = env.reset(seed=derive_seed(0, index), options={"split": split, "index": index})
            yield _row(env.unwrapped, index, info["task_id"], info["messages"], info["tools"])


def _row(env: Any, index: int, task_id: str, messages: Sequence[Any], tools: Sequence[Any]) -> dict[str, Any]:
    hashes = {"prompt_sha256": prompt_sha256(messages, tools), "gold_sha256": ""}
    # A gold answer is missing where the seed draws it or another library has it, and a task where it was handed in.
    with suppress(ConfigError, LookupError):
        hashes["gold_sha256"] = sha256(env.gold(env.tasks[task_id.rpartition("/")[0]][index]))
    return {"task_id": task_id, "index": index, **hashes, "messages": messages, "tools": tools}


def played_panel(episodes: Sequence[Episode]) -> Panel:
    """Return the tasks of episodes of one environment as a panel without a name.

    Episodes that did not begin are left out.

    A model's chat template may have the tools described in the system prompt. This description is left out, so that the
    hashes are the environment's, for every policy.
    """
    spec = episodes[0].spec
    opened = {one.task_id: one for one in episodes if one.messages}
    rows: list[dict[str, Any]] = []
    with opened_env(spec.env_id, spec.env_kwargs) as env:
        described = _descriptions(env.unwrapped)
        for task_id, episode in opened.items():
            number = task_id.rpartition("/")[2]
            index = int(number) if number.isdecimal() else len(rows)
            messages = _plain(described, episode.initial_messages)
            rows.append(_row(env.unwrapped, index, task_id, messages, episode.tools))
    return Panel.of("", spec.env_id, spec.env_kwargs, spec.split or "", rows)


def _descriptions(env: Any) -> list[str]:
    """Return how a system prompt may describe the tools: in the form of the environment's parser, or of a model's."""
    parser = getattr(env, "parser", None)
    if not (parser and parser.in_templates and env.tool_schemas):
        return []
    return [one.instructions(env.tool_schemas) for one in (parser, *families())]


def _plain(described: Sequence[str], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first, *rest = messages
    if first["role"] != "system":
        return messages
    added = next(filter(first["content"].endswith, described), "")
    if not added:
        return messages
    content = first["content"].removesuffix(added).removesuffix("\n\n")
    return [{**first, "content": content}, *rest] if content else rest


def panel_name(env_id: str, name: str) -> str:
    """Return the whole name of a panel: "GSM8K-v0.test" for "test"."""
    return f"{env_id.rpartition('/')[2]}.{name}"


def read_panel(name: str, env_id: str) -> Panel:
    """Read a panel of an environment: a path that ends in .json, or the name of one that comes with agent_gym.

    Raises:
        ConfigError: if there is none, the file cannot be read, or it is of another environment.
    """
    folder, begin = resources.files("agent_gym.registry").joinpath("panels"), panel_name(env_id, "")
    file = Path(name) if name.endswith(".json") else folder.joinpath(f"{begin}{name}.json")
    if not file.is_file():
        names = [one.name[len(begin) : -len(".json")] for one in folder.iterdir() if one.name.startswith(begin)]
        known = ", ".join(sorted(names)) or "none"
        raise ConfigError(f"no panel {name!r} of {env_id}; it has: {known}; agent-gym export tasks makes others")
    try:
        content = read_json(Path(str(file)), _SHAPE)
        tasks = tuple((index, prompt, gold) for index, prompt, gold in content["tasks"])
        panel = Panel(**{**{field.name: content[field.name] for field in fields(Panel)}, "tasks": tasks})
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} is not a panel: {error}; agent-gym export tasks makes one") from error
    if panel.env_id != env_id:
        raise ConfigError(f"panel {name} is of {panel.env_id}, and {env_id} is to be played")
    return panel


def write_panels(folder: Path) -> None:
    """Write the panels of all environments that need no data; a variant of another environment has one of test only."""
    for entry in ENVS:
        for split in ["test"] if entry.kwargs else SIZES:
            if entry.needs is None:
                name = panel_name(entry.id, split)
                Panel.of(name, entry.id, {}, split, look(entry.id, {}, split)).write(folder / f"{name}.json")
