"""A penalty for talking too long that begins before the limit does (DAPO, arXiv:2503.14476, section 3.4, eq. 13).

An episode that is cut off at the limit and scored 0 teaches the policy that its reasoning was wrong, when it was only
long. Leaving it out of the update teaches nothing. A penalty that grows over the last stretch says what is meant.
"""

from __future__ import annotations

from agent_gym.errors import ConfigError


def overlong_penalty(length: int, limit: int, buffer: int) -> float:
    """Return what to add to the reward of an episode of this length.

    Args:
        length: tokens, counted as `limit` counts them.
        limit: the length at which the whole penalty is due.
        buffer: tokens before the limit over which the penalty grows.

    Returns:
        0 up to `limit - buffer`, from there linearly down to -1 at `limit`, and -1 beyond.

    Raises:
        ConfigError: for a buffer that does not lie within the limit.
    """
    if not 0 < buffer <= limit:
        raise ConfigError(f"the over-long buffer is {buffer} tokens; it must be at least 1 and at most {limit}")
    return min(0.0, max(-1.0, (limit - buffer - length) / buffer))
