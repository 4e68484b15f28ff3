"""What a rollout may cost, what it did cost, and the seeds of its episodes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from agent_gym.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one episode. Reaching one truncates the episode; nothing is lost.

    Attributes:
        max_turn_tokens: tokens the policy may sample in one turn.
        max_tokens: tokens of one context, prompt and answers of the world included. It bounds each row and not their
            sum: an episode whose context is rewritten may sample more in all.
        max_turns: turns, besides the environment's own limit; summaries do not count.
        max_seconds: wall-clock time from reset on.
    """

    max_turn_tokens: int = 512
    max_tokens: int = 4096
    max_turns: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse limits under which nothing can happen."""
        for name in ("max_turn_tokens", "max_tokens", "max_turns", "max_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} is {value}; it must be positive")


@dataclass(slots=True)
class RolloutStats:
    """Where the time of one rollout went; seconds of the driving thread.

    Attributes:
        wall_seconds: all of it.
        engine_seconds: inside the policy, that is its `submit` and `poll`.
        wait_seconds: no generation was running and every environment was busy.
        sampled_tokens: tokens sampled by the policy.
    """

    wall_seconds: float = 0.0
    engine_seconds: float = 0.0
    wait_seconds: float = 0.0
    sampled_tokens: int = 0

    @property
    def overhead_seconds(self) -> float:
        """What the loop itself cost."""
        return self.wall_seconds - self.engine_seconds - self.wait_seconds

    @property
    def tokens_per_second(self) -> float:
        """Sampled tokens per second of wall-clock time."""
        return self.sampled_tokens / self.wall_seconds if self.wall_seconds else 0.0

    def metrics(self) -> dict[str, float]:
        """The same under the names of the training log."""
        return {
            "time/rollout": self.wall_seconds,
            "time/engine": self.engine_seconds,
            "time/env_wait": self.wait_seconds,
            "time/rollout_overhead": self.overhead_seconds,
            "rollout/tokens_per_s": self.tokens_per_second,
        }


def derive_seed(*parts: int) -> int:
    """Mix integers into one 31-bit seed; the same parts give the same seed everywhere."""
    # Not numpy's SeedSequence, which takes (3, 4) and (3, 4, 0) for the same.
    digest = hashlib.blake2b(",".join(str(int(part)) for part in parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1
