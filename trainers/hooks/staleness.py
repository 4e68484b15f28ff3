"""The staleness of the sampled tokens of a rollout, in optimizer steps after the weights that sampled them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from agent_gym.distributed import gather
from agent_gym.trainers.hook import Hook, RolloutBatch
from agent_gym.trainers.schedule import without_greedy


class Staleness(Hook):
    """Logs the mean, median, 90% quantile and maximum of the staleness of a token, over all processes."""

    def after_play(self, rollout: RolloutBatch) -> None:
        step, tokens = self.trainer.state.global_step, Counter[int]()
        for episode in without_greedy(rollout.episodes):
            for version, count in (run for turn in episode.steps for run in turn.versions):
                tokens[step - version] += count
        ages = sum(gather(tokens), Counter[int]()) or Counter({0: 1})
        middle, most = np.quantile([*ages], [0.5, 0.9], weights=[*ages.values()], method="inverted_cdf").tolist()
        self.trainer.record(
            {
                "rollout/staleness": sum(age * count for age, count in ages.items()) / ages.total(),
                "rollout/staleness_p50": middle,
                "rollout/staleness_p90": most,
                "rollout/staleness_max": max(ages),
            }
        )


def attach(trainer: Any) -> None:
    """Attach always."""
    trainer.add_callback(Staleness())
