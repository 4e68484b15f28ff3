"""Where the time of playing went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RolloutStats:
    """Where the time of playing went; seconds of the driving thread."""

    wall_seconds: float = 0.0
    engine_seconds: float = 0.0  # inside the policy, that is its `submit` and `poll`
    wait_seconds: float = 0.0  # no generation was running, and environments or the judge were busy
    sampled_tokens: int = 0

    @property
    def overhead_seconds(self) -> float:
        return self.wall_seconds - self.engine_seconds - self.wait_seconds

    @property
    def tokens_per_second(self) -> float:
        return self.sampled_tokens / self.wall_seconds if self.wall_seconds else 0.0

    def metrics(self) -> dict[str, float]:
        """Return the same under the names of the training log."""
        return {
            "time/rollout": self.wall_seconds,
            "time/engine": self.engine_seconds,
            "time/env_wait": self.wait_seconds,
            "time/rollout_overhead": self.overhead_seconds,
            "rollout/tokens_per_s": self.tokens_per_second,
        }
