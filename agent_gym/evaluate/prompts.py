"""Distinct prompts: the unit that an evaluation draws, and the unit of its intervals.

A prompt is the policy's text before its first turn: the opening messages with their images, and the tools. Tasks that
differ in hidden facts alone are one prompt to a policy, and a greedy policy begins all of them alike. So counts and
intervals are by prompt, and fewer than `FEW` of them is a warning on the table itself: an interval over a handful of
units says little, however many episodes were played.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable
from typing import Any

from agent_gym.images import Image
from agent_gym.rollout import Episode
from agent_gym.rollout.trajectories import json_ready

FEW = 64
"""Distinct prompts below which a table carries a warning."""


def prompt_of(episode: Episode) -> Hashable:
    """Return a key that two episodes share if their policies read the same before the first turn.

    An episode that has no messages (it failed before them) has its task for a key.
    """
    spec = episode.spec
    if not episode.messages:
        return spec.env_id, spec.split, spec.index, spec.seed  # without an index the seed picks the task
    read = json.dumps([spec.env_id, episode.initial_messages, episode.tools], sort_keys=True, default=_plain)
    return hashlib.sha256(read.encode()).hexdigest()


def few_prompts(prompts: int, tasks: int, what: str) -> str:
    """Return the warning that belongs to `what`, or "" for `FEW` distinct prompts or more."""
    if prompts >= FEW or not tasks:
        return ""
    return (
        f"warning: {what}: {tasks} tasks are {count_of(prompts)}; below {FEW} an interval says little about other "
        "prompts"
    )


def count_of(prompts: int) -> str:
    """Write how many distinct prompts there are."""
    return f"{prompts} distinct prompt{'' if prompts == 1 else 's'}"


def _plain(value: Any) -> Any:
    return value.digest if isinstance(value, Image) else json_ready(value)
