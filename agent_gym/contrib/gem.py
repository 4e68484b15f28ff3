"""GEM (github.com/axon-rl/gem): one string in, one string out, Gymnasium's five values without Gymnasium's class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium

from agent_gym.contrib.gymnasium import SEEDS, OwnRandomness
from agent_gym.contrib.lending import opening_messages
from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, require


def to_gem(env_id: str, **env_kwargs: Any) -> Any:
    """Make an environment of agent_gym a `gem.Env`; `ConfigError` if GEM is not installed.

    Its first observation holds the system prompt and the tools as well, since GEM shows a policy nothing else.
    """
    core = require("gem.core", "gem")

    class GemEnv(core.Env):  # type: ignore[name-defined]
        def __init__(self) -> None:
            self.env = gymnasium.make(env_id, **env_kwargs)
            self._seed: int | None = None
            self._actions: list[str] = []

        def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
            # Drawn here if need be: with the seed and the actions a copy comes to the same state.
            self._seed = int(self.env.unwrapped.np_random.integers(2**31)) if seed is None else seed
            self._actions = []
            _, info = self.env.reset(seed=self._seed)
            opening = opening_messages(self.env.unwrapped, info)  # type: ignore[arg-type]
            return "\n\n".join(message["content"] for message in opening), info

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            observation, reward, terminated, truncated, info = self.env.step(action)
            self._actions.append(action)
            return observation, float(reward), terminated, truncated, info

        def spawn(self, same_state: bool = False, **kwargs: Any) -> Any:
            copy = to_gem(env_id, **{**env_kwargs, **kwargs})
            if same_state and self._seed is not None:
                copy.reset(self._seed)
                for action in self._actions:
                    copy.step(action)
            return copy

        def close(self) -> None:
            self.env.close()

    return GemEnv()


class FromGem(TextEnv):
    """An environment of GEM.

        gymnasium.register("Gem/Wordle-v0", entry_point=FromGem, kwargs={"gem_id": "game:Wordle-v0-easy"})

    The episode's task is GEM's seed, `reward` (weight 1) its own. `terminated` where GEM terminates or truncates.

    Args:
        gem_id: an id that `gem.make` knows.
        gem_kwargs: its arguments.
        success_reward: an episode whose last reward is at least this counts as solved.
        **kwargs: see `TextEnv`.

    Raises:
        ConfigError: if GEM is not installed, or does not know the id.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def __init__(
        self, gem_id: str, gem_kwargs: Mapping[str, Any] | None = None, *, success_reward: float = 1.0, **kwargs: Any
    ) -> None:
        gem = require("gem", "gem")
        try:
            self._gem = gem.make(gem_id, **(gem_kwargs or {}))
        except (KeyError, ValueError, TypeError) as error:
            raise ConfigError(f"GEM cannot make {gem_id!r}: {error}") from error
        self._success_reward, self._randomness = success_reward, OwnRandomness()
        super().__init__(SEEDS, **{"max_turns": 100, **kwargs})

    def begin(self, task: Any) -> str:
        with self._randomness.used():
            observation, _ = self._gem.reset(seed=int(task))
        return str(observation)

    def respond(self, action: str) -> Reply:
        with self._randomness.used():
            observation, reward, terminated, truncated, _ = self._gem.step(action)
        over, reward = bool(terminated or truncated), float(reward)
        success = over and reward >= self._success_reward
        return Reply(str(observation), terms={"reward": reward}, terminated=over, success=success)
