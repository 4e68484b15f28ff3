"""OpenEnv 0.10 (github.com/huggingface/OpenEnv): an environment of agent_gym as the server that OpenEnv expects.

    # server/app.py, of a folder that `openenv push` publishes; or: uvicorn server.app:app
    from agent_gym.contrib.openenv import openenv_app
    app = openenv_app("AgentR1/GSM8K-v0")

Its clients reset with `split`, `index` and `seed`, and step with `{"text": ...}`. Each session has its own environment.
"""

from __future__ import annotations

from typing import Any

from agent_gym.contrib.lending import ExternalEpisode, Row
from agent_gym.errors import require

types: Any = require("openenv.core.env_server.types", "openenv")
interfaces: Any = require("openenv.core.env_server.interfaces", "openenv")


class TextAction(types.Action):
    """A turn of the policy."""

    text: str


class TextObservation(types.Observation):
    """The world's answer: chat messages; `metadata` has the reward terms, and at the end `is_success`."""

    messages: list[dict[str, Any]] = []


def openenv_class(env_id: str, **env_kwargs: Any) -> type:
    """Return an `Environment` of OpenEnv that plays this one, with OpenEnv's discovery of tasks."""

    class AgentGymEnvironment(interfaces.Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._episode = ExternalEpisode(env_id, env_kwargs)
            self._state = types.State()

        def reset(self, seed: int | None = None, episode_id: str | None = None, **task: Any) -> Any:
            env = self._episode.env.unwrapped
            split = task.get("split") or env.split
            index, size = task.get("index"), len(env.tasks[split]) if split in env.tasks else 1
            if index is None:
                index = int(env.np_random.integers(size)) if seed is None else seed % size
            row: Row = {"split": split, "index": index, "seed": index if seed is None else seed}
            self._state = types.State(episode_id=episode_id, step_count=0)
            return TextObservation(messages=self._episode.reset(row))

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            answers, reward = self._episode.step(action.text)
            self._state.step_count += 1
            return TextObservation(
                messages=answers, reward=reward, done=self._episode.over, metadata={**self._episode.metrics}
            )

        @property
        def state(self) -> Any:
            return self._state

        def list_splits(self) -> list[str]:
            return list(self._episode.env.unwrapped.tasks)

        def num_tasks(self, split: str) -> int:
            return len(self._episode.env.unwrapped.tasks[split])

        def get_task(self, split: str, index: int) -> Row:
            if not 0 <= index < self.num_tasks(split):
                raise IndexError(f"split {split!r} has {self.num_tasks(split)} tasks")
            return {"id": f"{split}/{index}", "index": index}

        def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Row]:
            return [self.get_task(split, index) for index in range(self.num_tasks(split))[start:stop]]

        def list_tasks(self, split: str) -> list[Row]:
            return self.get_task_range(split, 0, 1000)  # a preview, which the protocol permits

        def close(self) -> None:
            self._episode.env.close()

    return AgentGymEnvironment


def openenv_app(env_id: str, *, sessions: int = 64, **env_kwargs: Any) -> Any:
    """Return the FastAPI application that serves an environment, with up to so many sessions at once.

    Raises:
        ConfigError: if openenv is not installed.
    """
    server = require("openenv.core.env_server.http_server", "openenv")
    made = openenv_class(env_id, **env_kwargs)
    return server.create_fastapi_app(made, TextAction, TextObservation, max_concurrent_envs=sessions)
