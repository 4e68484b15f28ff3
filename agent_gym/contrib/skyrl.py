"""SkyRL (github.com/NovaSky-AI/SkyRL): an environment of `skyrl_gym`, and the rows of its data set.

    rows = to_skyrl("AgentR1/GSM8K-v0", tasks=1000)           # in the entry point, and in its Ray task
    datasets.Dataset.from_list(rows).to_parquet("train.parquet")

SkyRL makes an environment per episode by the row's `env_class`, which has to be registered in each process that plays.
It shows no tools to the chat template, so that the system prompt describes them. Rewards stay at the turns that earned
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_gym.chat import Message
from agent_gym.contrib.lending import ExternalEpisode, Row, task_rows
from agent_gym.errors import require


def to_skyrl(env_id: str, *, split: str = "train", tasks: int = 1000, seed: int = 0, **env_kwargs: Any) -> list[Row]:
    """Register an environment with `skyrl_gym` under its id, and return rows of SkyRL's data set for its tasks.

    SkyRL's own `generator.max_turns` is not read: the environment's `max_turns` ends an episode.

    Raises:
        ConfigError: if skyrl-gym is not installed, or there are fewer tasks.
    """
    gym = require("skyrl_gym", "skyrl")
    base = require("skyrl_gym.envs.base_text_env", "skyrl").BaseTextEnv

    class SkyRLEnv(base):  # type: ignore[misc, valid-type]
        def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
            super().__init__()
            self._row = (extras or {})["task"]
            self._episode = ExternalEpisode(env_id, env_kwargs)

        def init(self, prompt: Any) -> tuple[list[Message], dict[str, Any]]:
            return self._episode.reset(self._row), {}

        def step(self, action: str) -> dict[str, Any]:
            answers, reward = self._episode.step(action)
            return {"observations": answers, "reward": reward, "done": self._episode.over, "metadata": {}}

        def get_metrics(self) -> dict[str, Any]:
            return self._episode.metrics

        def close(self) -> None:
            self._episode.env.close()

    gym.registry.pop(env_id, None)  # a notebook's cell runs again
    gym.register(env_id, entry_point=SkyRLEnv)
    # `init` makes the prompt anew; SkyRL wants one to filter by length.
    return [
        {"prompt": [{"role": "user", "content": ""}], "env_class": env_id, "task": row, "data_source": env_id}
        for row in task_rows(env_id, split, tasks, seed, env_kwargs)
    ]
