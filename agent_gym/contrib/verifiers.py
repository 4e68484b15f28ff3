"""verifiers 0.4 (github.com/PrimeIntellect-ai/verifiers), its v1: a task set, and an environment that plays the user.

A run names a task set by the name of a module that exports one, at the top level. Two lines make it:

    # my_gsm8k.py
    from agent_gym.contrib.verifiers import AgentGymEnv, AgentGymTaskset
    __all__ = ["AgentGymEnv", "AgentGymTaskset"]

and `vf-eval --env.taskset.id my_gsm8k --env.taskset.env-id AgentR1/GSM8K-v0 --env.player.harness.id null` runs it, with
`--env.player.runtime.type subprocess` on this machine. The world's answers are user messages; calls are text in the
environment's own format, which the prompt describes. Other harnesses than `null` bring their own tools, of which the
environment knows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from agent_gym.contrib.lending import ExternalEpisode, task_rows
from agent_gym.errors import require

vf: Any = require("verifiers.v1", "verifiers")


class AgentGymData(vf.TaskData):
    """A task: the id and arguments of the environment, and the row that names the task."""

    env_id: str
    env_kwargs: dict[str, Any]
    row: dict[str, Any]


class AgentGymConfig(vf.TasksetConfig):
    """The settings of a run: `--env.taskset.env-id`, `.split`, `.tasks`, `.seed`, `.env-kwargs`."""

    env_id: str = ""
    env_kwargs: dict[str, Any] = {}
    split: str = "train"
    tasks: int = 100
    seed: int = 0


class AgentGymTask(vf.Task[AgentGymData]):
    """The data alone: the environment scores."""


class AgentGymTaskset(vf.Taskset[AgentGymTask, AgentGymConfig]):
    """The tasks of one split. The prompt is part of the task, so that verifiers' keys name the task by its words."""

    def load(self) -> Iterator[AgentGymTask]:
        """Yield the tasks; `ConfigError` if there are fewer than asked for."""
        config = self.config
        episode = ExternalEpisode(config.env_id, config.env_kwargs)
        for row in task_rows(config.env_id, config.split, config.tasks, config.seed, config.env_kwargs):
            *system, question = episode.reset(row)
            yield AgentGymTask(
                AgentGymData(
                    name=f"{config.env_id}/{config.split}/{row['index']}",
                    system_prompt="\n\n".join(message["content"] for message in system) or None,
                    prompt=question["content"],
                    env_id=config.env_id,
                    env_kwargs=config.env_kwargs,
                    row=row,
                ),
                config.task,
            )


class AgentGymEnvConfig(vf.EnvConfig):
    """One seat: the policy, `--env.player.*`."""

    player: vf.AgentConfig = vf.AgentConfig()


class AgentGymEnv(vf.Env[AgentGymEnvConfig]):
    """Plays an environment of agent_gym as the user of the conversation; pays its reward and logs its terms."""

    async def run(self, task: Any, agents: Any) -> None:
        """Play one episode."""
        episode = ExternalEpisode(task.data.env_id, task.data.env_kwargs)
        await asyncio.to_thread(episode.reset, task.data.row)
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                # `last_reply` is stripped: whether a reply ends in white space is lost here.
                answers, _ = await asyncio.to_thread(episode.step, segment.last_reply)
                if episode.over:
                    break
                segment = await interaction.turn("\n".join(message["content"] for message in answers))
        interaction.trace.record_reward("agent_gym", episode.total)
        for name, value in episode.metrics.items():
            interaction.trace.record_metric(name, value)
        episode.env.close()
