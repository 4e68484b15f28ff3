"""A greedy episode of each task as the baseline of its group (`remax`)."""

from __future__ import annotations

import dataclasses
from typing import Any

from agent_gym.distributed import gather_items
from agent_gym.rollout import Episode, EpisodeSpec
from agent_gym.trainers.batch import TrainingEpisode
from agent_gym.trainers.hook import Hook, RolloutBatch


class GreedyBaselines(Hook):
    """Plays a greedy episode with the first member of each group, and drops a group whose greedy episode failed."""

    def specs(self, specs: list[EpisodeSpec]) -> list[EpisodeSpec]:
        size = self.trainer.num_generations
        return specs + [dataclasses.replace(spec, greedy=True, member=size) for spec in specs if spec.member == 0]

    def after_select(self, rollout: RolloutBatch) -> None:
        greedy = gather_items([(e.spec.group, e.reward) for e in rollout.episodes if e.spec.greedy])
        rollout.groups &= {group for group, reward in greedy if reward == reward}

    def on_episode(self, kept: TrainingEpisode, episode: Episode) -> None:
        if not kept.greedy:
            return
        # The outcome is compared with a baseline. Normalised process rewards have no baseline, and the greedy episode
        # must not change their scale.
        if self.trainer.args.process_norm is not None:
            kept.process = [0.0] * len(kept.process)
        # The tokens of the greedy episode are scored only where the return depends on them.
        if not self.trainer.kl_in_reward:
            kept.rows = []


def attach(trainer: Any) -> None:
    """Attach for an estimator that needs baselines."""
    if trainer.estimator.needs_baseline:
        trainer.add_callback(GreedyBaselines())
