"""OpenEnv (github.com/meta-pytorch/OpenEnv): typed actions and observations, in process or behind a web server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar
from uuid import uuid4

import gymnasium

from agent_gym.contrib import SEED_SPLITS, opening_text
from agent_gym.env import Reply, TextEnv
from agent_gym.errors import EnvFailure, require


@cache
def openenv_types() -> tuple[type, type]:
    """Return `TextAction(text)` and `TextObservation(text, truncated, reward_terms)`, which `to_openenv` speaks.

    `ConfigError` if OpenEnv is not installed.
    """
    types = require("openenv.core.env_server.types", "openenv")
    from pydantic import create_model

    action = create_model("TextAction", __base__=types.Action, text=(str, ...))
    observation = create_model(
        "TextObservation", __base__=types.Observation, text=(str, ""), truncated=(bool, False), reward_terms=(dict, {})
    )
    return action, observation


def to_openenv(env_id: str, **env_kwargs: Any) -> Any:
    """Make an environment of agent_gym an OpenEnv `Environment`; `ConfigError` if OpenEnv is not installed.

    `openenv.core.env_server.http_server.create_fastapi_app(lambda: to_openenv(env_id), *openenv_types())` serves it.
    `reset(split=..., index=...)` picks a task. The first observation holds the system prompt and the tools as well.
    """
    interfaces = require("openenv.core.env_server.interfaces", "openenv")
    types = require("openenv.core.env_server.types", "openenv")
    _, observation_type = openenv_types()

    class OpenEnv(interfaces.Environment):  # type: ignore[name-defined]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.env = gymnasium.make(env_id, **env_kwargs)
            self._state = types.State(episode_id=None, step_count=0)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Any:
            _, info = self.env.reset(seed=seed, options=options)
            self._state = types.State(episode_id=episode_id or uuid4().hex, step_count=0)
            return observation_type(text=opening_text(self.env.unwrapped, info))  # type: ignore[arg-type]

        def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
            text, reward, terminated, truncated, info = self.env.step(action.text)
            self._state.step_count += 1
            return observation_type(
                text=text,
                reward=float(reward),
                done=terminated or truncated,
                truncated=truncated,
                reward_terms=info["reward_terms"],
            )

        @property
        def state(self) -> Any:
            return self._state

        def close(self) -> None:
            self.env.close()

    return OpenEnv()


class FromOpenEnv(TextEnv):
    """An environment of OpenEnv, in this process or behind a server.

        FromOpenEnv(EchoEnvironment, to_action=lambda text: EchoAction(message=text), to_text=lambda o: o.echoed)
        FromOpenEnv(lambda: EchoEnv(base_url="http://127.0.0.1:8000").sync(), to_action=..., to_text=...)

    `reward` (weight 1) is OpenEnv's own; none counts as 0. `terminated` when the observation is `done`: OpenEnv does
    not distinguish the end of a task from a limit.

    Args:
        make: makes an `Environment` or a synchronous client.
        to_action: from the policy's text to an action. A `ValueError` (pydantic's are such) is the policy's mistake.
        to_text: from an observation to what the policy reads.
        success_reward: an episode whose last reward is at least this counts as solved.
        **kwargs: see `TextEnv`.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        to_action: Callable[[str], Any],
        to_text: Callable[[Any], str],
        success_reward: float = 1.0,
        **kwargs: Any,
    ) -> None:
        self._openenv = make()
        self._to_action, self._to_text, self._success_reward = to_action, to_text, success_reward
        super().__init__(SEED_SPLITS, **{"max_turns": 100, **kwargs})

    def begin(self, task: Any) -> str:
        observation, _, _ = self._ask(self._openenv.reset, seed=int(task))
        return self._to_text(observation)

    def respond(self, action: str) -> Reply:
        try:
            typed = self._to_action(action)
        except ValueError as error:
            return Reply(f"Error: {str(error)[:300]}", terms={"reward": 0.0}, error="not an action")
        observation, reward, done = self._ask(self._openenv.step, typed)
        success = done and reward >= self._success_reward
        return Reply(self._to_text(observation), terms={"reward": reward}, terminated=done, success=success)

    def close(self) -> None:
        self._openenv.close()

    def _ask(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float, bool]:
        """A client answers with a `StepResult` around the observation, an environment with the observation itself."""
        try:
            result = call(*args, **kwargs)
        except Exception as error:
            raise EnvFailure(f"OpenEnv's environment broke: {type(error).__name__}: {error}") from error
        return getattr(result, "observation", result), float(result.reward or 0.0), bool(result.done)
