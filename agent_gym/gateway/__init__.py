"""Training and evaluating agents that one did not write: functions and programs that speak to a model server.

    env_id, env_kwargs = agent_env(my_agent, tasks=[{"question": "2+2", "answer": "4"}], reward=my_reward)
    make_specs(env_id, env_kwargs)        # as with any other environment

docs/gateway.md explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

from agent_gym.errors import ConfigError
from agent_gym.gateway.places import place_of

__all__ = ["ENV_ID", "agent_env"]

ENV_ID = f"{__name__}:AgentR1/Agent-v0"
"""The id of `AgentEnv`; it names this module, which registers it."""

if "AgentR1/Agent-v0" not in gymnasium.registry:
    gymnasium.register(
        "AgentR1/Agent-v0", f"{__name__}.env:AgentEnv", vector_entry_point="agent_gym.vector:AgentR1/Agent-v0"
    )

Rows = Sequence[Mapping[str, Any]]


def agent_env(
    agent: Callable[..., Any] | str | Sequence[str],
    tasks: Rows | Mapping[str, Rows] | str | None = None,
    reward: Callable[..., float] | str | None = None,
    **settings: Any,
) -> tuple[str, dict[str, Any]]:
    """Return the id and the arguments of the environment in which an agent plays.

    Args:
        agent: `async def agent(client, task)` or a plain function, with a client of the package openai; such a function
            as `module:function`; or a program, as a list of words.
        tasks: rows, rows by split (rows alone are "train"), or a file or folder of them.
        reward: `reward(task, result, transcript)`, or such a function as `module:function`.
        **settings: further arguments of `AgentEnv`, such as `world` instead of tasks and reward.

    Raises:
        ConfigError: for an agent that is none of these.
    """
    words = [agent] if isinstance(agent, str) else agent if isinstance(agent, list | tuple) else []
    if not callable(agent) and not (words and all(isinstance(word, str) for word in words)):
        raise ConfigError(f"agent is {agent!r:.80}; it must be a function, module:function, or a list of words")
    given: dict[str, Any] = {"tasks": tasks, "reward": reward}
    if isinstance(agent, list | tuple):
        settings["agent"] = [*agent]  # JSON as it is
    else:
        given["agent"] = agent
    named = {name: one if isinstance(one, str) else place_of(one) for name, one in given.items() if one is not None}
    return ENV_ID, {**named, **settings}
