"""Generators of the tasks: boards, maps, pairs of arms, and numbers with a target."""

from __future__ import annotations

import hashlib

_SPLITS = {0: "validation", 1: "test"}


def split_of(content: str) -> str:
    """Return the split of a task by a hash of its content: a tenth each is of validation and test."""
    return _SPLITS.get(hashlib.blake2b(content.encode(), digest_size=4).digest()[0] % 10, "train")
