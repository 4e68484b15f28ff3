"""The games of ALFWorld's speedrun: short enough, and in words that its tokenizer has."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import pytest

import agent_gym  # noqa: F401  (registers the ids)

pytest.importorskip("trl")

from agent_gym.examples.presets import get_preset  # noqa: E402

PRESET = get_preset("alfworld")


@pytest.fixture(scope="module")
def env() -> Any:
    return gymnasium.make(PRESET.env_id, **PRESET.env_kwargs).unwrapped


@pytest.mark.parametrize("split", ["train", PRESET.dev_split, PRESET.test_split])
def test_who_searches_wins_in_time_and_every_name_is_a_token(env: Any, split: str) -> None:
    frames = PRESET.tiny["frames"]
    for index in range(120):
        said, over, info = [env.reset(options={"split": split, "index": index})[0]], False, {}
        while not over:
            page, _, terminated, truncated, info = env.step(env.expert_action("searching"))
            said.append(page)
            over = terminated or truncated
        assert info["is_success"], (split, index)
        names = set(re.findall(r"[a-z]+ \d+", " ".join(said)))
        assert names <= set(frames), names - set(frames)
