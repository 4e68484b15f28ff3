"""Runs compared on the tasks that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import gymnasium

from agent_gym.errors import ConfigError
from agent_gym.evaluate.results import SHARES, report_values
from agent_gym.evaluate.statistics import Difference, compare_means, compare_shares
from agent_gym.rollout import Episode, from_record

_LEFT_OUT = ("tool/", "episode/seconds")  # a tool may be missing on one side; seconds are the machine's


@dataclass(frozen=True, slots=True)
class Run:
    """The episodes of one policy in one environment, by the name that the environment has for their task."""

    policy: str
    env_id: str
    env_kwargs: dict[str, Any]
    tasks: dict[str, list[Episode]] = field(default_factory=dict)  # that finished
    questions: dict[str, str] = field(default_factory=dict)  # the user's first words
    failed: list[Episode] = field(default_factory=list)  # that a fault of the machinery ended


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs on the tasks that both have played.

    Attributes:
        paired: how many tasks those are.
        only_a: tasks of the first run alone.
        only_b: of the second alone.
        measures: the differences, by the names of `EvalResult.measures`.
        categories: the difference in success for the tasks of one kind: field, its value, their number and difference.
    """

    paired: int
    only_a: int
    only_b: int
    measures: dict[str, Difference]
    categories: dict[str, dict[str, tuple[int, Difference]]]


def read_runs(records: Iterable[Mapping[str, Any]], name: str) -> list[Run]:
    """Sort the records of a file by policy (`name` where a record names none) and environment."""
    runs: dict[tuple[str, str], Run] = {}
    for record in records:
        spec = record["spec"]
        policy = record.get("policy", name)
        run = runs.setdefault((policy, spec["env_id"]), Run(policy, spec["env_id"], spec["env_kwargs"]))
        # Without the ids and texts of its tokens, which are most of it.
        episode = from_record({**record, "rows": []})
        if episode.failure:
            run.failed.append(episode)
        else:
            run.tasks.setdefault(episode.task_id, []).append(episode)
            users = (message["content"] for message in episode.messages if message["role"] == "user")
            run.questions.setdefault(episode.task_id, str(next(users, "")))
    return list(runs.values())


def compare(a: Run, b: Run) -> Comparison:
    """Compare two runs task by task.

    Raises:
        ConfigError: if they are not of the same tasks: environments of different kinds, other questions under the same
            names, or no task in common.
    """
    shared = [task for task in a.tasks if task in b.tasks]
    _check(a, b, shared)
    measures = _measures([a.tasks[task] for task in shared], [b.tasks[task] for task in shared])
    kinds: dict[str, dict[str, list[str]]] = {}
    for task in shared:
        for name, value in a.tasks[task][0].categories.items():
            kinds.setdefault(name, {}).setdefault(value, []).append(task)
    categories = {
        name: {
            value: (len(tasks), _success([a.tasks[task] for task in tasks], [b.tasks[task] for task in tasks]))
            for value, tasks in sorted(parts.items())
        }
        for name, parts in kinds.items()
    }
    return Comparison(len(shared), len(a.tasks) - len(shared), len(b.tasks) - len(shared), measures, categories)


def same_kind(a: Run, b: Run) -> bool:
    """Whether two runs may be of the same tasks: of one environment, or of variants of one."""
    points = [
        gymnasium.registry[run.env_id].entry_point if run.env_id in gymnasium.registry else None for run in (a, b)
    ]
    return a.env_id == b.env_id or points[0] is not None and points[0] == points[1]


def _check(a: Run, b: Run, shared: Sequence[str]) -> None:
    if not same_kind(a, b):
        raise ConfigError(f"{a.env_id} and {b.env_id} have different tasks, so that their runs cannot be paired")
    if not shared:
        raise ConfigError(f"{a.policy} and {b.policy} have no task of {a.env_id} in common")
    # Variants word their questions differently.
    if (a.env_id, a.env_kwargs) == (b.env_id, b.env_kwargs):
        for task in shared:
            if a.questions[task] != b.questions[task]:
                raise ConfigError(
                    f"task {task} of {a.env_id} is not the same in both runs: other data, or another seed"
                )


def _measures(a: Sequence[Sequence[Episode]], b: Sequence[Sequence[Episode]]) -> dict[str, Difference]:
    means_a, means_b = [_task_means(attempts) for attempts in a], [_task_means(attempts) for attempts in b]
    names = dict.fromkeys(("episode/success", *(name for means in (*means_a, *means_b) for name in means)))
    measures = {}
    for name in names:
        values_a, values_b = ([means.get(name, 0.0) for means in side] for side in (means_a, means_b))
        # A term without weight is 0 for everybody.
        if name == "episode/success" or (any((*values_a, *values_b)) and not name.startswith(_LEFT_OUT)):
            measures[name] = _difference(name, values_a, values_b, once=all(len(task) == 1 for task in (*a, *b)))
    return measures


def _success(a: Sequence[Sequence[Episode]], b: Sequence[Sequence[Episode]]) -> Difference:
    solved_a, solved_b = ([fmean(episode.success for episode in task) for task in side] for side in (a, b))
    return _difference("episode/success", solved_a, solved_b, once=all(len(task) == 1 for task in (*a, *b)))


def _difference(name: str, a: Sequence[float], b: Sequence[float], *, once: bool) -> Difference:
    return (compare_shares if once and name in SHARES else compare_means)(a, b)


def _task_means(attempts: Sequence[Episode]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for episode in attempts:
        for name, value in report_values(episode).items():
            sums[name] = sums.get(name, 0.0) + value
    return {name: value / len(attempts) for name, value in sums.items()}
