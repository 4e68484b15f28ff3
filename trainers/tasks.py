"""From environments to the tasks of a run, and their order.

TRL's loop needs a data set. A row only names a task (environment, split, index, seed); the task itself stays in the
environment. `mix_datasets` joins task lists, and `Mixture` is the order in which their tasks come. The proportions are
of played groups; no loss is weighted.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from torch.utils.data import Sampler
from transformers import TrainerCallback

from agent_gym.errors import ConfigError, quoted, shown
from agent_gym.evaluate import make_specs
from agent_gym.gateway import agent_env
from agent_gym.registry import EnvLike, resolve_env, resolve_env_id
from agent_gym.registry.from_data import allow, env_from_data
from agent_gym.rollout import derive_seed
from agent_gym.row_reader import read_given, rules_of
from agent_gym.tool_env import QuestionEnv
from agent_gym.trainers.selection import fresh_tasks

COLUMNS = ("env_id", "env_kwargs", "split", "index", "seed")
Rows: TypeAlias = "Dataset | Sequence[Mapping[str, Any]]"
"""A data set or a list of dicts."""


def task_dataset(
    env_id: EnvLike,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    split: str = "train",
    tasks: int | None = None,
    seed: int = 0,
) -> Dataset:
    """List the first `tasks` of a split, or all, as a data set: env_id, env_kwargs (JSON), split, index and seed.

    `env_id` is an id, or a value that `registry.resolve_env` takes in its place. `seed` is the base of the
    environments' seeds.

    Raises:
        ConfigError: for an unknown environment or split, more tasks than the split has, or arguments that are not JSON.
    """
    env_id, env_kwargs = resolve_env(env_id, env_kwargs)
    try:
        written = json.dumps(env_kwargs)
    except TypeError as error:
        cure = "give a function that makes the environment, env=lambda: MyEnv(...)"
        raise ConfigError(f"env_kwargs must be JSON values, and {error}; {cure}") from error
    allow(env_id, env_kwargs)
    specs = make_specs(env_id, env_kwargs, split=split, episodes=tasks, seed=seed)
    common = (env_id, written, split)
    rows = [(*common, spec.index, spec.seed) for spec in specs]
    return Dataset.from_dict({column: [row[i] for row in rows] for i, column in enumerate(COLUMNS)})


def as_tasks(rows: Rows, name: str, env: EnvLike | None = None, env_kwargs: Mapping[str, Any] | None = None) -> Dataset:
    """Return the tasks that rows name, as a data set with the columns of `task_dataset`.

    Args:
        rows: a data set or a list of dicts. Each row names a task, or holds a question with answers in one of the
            forms of row_forms.py. Questions become the tasks of a `QuestionEnv` without tools.
        name: the name of the rows in messages.
        env: the environment of the run. It has tasks, so that questions are refused.
        env_kwargs: arguments of the `QuestionEnv` for questions, such as `columns` and `skip_bad`.

    Raises:
        ConfigError: for rows that are neither tasks nor questions.
    """
    listed = isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows)
    columns = list(rows[0]) if listed and rows else getattr(rows, "column_names", None)
    if not isinstance(columns, list) or (isinstance(rows, Dataset) and not len(rows)):
        raise ConfigError(f"{name} is {shown(rows)}; it must be a data set or a list of dicts, with at least one row")
    if not set(COLUMNS) & set(columns):
        if env is not None:
            raise ConfigError(
                f"{name} has the columns {', '.join(columns)}, and env has its own tasks: leave env out to train on "
                "questions without tools, give the rows to the environment, env=lambda: QuestionEnv(rows, tools=[f]), "
                "or name its tasks with task_dataset()"
            )
        settings = {"columns": None, "skip_bad": False, **(env_kwargs or {})}
        rules = rules_of(settings.pop("columns"), skip_bad=settings.pop("skip_bad"), judged="score" not in settings)
        return task_dataset(partial(QuestionEnv, read_given(rows, rules, name), **settings))
    if env_kwargs and env is None and name == "train_dataset":  # of an evaluation they are for its questions
        raise ConfigError(f"{name} names tasks with arguments of their environments, and env_kwargs has others")
    dataset = rows if isinstance(rows, Dataset) else Dataset.from_list([{**row} for row in rows])
    check_task_columns(dataset, name)
    return dataset


def data_sets(
    env: EnvLike | None,
    env_kwargs: Mapping[str, Any] | None,
    train: Rows | None,
    evaluation: Rows | Mapping[str, Rows] | None,
    *,
    agent: Any,
    tasks: Any,
    reward: Any,
    seed: int,
) -> tuple[Dataset, Dataset | dict[str, Dataset] | None]:
    """Return the tasks of training and of evaluation, as the arguments of `AgentGRPOTrainer` describe them.

    Raises:
        ConfigError: if no argument gives tasks for training, or rows cannot be read.
    """
    if agent is not None:
        settings = dict(env_kwargs or {})
        if env is not None:
            settings = dict(zip(("world", "world_kwargs"), resolve_env(env, env_kwargs), strict=True))
        env, env_kwargs = agent_env(agent, tasks, reward, **settings)
    if train is None:
        if env is None:
            raise ConfigError("give an environment (env=...) or a train_dataset made with task_dataset()")
        train = task_dataset(env, env_kwargs, split="train", seed=seed)
    given = env_kwargs if env is None else None
    read = as_tasks(train, "train_dataset", env, given)
    if isinstance(evaluation, Mapping):
        return read, {key: as_tasks(part, f"eval_dataset[{key!r}]", env, given) for key, part in evaluation.items()}
    return read, None if evaluation is None else as_tasks(evaluation, "eval_dataset", env, given)


def check_task_columns(dataset: Dataset, name: str) -> None:
    """Raise `ConfigError` unless the data set has the columns of `task_dataset`."""
    missing = [column for column in COLUMNS if column not in dataset.column_names]
    if missing:
        raise ConfigError(
            f"{name} has no column {missing[0]!r}; it has: {', '.join(dataset.column_names)}. Make it with "
            "task_dataset()"
        )
    kind = dataset.features["env_kwargs"]
    if getattr(kind, "dtype", None) not in ("string", "large_string"):
        raise ConfigError(f"{name} has env_kwargs of the type {kind}; they must be texts, as json.dumps writes them")
    cure = "name this environment in your code, by task_dataset(ID, KWARGS) or registry.from_data.allow(ID, KWARGS)"
    for env_id, written in dict.fromkeys(zip(dataset["env_id"], dataset["env_kwargs"], strict=True)):
        try:
            env_kwargs = json.loads(written)
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigError(f"{name} has the env_kwargs {quoted(written)}, which are not JSON: {error}") from error
        env_from_data(env_id, env_kwargs, name, cure=cure)


def parse_mixture(text: str) -> list[tuple[str, float]]:
    """Read environment ids with weights, 1 where none is given: "AgentR1/GSM8K-v0=2,AgentR1/GSM8K-NoTool-v0".

    Raises `ConfigError` for a missing id, an id that is named twice, or a weight that is not a positive number.
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        env_id, equals, number = (piece.strip() for piece in part.partition("="))
        if not env_id:
            raise ConfigError(f"the mixture {text!r} has a part without environment id; write id=weight,id=weight")
        try:
            weight = float(number) if equals else 1.0
        except ValueError:
            weight = math.nan
        weight = _checked(weight, f"the weight of {env_id}", number)
        env_id = resolve_env_id(env_id)  # the full id
        if env_id in weights:
            raise ConfigError(f"the mixture {text!r} names {env_id} twice; name it once, with the sum of its weights")
        weights[env_id] = weight
    return list(weights.items())


def _checked(weight: float, name: str, given: object) -> float:
    if not 0 < weight < math.inf:
        raise ConfigError(f"{name} is {given!r}; it must be a positive number")
    return weight


def mix_datasets(datasets: Sequence[Dataset], weights: Sequence[float]) -> Dataset:
    """Put task lists together for a sampler that keeps their proportions.

    Args:
        datasets: from `task_dataset`, one per source; sources differ in the environment or in its arguments.
        weights: the relative frequency of tasks from each source.

    Returns:
        The tasks of all sources, one source after the other, with the columns of `task_dataset`, `source` (its number)
        and `weight` (its share; the shares of the sources sum to 1).

    Raises:
        ConfigError: for a source without tasks, bad weights, or a task that is in the mixture twice.
    """
    if not datasets or len(datasets) != len(weights):
        raise ConfigError(f"{len(datasets)} data sets and {len(weights)} weights; give one weight for each, at least 1")
    total = sum(_checked(weight, f"weight {i} of the mixture", weight) for i, weight in enumerate(weights))
    parts, seen = [], dict[tuple[object, ...], int]()
    for source, (dataset, weight) in enumerate(zip(datasets, weights, strict=True)):
        check_task_columns(dataset, f"datasets[{source}]")
        if not len(dataset):
            raise ConfigError(f"source {source} of the mixture has no tasks")
        dataset = dataset.select_columns(list(COLUMNS))
        for row in zip(*(dataset[column] for column in COLUMNS), strict=True):
            if row in seen:
                raise ConfigError(
                    f"a task is in the mixture twice, in source {seen[row]} and in source {source}: "
                    f"{dict(zip(COLUMNS, row, strict=True))}"
                )
            seen[row] = source
        dataset = dataset.add_column("source", [source] * len(dataset))
        parts.append(dataset.add_column("weight", [weight / total] * len(dataset)))
    return concatenate_datasets(parts)


@dataclass(frozen=True, slots=True)
class Mixture:
    """The tasks of each source, and the share of each source."""

    sources: tuple[tuple[int, ...], ...]  # row numbers of the data set
    shares: tuple[float, ...]  # positive, sum to 1

    @classmethod
    def of(cls, dataset: Dataset) -> Mixture | None:
        """Read the columns that `mix_datasets` made; None for a data set without them or with a single source."""
        if not {"source", "weight"} <= set(dataset.column_names):
            return None
        sources = dataset["source"][:]
        weights = dict(sorted(zip(sources, dataset["weight"], strict=True)))
        if len(weights) < 2:
            return None
        total = sum(weights.values())  # less than 1 if filtered rows removed a source
        rows = tuple(tuple(i for i, source in enumerate(sources) if source == wanted) for wanted in weights)
        return cls(rows, tuple(weight / total for weight in weights.values()))

    def check(self, batch_tasks: int) -> None:
        """Raise `ConfigError` if a source is too small to give its share of a batch without repeating a task."""
        for source, (tasks, share) in enumerate(zip(self.sources, self.shares, strict=True)):
            need = math.ceil(share * batch_tasks - 1e-9)
            if len(tasks) < need:
                raise ConfigError(
                    f"source {source} of the mixture has {len(tasks)} tasks, but its share of {share:.3g} makes {need} "
                    f"of the {batch_tasks} tasks of a generation batch: add tasks, lower its weight, or make the batch "
                    "smaller"
                )

    def batches(self, batch_tasks: int, seed: int, shuffle: bool = True) -> Iterator[list[int]]:
        """Yield the batches of a run, without end; the same arguments give the same batches.

        Each task comes from the source whose number of tasks so far is the furthest below its share. A source gives all
        its tasks once before it begins again, in another order. The tasks of a batch differ. If a source begins again
        in the middle of a batch, its tasks that are already in the batch wait. If it has no other task, the next source
        takes the turn and gives it back later.
        """
        passes = [itertools.count() for _ in self.sources]
        queues: list[list[int]] = [[] for _ in self.sources]
        dealt = [0] * len(self.sources)

        def behind(source: int) -> float:
            return self.shares[source] * (sum(dealt) + 1) - dealt[source]

        while True:
            batch: dict[int, None] = {}  # an ordered set
            taken = [0] * len(self.sources)
            while len(batch) < batch_tasks:
                able = [s for s, tasks in enumerate(self.sources) if taken[s] < len(tasks)]
                source = max(able, key=behind)
                queue, tasks = queues[source], self.sources[source]
                if not queue:  # a new pass, with the first task last, where `pop` is cheap
                    rng = np.random.default_rng(derive_seed(seed, source, next(passes[source])))
                    order = rng.permutation(len(tasks)).tolist() if shuffle else range(len(tasks))
                    queue += [tasks[i] for i in reversed(order)]
                batch[queue.pop(next(i for i in reversed(range(len(queue))) if queue[i] not in batch))] = None
                dealt[source] += 1
                taken[source] += 1
            yield list(batch)

    def fresh_tasks(self, taken: Collection[int], count: int, seed: int) -> list[int]:
        """Draw up to `count` tasks that are not in `taken`, each from a source that is drawn by its share.

        If every small draw were rounded the same way, a source would get no tasks. A source without remaining tasks is
        not drawn.
        """
        known = set(taken)
        shares = [share * (not known.issuperset(tasks)) for tasks, share in zip(self.sources, self.shares, strict=True)]
        if not any(shares):
            return []
        draws = np.random.default_rng(seed).multinomial(count, np.array(shares) / sum(shares))
        parts = (
            fresh_tasks(tasks, taken, int(n), derive_seed(seed, source))
            for source, (tasks, n) in enumerate(zip(self.sources, draws, strict=True))
        )
        return [task for part in parts for task in part]


@dataclass(eq=False)
class GroupSampler(Sampler[int]):
    """Repeat each task for its group, and each batch of tasks for the steps that reuse it.

    TRL's `RepeatSampler` draws from one running generator, which a resumed run starts again. Here the order is a
    function of (seed, epoch). The tasks of a batch differ, since rollouts gain from diverse initial states (RAGEN,
    arXiv:2504.20073).

    Raises `ConfigError` if there are fewer tasks than a batch needs, or than the share of a source.
    """

    size: int  # the number of tasks
    _: KW_ONLY
    group_size: int  # consecutive repetitions of each task, G
    batch_tasks: int  # tasks per generation batch
    repeats: int  # repetitions of each generation batch, once per micro-step that uses it
    seed: int  # decides the order
    shuffle: bool = True  # False keeps the order of the tasks
    mixture: Mixture | None = None  # sources, whose proportions hold in every batch, but not the tasks of an epoch
    epoch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.size < self.batch_tasks:
            raise ConfigError(
                f"the training set has {self.size} tasks, but one generation batch takes {self.batch_tasks}: add "
                "tasks, lower per_device_train_batch_size x steps_per_generation, or raise num_generations"
            )
        if self.mixture is not None:
            self.mixture.check(self.batch_tasks)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next; the trainer calls it before each epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        """Yield task indices; tasks that do not fill a last batch wait for another epoch."""
        for tasks in self._batches(self.epoch):
            yield from [index for index in tasks for _ in range(self.group_size)] * self.repeats

    @property
    def rollouts(self) -> int:
        """The number of generation batches in an epoch."""
        return self.size // self.batch_tasks

    def batch(self, number: int) -> list[int]:
        """Return the tasks of a generation batch, counted from the beginning of the run."""
        epoch, place = divmod(number, self.rollouts)
        return next(itertools.islice(self._batches(epoch), place, None))

    def _batches(self, epoch: int) -> Iterator[list[int]]:
        if self.mixture is not None:
            # Sources begin again in the middle of epochs. Therefore the start of an epoch depends on all batches before
            # it. These are dealt again (a few seconds per million tasks), so that no state has to be saved.
            batches = self.mixture.batches(self.batch_tasks, self.seed, self.shuffle)
            return itertools.islice(batches, epoch * self.rollouts, (epoch + 1) * self.rollouts)
        order = list(range(self.size))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            order = torch.randperm(self.size, generator=generator).tolist()
        return (order[i * self.batch_tasks : (i + 1) * self.batch_tasks] for i in range(self.rollouts))

    def fresh_tasks(self, taken: Collection[int], count: int, seed: int) -> list[int]:
        """Draw tasks that the batch does not have yet, from sources by their shares."""
        if self.mixture is not None:
            return self.mixture.fresh_tasks(taken, count, seed)
        return fresh_tasks(range(self.size), taken, count, seed)

    def __len__(self) -> int:
        return self.rollouts * self.batch_tasks * self.group_size * self.repeats


class EpochCallback(TrainerCallback):
    """Tells the scheduler of a trainer that training begins, and the sampler which epoch begins.

    transformers does not tell the sampler through the loader that skips batches after a restart on several processes.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.scheduler.begin()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.sampler.set_epoch(int(state.epoch or 0))
