"""The bridges to GEM and OpenEnv, against the real packages, where they are installed.

They do not get along with the trainers' pins, so that they have an environment of their own: `tests/setup_interop.sh`
makes it and runs this file in it.
"""

from __future__ import annotations

import functools
import random
import threading
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import pytest
from process_tools import until

from agent_gym import ConfigError, EnvFailure
from agent_gym.contrib.gem import FromGem, to_gem
from agent_gym.contrib.openenv import FromOpenEnv, openenv_types, to_openenv
from agent_gym.testing import check_text_env, expert_episode, policy_texts

GSM8K = "AgentR1/GSM8K-v0"


def expert_actions(seed: int, **options: Any) -> list[str]:
    return policy_texts(expert_episode(gymnasium.make(GSM8K), seed=seed, options=options))


class TestGem:
    @pytest.fixture(autouse=True)
    def _needs_gem(self) -> None:
        pytest.importorskip("gem")

    def test_an_env_of_ours_is_one_of_gems(self) -> None:
        import gem.core

        env = to_gem(GSM8K)
        assert isinstance(env, gem.core.Env)
        observation, _ = env.reset(seed=3)
        question = gymnasium.make(GSM8K).reset(seed=3)[1]["messages"][-1]["content"]
        assert "calculator" in observation and observation.endswith(question)
        total = 0.0
        for action in expert_actions(3):
            _, reward, terminated, truncated, info = env.step(action)
            total += reward
        assert terminated and not truncated and info["is_success"] and total >= 1.0
        assert env.spawn(max_turns=2).env.unwrapped.max_turns == 2
        first, *others = expert_actions(3)
        for seed in (3, None):
            env.reset(seed)
            env.step(first)
            copy = env.spawn(same_state=True)
            assert copy.env.unwrapped.transcript.text == env.env.unwrapped.transcript.text
            assert [copy.step(action)[:4] for action in others] == [env.step(action)[:4] for action in others]

    def test_an_env_of_gems_is_one_of_ours(self) -> None:
        check_text_env(lambda: FromGem("game:GuessTheNumber-v0-easy"), expert=False)
        env = FromGem("game:GuessTheNumber-v0-easy")
        random.seed(1)
        np.random.seed(1)
        before = random.getstate(), np.random.get_state()[1].tolist()
        env.reset(seed=0, options={"split": "test", "index": 5})
        low, high, over = 1, 10, False
        while not over:
            guess = (low + high) // 2
            observation, reward, terminated, truncated, info = env.step(f"\\boxed{{{guess}}}")
            low, high = (guess + 1, high) if "higher" in observation else (low, guess - 1)
            over = terminated or truncated
        assert info["is_success"] and reward == 1.0
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before
        with pytest.raises(ConfigError, match="game:Nothing"):
            FromGem("game:Nothing")


class TestOpenEnv:
    @pytest.fixture(autouse=True)
    def _needs_openenv(self) -> None:
        pytest.importorskip("openenv.core")

    def test_there_and_back_in_process(self) -> None:
        from openenv.core.env_server.interfaces import Environment

        assert isinstance(to_openenv(GSM8K), Environment)
        action, _ = openenv_types()
        make = functools.partial(
            FromOpenEnv,
            lambda: to_openenv(GSM8K),
            to_action=lambda text: action(text=text),
            to_text=lambda seen: seen.text,
        )
        check_text_env(make, expert=False)
        self.play(make())

    def play(self, env: Any) -> None:
        assert "calculator" in env.reset(options={"index": 7})[0]
        for text in expert_actions(7):
            _, reward, terminated, _, info = env.step(text)
        assert terminated and info["is_success"] and reward >= 1.0

    def test_through_a_server(self) -> None:
        uvicorn = pytest.importorskip("uvicorn")
        from openenv.core.env_server.http_server import create_fastapi_app
        from openenv.core.generic_client import GenericEnvClient

        app = create_fastapi_app(lambda: to_openenv(GSM8K), *openenv_types(), max_concurrent_envs=4)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until(lambda: server.started, 60)
        port = server.servers[0].sockets[0].getsockname()[1]
        env = FromOpenEnv(
            lambda: GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync(),
            to_action=lambda text: {"text": text},
            to_text=lambda seen: seen["text"],
        )
        try:
            self.play(env)
        finally:
            env.close()
            server.should_exit = True
            thread.join(20)
        with pytest.raises(EnvFailure, match="broke"):
            env.reset(seed=0)


@pytest.mark.parametrize(("module", "make"), [("gem", to_gem), ("openenv", to_openenv)])
def test_what_is_not_installed_is_named(module: str, make: Any) -> None:
    if find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    with pytest.raises(ConfigError, match=f"needs the package '{module}"):
        make(GSM8K)
