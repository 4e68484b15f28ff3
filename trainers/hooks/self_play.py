"""Self-play: after this hook each role that the policy played in an episode is an episode (`rollout.roles`)."""

from __future__ import annotations

from typing import Any

from agent_gym.distributed import gather_items
from agent_gym.errors import ConfigError
from agent_gym.rollout import by_role
from agent_gym.trainers.hook import Hook, RolloutBatch
from agent_gym.trainers.schedule import without_greedy


class SelfPlay(Hook):
    """Divides episodes by roles, and multiplies `trainer.rollout_tokens` by the mean number of roles."""

    def __init__(self, trainer: Any) -> None:
        self._tokens = trainer.args.rollout_tokens  # the number for episodes without roles

    def after_play(self, rollout: RolloutBatch) -> None:
        trainer = self.trainer
        roles = gather_items([max(1, len(episode.roles)) for episode in without_greedy(rollout.episodes)])
        trainer.rollout_tokens = self._tokens * sum(roles) / len(roles)
        if not any(episode.roles for episode in rollout.episodes):
            return
        if trainer.args.max_refills:
            raise ConfigError(
                "max_refills replaces tasks by their groups, and in self-play each role has one: leave it"
            )
        if trainer.judge is not None:
            raise ConfigError("judge scores whole episodes, and in self-play each role has a reward: leave it")
        rollout.episodes = [part for episode in rollout.episodes for part in by_role(episode)]


def attach(trainer: Any) -> None:
    """Attach always: only a played episode shows whether its environment has roles."""
    trainer.add_callback(SelfPlay(trainer))
