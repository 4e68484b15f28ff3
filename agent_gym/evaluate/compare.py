"""Runs compared on the tasks that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium

from agent_gym.errors import ConfigError
from agent_gym.evaluate import SHARES, report_values, sum_by_task
from agent_gym.evaluate.cards import card_key, read_cards
from agent_gym.evaluate.prompts import prompt_of
from agent_gym.evaluate.statistics import Difference, compare_clustered, compare_means, compare_shares
from agent_gym.evaluate.storage import CARDS
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
    card: Mapping[str, Any] | None = None  # its evidence

    def add(self, episode: Episode) -> None:
        if episode.failure:
            self.failed.append(episode)
        else:
            self.tasks.setdefault(episode.task_id, []).append(episode)
            users = (message["content"] for message in episode.messages if message["role"] == "user")
            self.questions.setdefault(episode.task_id, str(next(users, "")))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs on the tasks that both have played."""

    paired: int  # how many tasks both have played
    only_a: int
    only_b: int
    measures: dict[str, Difference]  # by the names of `EvalResult.measures`
    categories: dict[str, dict[str, tuple[int, Difference]]]  # field, its value: how many tasks, difference in success
    prompts: int = 0  # how many distinct prompts the paired tasks are, as `a` read them; intervals are over these


def read_runs(records: Iterable[Mapping[str, Any]], name: str) -> list[Run]:
    """Sort the records of a file by policy (`name` where a record names none) and environment."""
    runs: dict[tuple[str, str], Run] = {}
    for record in records:
        spec = record["spec"]
        policy = record.get("policy", name)
        run = runs.setdefault((policy, spec["env_id"]), Run(policy, spec["env_id"], spec["env_kwargs"]))
        # Without the ids and texts of its tokens, which are most of it.
        run.add(from_record({**record, "rows": []}))
    return list(runs.values())


def with_cards(runs: Iterable[Run], file: str) -> list[Run]:
    """Give the runs of a file the cards next to it; one of more or fewer episodes is not theirs."""
    path = Path(file).with_suffix(CARDS)
    cards = {}
    for card in read_cards(path) if path.is_file() else ():
        cards[card_key(card), card["counts"]["played"] + card["counts"]["failed"]] = card

    def find(run: Run) -> Any:
        return cards.get(((run.policy, run.env_id), len(run.failed) + sum(map(len, run.tasks.values()))))

    return [replace(run, card=find(run)) for run in runs]


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

    prompts = [prompt_of(a.tasks[task][0]) for task in shared]
    means: list[dict[str, list[float]]] = []  # of each run, by measure and then by task
    attempts = [[len(run.tasks[task]) for task in shared] for run in (a, b)]
    for run, counts in zip((a, b), attempts, strict=True):
        sums = sum_by_task([run.tasks[task] for task in shared], report_values)
        means.append({name: [x / n for x, n in zip(of, counts, strict=True)] for name, of in sums.items()})

    def difference(name: str, tasks: Iterable[int]) -> Difference:
        places = list(tasks)
        left, right = ([side[name][i] if name in side else 0.0 for i in places] for side in means)
        drawn = [prompts[i] for i in places]
        if len({*drawn}) < len(drawn):
            return compare_clustered(left, right, drawn)
        once = all(counts[i] == 1 for counts in attempts for i in places)
        shares = once and name in SHARES and {*left, *right} <= {0.0, 1.0}  # a world's own em may be a part
        return (compare_shares if shares else compare_means)(left, right)

    # A term without weight is always 0.
    named = [name for side in means for name in side if any(any(one.get(name, ())) for one in means)]
    names = dict.fromkeys(["episode/success", *(name for name in named if not name.startswith(_LEFT_OUT))])
    kinds: dict[str, dict[str, list[int]]] = {}
    for i, task in enumerate(shared):
        for name, value in a.tasks[task][0].categories.items():
            kinds.setdefault(name, {}).setdefault(value, []).append(i)
    categories = {
        name: {value: (len(places), difference("episode/success", places)) for value, places in sorted(parts.items())}
        for name, parts in kinds.items()
    }
    measures = {name: difference(name, range(len(shared))) for name in names}
    only_a, only_b = (len(run.tasks) - len(shared) for run in (a, b))
    return Comparison(len(shared), only_a, only_b, measures, categories, len({*prompts}))
