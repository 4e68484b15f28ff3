"""The common part of the adapters to other libraries: rows that name tasks, and an episode that another library drives.

A row names a task by split, index and seed. All episodes of one row begin in the same state, so that the members of a
group do in every trainer that repeats rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from agent_gym.chat import Message
from agent_gym.env import TextEnv
from agent_gym.errors import ConfigError
from agent_gym.images import images_of
from agent_gym.registry import make
from agent_gym.renamed import renamed
from agent_gym.tool_env import ToolEnv

Row = dict[str, Any]


def task_rows(
    env_id: str, split: str = "train", tasks: int = 1000, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None
) -> list[Row]:
    """Return a row per task: {"split", "index", "seed"}; task i is reset with `seed` + i.

    `ConfigError` if the split does not exist, or it has fewer tasks.
    """
    env = make(env_id, **(env_kwargs or {}))
    if split not in env.tasks or len(env.tasks[split]) < tasks:
        sizes = ", ".join(f"{name} ({len(rows)})" for name, rows in env.tasks.items())
        raise ConfigError(f"{tasks} tasks of split {split!r} asked for; {env_id} has {sizes}")
    env.close()
    return [{"split": split, "index": index, "seed": seed + index} for index in range(tasks)]


def opening_messages(env: TextEnv, info: Mapping[str, Any]) -> list[Message]:
    """Return the messages of `reset`, with the tools described where a chat template would have shown them.

    `ConfigError` if there are images, for which adapters have no place.
    """
    if images_of(info["messages"]):
        raise ConfigError(f"{type(env).__name__} shows images, and adapters hand over text only")
    if not (isinstance(env, ToolEnv) and env.tools and env.parser.in_templates):
        return list(info["messages"])
    messages = info["messages"]
    system = [message["content"] for message in messages if message["role"] == "system"]
    texts = [*system, env.parser.instructions(env.tool_schemas)]
    others = [message for message in messages if message["role"] != "system"]  # also a row's earlier turns
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


class ExternalEpisode:
    """An environment that another library's loop plays with texts; made once, reset often.

    Attributes:
        total: the sum of the rewards so far.
        over: whether the episode has ended, or none has begun.
        metrics: `is_success` and the sums of the reward terms, for logs.
    """

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> None:
        self.env: Any = gymnasium.make(env_id, **(env_kwargs or {}))
        self.total, self.over = 0.0, True
        self.metrics: dict[str, float] = {}

    def reset(self, row: Mapping[str, Any]) -> list[Message]:
        """Begin the episode of a row and return its opening."""
        options = {"split": row["split"], "index": int(row["index"])}
        _, info = self.env.reset(seed=int(row["seed"]), options=options)
        self.total, self.over, self.metrics = 0.0, False, {}
        return opening_messages(self.env.unwrapped, info)

    def step(self, text: str) -> tuple[list[Message], float]:
        """Play a turn and return the world's answer, as messages, and the reward of the turn."""
        _, reward, terminated, truncated, info = self.env.step(text)
        self.total += float(reward)
        self.over = terminated or truncated
        for name, value in info["reward_terms"].items():
            self.metrics[name] = self.metrics.get(name, 0.0) + value
        if self.over:
            self.metrics["is_success"] = float(info["is_success"])
        return info["messages"][1:], float(reward)


__getattr__ = renamed(__name__, {"LentEpisode": "ExternalEpisode"})
