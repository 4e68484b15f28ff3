"""DAPO's soft penalty on turns whose length comes close to `max_turn_tokens` (`losses.overlong_penalty`)."""

from __future__ import annotations

from typing import Any

from agent_gym.rollout import Episode
from agent_gym.trainers.batch import TrainingEpisode
from agent_gym.trainers.hook import Hook
from agent_gym.trainers.losses import overlong_penalty


class OverlongPenalty(Hook):
    """Subtracts the penalty from the outcome of each step."""

    def on_episode(self, kept: TrainingEpisode, episode: Episode) -> None:
        args = self.trainer.args
        for k in range(len(kept.outcome)):
            length = sum(int((row.step_of == k).sum()) for row in kept.rows)
            kept.outcome[k] += overlong_penalty(length, args.max_turn_tokens, args.overlong_buffer)


def attach(trainer: Any) -> None:
    """Attach with `overlong_buffer`."""
    if trainer.args.overlong_buffer:
        trainer.add_callback(OverlongPenalty())
