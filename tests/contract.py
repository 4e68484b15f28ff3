"""The ids that the conformance tests play, beside what `agent_gym.testing` has for everybody."""

from __future__ import annotations

import pytest

from agent_gym.registry import ENVS
from agent_gym.testing import check_returned, expert_episode, leaves, play

__all__ = ["IDS", "check_returned", "every_id", "expert_episode", "leaves", "play"]

IDS = [entry.id for entry in ENVS if entry.needs is None]
"""The ids that can be made without arguments."""
every_id = pytest.mark.parametrize("env_id", IDS)
