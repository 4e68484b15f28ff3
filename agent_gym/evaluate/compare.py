"""Runs compared on the tasks that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from agent_gym.errors import ConfigError
from agent_gym.evaluate.results import SHARES, report_values, sum_by_task
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
        paired, only_a, only_b: how many tasks both have played, the first run alone, and the second alone.
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


def same_kind(a: Run, b: Run) -> bool:
    """Whether two runs may be of the same tasks: of one environment, or of variants of one."""
    first, second = (gymnasium.registry.get(run.env_id) for run in (a, b))
    return a.env_id == b.env_id or bool(first and second and first.entry_point == second.entry_point)


def compare(a: Run, b: Run) -> Comparison:
    """Compare two runs task by task.

    Raises:
        ConfigError: if they are not of the same tasks: environments of different kinds, other questions under the same
            names, or no task in common.
    """
    shared = [task for task in a.tasks if task in b.tasks]
    if not same_kind(a, b):
        raise ConfigError(f"{a.env_id} and {b.env_id} have different tasks, so that their runs cannot be paired")
    if not shared:
        raise ConfigError(f"{a.policy} and {b.policy} have no task of {a.env_id} in common")
    # Variants word their questions differently.
    comparable = shared if (a.env_id, a.env_kwargs) == (b.env_id, b.env_kwargs) else ()
    for task in comparable:
        if a.questions[task] != b.questions[task]:
            raise ConfigError(f"task {task} of {a.env_id} is not the same in both runs: other data, or another seed")

    means = [{task: _means(run.tasks[task]) for task in shared} for run in (a, b)]

    def difference(name: str, tasks: Sequence[str]) -> Difference:
        left, right = ([side[task].get(name, 0.0) for task in tasks] for side in means)
        once = all(len(run.tasks[task]) == 1 for run in (a, b) for task in tasks)
        return (compare_shares if once and name in SHARES else compare_means)(left, right)

    every = [values for side in means for values in side.values()]
    names = dict.fromkeys(name for values in every for name in values if not name.startswith(_LEFT_OUT))
    # A term without weight is always 0.
    names = dict.fromkeys(["episode/success", *(name for name in names if any(v.get(name) for v in every))])
    kinds: dict[str, dict[str, list[str]]] = {}
    for task in shared:
        for name, value in a.tasks[task][0].categories.items():
            kinds.setdefault(name, {}).setdefault(value, []).append(task)
    categories = {
        name: {value: (len(tasks), difference("episode/success", tasks)) for value, tasks in sorted(parts.items())}
        for name, parts in kinds.items()
    }
    measures = {name: difference(name, shared) for name in names}
    return Comparison(len(shared), len(a.tasks) - len(shared), len(b.tasks) - len(shared), measures, categories)


def _means(attempts: Sequence[Episode]) -> dict[str, float]:
    return {name: total / len(attempts) for name, (total,) in sum_by_task([attempts], report_values).items()}
