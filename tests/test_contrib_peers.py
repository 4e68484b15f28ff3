"""The bridge to GEM, against the real package, where it is installed.

It does not get along with the trainers' pins, so that it has an environment of its own: `tests/setup_interop.sh`
makes it and runs this file in it.
"""

from __future__ import annotations

import random
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import pytest

from agent_gym import ConfigError
from agent_gym.contrib.gem import FromGem, to_gem
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


def test_what_is_not_installed_is_named() -> None:
    if find_spec("gem") is not None:
        pytest.skip("gem is installed")
    with pytest.raises(ConfigError, match="needs the package 'gem"):
        to_gem(GSM8K)
