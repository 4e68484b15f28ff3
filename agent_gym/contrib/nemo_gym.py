"""NeMo Gym 0.7 (github.com/NVIDIA-NeMo/Gym): a resources server that plays an environment, for its `gymnasium_agent`.

    # resources_servers/agent_gym_tasks/app.py
    from agent_gym.contrib.nemo_gym import nemo_gym_server

    if __name__ == "__main__":
        nemo_gym_server("AgentR1/GSM8K-v0").run_webserver()

`nemo_gym_rows` makes the lines of its data set. A session of NeMo Gym is an episode.
"""

from __future__ import annotations

import asyncio
from typing import Any

from agent_gym.contrib.lending import ExternalEpisode, Row, task_rows
from agent_gym.errors import require


def nemo_gym_rows(
    env_id: str, agent: str, *, split: str = "train", tasks: int = 1000, seed: int = 0, **env_kwargs: Any
) -> list[Row]:
    """Return lines of a data set of NeMo Gym; `agent` is the name of the `gymnasium_agent` in its configuration."""
    episode, lines = ExternalEpisode(env_id, env_kwargs), []
    for row in task_rows(env_id, split, tasks, seed, env_kwargs):
        opening = [dict(message) for message in episode.reset(row)]
        reference = {"type": "responses_api_agents", "name": agent}
        lines.append({"responses_create_params": {"input": opening}, "task": row, "agent_ref": reference})
    return lines


def nemo_gym_server(env_id: str, **env_kwargs: Any) -> type:
    """Return the class of a server that plays an environment; `ConfigError` if NeMo Gym is not installed."""
    base: Any = require("resources_servers.gymnasium", "nemo-gym")

    class AgentGymServer(base.GymnasiumServer):
        async def reset(self, metadata: dict, session_id: str | None = None) -> tuple[str | None, dict]:
            episode = await asyncio.to_thread(ExternalEpisode, env_id, env_kwargs)
            await asyncio.to_thread(episode.reset, metadata["task"])
            self.session_state[session_id] = episode
            return None, {}  # the row has the opening already

        async def step(
            self, action: Any, metadata: dict, session_id: str | None = None
        ) -> tuple[str | None, float, bool, bool, dict]:
            episode = self.session_state[session_id]
            answers, reward = await asyncio.to_thread(episode.step, base.extract_text(action))
            text = "\n".join(message["content"] for message in answers)
            # An empty observation ends the episode there, so that a world that says nothing says a space.
            return None if episode.over else text or " ", reward, episode.over, False, {**episode.metrics}

        def _cleanup_session(self, session_id: str | None) -> None:
            if session_id in self.session_state:
                self.session_state[session_id].env.close()
            super()._cleanup_session(session_id)

    return AgentGymServer
