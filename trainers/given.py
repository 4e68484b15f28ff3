"""What a trainer is given, an environment, an agent or data sets, as rows of tasks; and what it does not take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from datasets import Dataset

from agent_gym.errors import ConfigError, RolloutError
from agent_gym.gateway import agent_env
from agent_gym.registry import EnvLike, recipe
from agent_gym.trainers.tasks import Rows, as_tasks, task_dataset

# Arguments of TRL's trainer that have no place here, and what has.
INSTEAD = {
    "reward_funcs": (
        "the environment scores: give QuestionEnv(questions, score=f), or a term in reward_weights whose value is in "
        "Reply(terms=...)"
    ),
    "environment_factory": "give env=lambda: agent_gym.contrib.trl.FromTRL(factory, rows), or a TextEnv",
    "tools": "they belong to the environment: env=lambda: QuestionEnv(questions, tools=[f])",
    "rollout_func": "the environment answers the policy, and policy= takes what samples",
}


def no_reward(prompts: Any, **kwargs: Any) -> list[float]:
    """Stand for the reward function on which TRL insists."""
    raise RolloutError("rewards come from the environment; this function is never called")


def refuse_foreign(trainer: str, arguments: Iterable[str]) -> None:
    """Raise `ConfigError` for an argument of TRL's trainer that has no place here, with what to give instead."""
    for name in INSTEAD.keys() & set(arguments):
        raise ConfigError(f"{trainer} takes no {name}: {INSTEAD[name]}")


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
        ConfigError: if nothing says what to train on, or rows cannot be read.
    """
    if agent is not None:
        settings = dict(env_kwargs or {})
        if env is not None:
            settings = dict(zip(("world", "world_kwargs"), recipe(env, env_kwargs), strict=True))
        env, env_kwargs = agent_env(agent, tasks, reward, **settings)
    if train is None:
        if env is None:
            raise ConfigError("give an environment (env=...) or a train_dataset made with task_dataset()")
        train = task_dataset(env, env_kwargs, split="train", seed=seed)
    read = as_tasks(train, "train_dataset", env)
    if isinstance(evaluation, Mapping):
        return read, {key: as_tasks(part, f"eval_dataset[{key!r}]", env) for key, part in evaluation.items()}
    return read, None if evaluation is None else as_tasks(evaluation, "eval_dataset", env)
