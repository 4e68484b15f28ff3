"""`Hook`: how a feature joins the training step without a place in its path.

A rollout goes through the stages of `AgentGRPOTrainer`:

    play      episodes with the current weights
    select    the groups that are trained on
    share     each episode to the process that trains on it
    lay_out   rows of tokens, padded to one batch
    score     logprobs before the first update
    credit    advantages
    log       means over the episodes

After each stage every hook is called with the `RolloutBatch`. A hook is a callback of transformers, too. Features of
this package are in hooks/, where each adds itself if its setting asks for it; others are given as `callbacks=`.
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
"""One number for each sampled token of an episode: "advantages", and with a critic "values"."""


@dataclass
class RolloutBatch:
    """A rollout on its way from tasks to a batch. A stage fills the fields that later stages read."""

    rows: Sequence[Mapping[str, Any]]  # this process's rows of the data set, each task once per member of its group
    number: int  # rollouts before this one in the run
    seed: int  # base of the sampling seeds
    episodes: list[Episode] = field(default_factory=list)  # played by this process, greedy ones included
    returns: dict[int, list[float]] = field(default_factory=dict)  # by group, of all processes
    source_of: dict[int, int] = field(default_factory=dict)  # environment of each group, see `source_number`
    groups: set[int] = field(default_factory=set)  # to be trained on, of all processes
    trained: set[int] = field(default_factory=set)  # numbers of this process's episodes that are in the loss
    share: list[TrainingEpisode] = field(default_factory=list)  # of this process, in the order of `episode_of`
    batch: Batch = field(default_factory=dict)
    credit: dict[int, TokenCredit] = field(default_factory=dict)  # by number of the episode, of this process's share


class Hook(TrainerCallback):
    """What a feature may do in a training step; each method does nothing by default.

    All processes call the hooks in the same order, so that a hook may exchange values between processes.

    Attributes:
        trainer: the trainer, from its construction on.
        needs_old_logps: whether rows are scored before the first update.
        models: further models that read rows; each has to support the layout of the rows.
    """

    trainer: Any = None
    needs_old_logps = False
    models: Sequence[Any] = ()

    # Episodes.

    def specs(self, specs: list[EpisodeSpec]) -> list[EpisodeSpec]:
        """Return the episodes of this process that are played, in place of those of the sampler's tasks."""
        return specs

    def after_episodes(self, episodes: Sequence[Episode]) -> None:
        """Follow episodes of training or evaluation that have just been played."""

    def after_evaluation(self, prefix: str, episodes: Sequence[Episode], seconds: Mapping[str, float]) -> None:
        """Follow an evaluation, whose metrics begin with `prefix`, and which took so long."""

    def on_episode(self, kept: TrainingEpisode, episode: Episode) -> None:
        """Change an episode that is kept for training."""

    # The stages of a rollout.

    def after_play(self, rollout: RolloutBatch) -> None: ...

    def after_select(self, rollout: RolloutBatch) -> None: ...

    def after_share(self, rollout: RolloutBatch) -> None: ...

    def after_lay_out(self, rollout: RolloutBatch) -> None: ...

    def after_score(self, rollout: RolloutBatch) -> None: ...

    def on_estimate(self, estimate: Estimate, batch: Batch, timeline: Timeline) -> Estimate:
        """Return the advantages of this process's episodes in place of the estimator's."""
        return estimate

    def after_credit(self, rollout: RolloutBatch) -> None: ...

    def after_log(self, rollout: RolloutBatch) -> None: ...

    # The update.

    def after_forward(self, places: torch.Tensor) -> None:
        """Follow a forward pass over tokens at these places (M,); tokens at the same place were computed once."""

    def before_loss(self, inputs: Batch) -> Batch:
        """Return the rows of which the loss of the policy is computed."""
        return inputs

    def on_loss(self, scores: Any, inputs: Batch) -> torch.Tensor | None:
        """Return a term that is added to the loss of the rows (`rows.Scores`), if any."""
        return None

    def after_backward(self, metrics: Mapping[str, float], seconds: float) -> dict[str, float]:
        """Follow the passes over a minibatch, with its means over all processes; return further metrics."""
        return {}
