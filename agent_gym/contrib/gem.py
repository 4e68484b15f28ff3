"""GEM (github.com/axon-rl/gem): one string in, one string out, Gymnasium's five values without Gymnasium's class."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import gymnasium
import numpy as np

from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, require
from agent_gym.images import images_of
from agent_gym.tool_env import ToolEnv

# GEM draws a task from the seed: here a task is a seed, and a split a range of them.
SPLITS = {"train": range(100_000), "validation": range(100_000, 101_000), "test": range(101_000, 102_000)}


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
            return opening_text(self.env.unwrapped, info), info  # type: ignore[arg-type]

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


def opening_text(env: TextEnv, info: dict[str, Any]) -> str:
    """Return the messages of `reset` as one text, with the tools described where a chat template would have shown them.

    `ConfigError` if there are images, for which GEM has no place here.
    """
    if images_of(info["messages"]):
        raise ConfigError(f"{type(env).__name__} shows images, and adapters hand over text only")
    texts = [message["content"] for message in info["messages"]]
    if isinstance(env, ToolEnv) and env.tools and env.parser.in_templates:
        texts.insert(-1, env.parser.instructions(env.tool_schemas))
    return "\n\n".join(texts)


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
        self._success_reward = success_reward
        super().__init__(SPLITS, **{"max_turns": 100, **kwargs})

    def begin(self, task: Any) -> str:
        with _own_generators():
            observation, _ = self._gem.reset(seed=int(task))
        return str(observation)

    def respond(self, action: str) -> Reply:
        with _own_generators():
            observation, reward, terminated, truncated, _ = self._gem.step(action)
        over, reward = bool(terminated or truncated), float(reward)
        success = over and reward >= self._success_reward
        return Reply(str(observation), terms={"reward": reward}, terminated=over, success=success)


@contextmanager
def _own_generators() -> Iterator[None]:
    """Keep the process's random numbers as they are: GEM's `reset` seeds Python's and NumPy's global generators."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
