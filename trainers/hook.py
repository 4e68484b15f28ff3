"""`Hook`: the interface through which a feature joins the training step, without code in the step itself.

A rollout passes through the stages of `AgentGRPOTrainer`:

    play      episodes with the current weights
    select    the groups that are trained on
    share     each episode to the rank that trains on it
    lay_out   rows of tokens, padded to one batch
    score     logprobs before the first update
    credit    advantages
    log       means over the episodes

After each stage every hook is called with the `RolloutBatch`. A hook is also a callback of transformers. The features
of this package are in hooks/, where each adds itself if its setting is on; other hooks are given as `callbacks=`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainerCallback

from agent_gym.rollout import Episode, EpisodeSpec
from agent_gym.trainers.batch import Batch, TrainingEpisode
from agent_gym.trainers.credit import Estimate, Timeline

STAGES = ("play", "select", "share", "lay_out", "score", "credit", "log")

TokenCredit = Mapping[str, Sequence[float]]
"""One number for each sampled token of an episode: "advantages", and "values" with a critic."""


@dataclass
class RolloutBatch:
    """The state of a rollout from its tasks to its batch. Each stage fills the fields that later stages read."""

    rows: Sequence[Mapping[str, Any]]  # this rank's rows of the data set, each task once per member of its group
    number: int  # the number of earlier rollouts in the run
    seed: int  # base of the sampling seeds
    episodes: list[Episode] = field(default_factory=list)  # played by this rank, greedy episodes included
    returns: dict[int, list[float]] = field(default_factory=dict)  # by group, of all ranks
    source_of: dict[int, int] = field(default_factory=dict)  # environment of each group, see `source_number`
    played: int = 0  # the number of episodes of all ranks, failed ones included
    groups: set[int] = field(default_factory=set)  # to be trained on, of all ranks
    trained: set[int] = field(default_factory=set)  # numbers of this rank's episodes that are in the loss
    share: list[TrainingEpisode] = field(default_factory=list)  # of this rank, in the order of `episode_of`
    batch: Batch = field(default_factory=dict)
    credit: dict[int, TokenCredit] = field(default_factory=dict)  # of this rank's share, by the number of the episode


class Hook(TrainerCallback):
    """The methods of a feature in a training step; each does nothing by default.

    All ranks call the hooks in the same order, so a hook may exchange values between ranks.

    Attributes:
        trainer: the trainer, set when it is constructed.
        needs_old_logps: whether rows are scored before the first update.
        models: further models that read rows; each must support the layout of the rows.
    """

    trainer: Any = None
    needs_old_logps = False
    models: Sequence[Any] = ()

    # Episodes.

    def specs(self, specs: list[EpisodeSpec]) -> list[EpisodeSpec]:
        """Return the episodes that this rank plays, in place of the episodes of the sampler's tasks."""
        return specs

    def after_episodes(self, episodes: Sequence[Episode]) -> None:
        """React to episodes of training or evaluation that have just been played."""

    def after_evaluation(self, prefix: str, episodes: Sequence[Episode], seconds: Mapping[str, float]) -> None:
        """React to an evaluation that took `seconds` and whose metrics begin with `prefix`."""

    def on_episode(self, kept: TrainingEpisode, episode: Episode) -> None:
        """Change an episode that is kept for training."""

    # The stages of a rollout.

    def after_play(self, rollout: RolloutBatch) -> None: ...

    def after_select(self, rollout: RolloutBatch) -> None: ...

    def after_share(self, rollout: RolloutBatch) -> None: ...

    def after_lay_out(self, rollout: RolloutBatch) -> None: ...

    def after_score(self, rollout: RolloutBatch) -> None: ...

    def on_estimate(self, estimate: Estimate, batch: Batch, timeline: Timeline) -> Estimate:
        """Return the advantages of this rank's episodes, in place of the estimator's."""
        return estimate

    def after_credit(self, rollout: RolloutBatch) -> None: ...

    def after_log(self, rollout: RolloutBatch) -> None: ...

    # The update.

    def after_forward(self, places: torch.Tensor) -> None:
        """React to a forward pass over tokens at these places (M,); tokens at the same place were computed once."""

    def before_loss(self, inputs: Batch) -> Batch:
        """Return the rows on which the loss of the policy is computed."""
        return inputs

    def on_loss(self, scores: Any, inputs: Batch) -> torch.Tensor | None:
        """Return a term to add to the loss of the rows (`rows.Scores`), or None."""
        return None

    def after_backward(self, metrics: Mapping[str, float], seconds: float) -> dict[str, float]:
        """React to the passes over a minibatch, given its means over all ranks; return further metrics."""
        return {}
