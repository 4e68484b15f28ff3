"""Games as environments of PettingZoo (github.com/Farama-Foundation/PettingZoo), by its AEC interface.

    from agent_gym.contrib.pettingzoo import to_aec
    env = to_aec("AgentR1/Bargain-v0")

An agent observes the texts of others to its role since it acted last, as `{"text": ...}`, and acts by a text, as in the
environment that the game is of. A text alone would do, but PettingZoo's own test wants a `dtype` of each observation
that is not a dict. `pettingzoo.utils.turn_based_aec_to_parallel` makes a parallel environment of it.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from agent_gym.errors import ConfigError, require
from agent_gym.players import PlayersEnv
from agent_gym.rollout import make_env


def to_aec(env_id: str, **env_kwargs: Any) -> Any:
    """Make the game of an environment a `pettingzoo.AECEnv`. The agents are its roles, and no other player takes part.

    `reset` takes the seed and the options of the environment (split, index, task).

    Raises:
        ConfigError: if PettingZoo is not installed, or the environment is not a `PlayersEnv`.
    """
    zoo = require("pettingzoo", "players")
    try:
        made: Any = make_env(env_id, {**env_kwargs, "opponent": "self"}).unwrapped
    except ConfigError as error:
        raise ConfigError(f"to_aec wants an agent_gym.players.PlayersEnv: {error}") from None
    if not isinstance(made, PlayersEnv):
        raise ConfigError(f"{env_id} is a {type(made).__name__}; to_aec wants an agent_gym.players.PlayersEnv")
    metadata = {"name": env_id, "render_modes": ["ansi"], "is_parallelizable": False}
    return type("GameAEC", (_Game, zoo.AECEnv), {"metadata": metadata})(made)


class _Game:
    """The methods of a game as an `AECEnv`, with which PettingZoo's class is joined once it is imported."""

    _accumulate_rewards: Any
    _was_dead_step: Any

    def __init__(self, env: PlayersEnv) -> None:
        super().__init__()
        self._env = env
        self.possible_agents, self.render_mode = [*env.roles], "ansi"
        self._space = gymnasium.spaces.Dict({"text": env.observation_space})

    def observation_space(self, agent: str) -> Any:
        return self._space

    def action_space(self, agent: str) -> Any:
        return self._env.action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        # PettingZoo's own test hands over options that no environment knows.
        known = {name: value for name, value in (options or {}).items() if name in ("split", "index", "task")}
        observation, info = self._env.reset(seed=seed, options=known)
        self.agents = [*self.possible_agents]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {"task_id": info["task_id"]} for agent in self.agents}
        self.agent_selection = self._env.role
        self._unread = {agent: self._env.game.opening(agent) for agent in self.agents}
        self._unread[self._env.role] = observation

    def observe(self, agent: str) -> dict[str, str]:
        return {"text": self._unread[agent]}

    def step(self, action: str | None) -> None:
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        acting = self.agent_selection
        self._cumulative_rewards[acting] = 0.0
        observation, _, terminated, truncated, info = self._env.step(str(action))
        self.rewards = {a: sum(info["role_terms"].get(a, {}).values()) for a in self.agents}
        self._accumulate_rewards()
        self.infos[acting]["error"] = info["error"]
        if terminated or truncated:
            self.terminations = dict.fromkeys(self.agents, terminated)
            self.truncations = dict.fromkeys(self.agents, not terminated)
            self._unread |= {agent: self._env.game.news(agent)[1] for agent in self.agents if agent != acting}
            self.agent_selection = next(agent for agent in self.agents if agent != acting)
        else:
            self.agent_selection, self._unread[self._env.role] = self._env.role, observation

    def render(self) -> str:
        return "\n".join(f"[{who}] {text}" for who, text in self._env.game.spoken)

    def close(self) -> None:
        self._env.close()
