"""The ids that the conformance tests play, and what encodes for each."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from agent_gym.images import images_of
from agent_gym.registry import ENVS

IDS = [entry.id for entry in ENVS if entry.needs is None]
"""The ids that can be made without arguments."""
every_id = pytest.mark.parametrize("env_id", IDS)


def encoder_of(env_id: str, tokenizer: Any) -> Any:
    """A tokenizer, or a processor for an environment that shows images."""
    if not images_of(gymnasium.make(env_id).reset(seed=0)[1]["messages"]):
        return tokenizer
    from vision_tools import tiny_processor

    return tiny_processor()
