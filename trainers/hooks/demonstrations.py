"""Demonstrations during RL: the expert plays a share of the tasks too, and the policy also imitates its tokens.

    loss = loss of reinforcement learning + sft_coef x mean over the demonstrated tokens of -log p(token)

Where a policy never succeeds, rewards teach it nothing, and a demonstration shows a success. The rows of the
demonstrations are in the same minibatches as the rows of the policy. Their weight is 0 in the loss of reinforcement
learning, and they have separate weights in the mean. They are left out of credit, of its baselines and of the metrics
of episodes. The mean is over all processes. The logprobs are at the temperature of sampling. The trainer refuses
`sft_coef` for a model that reads images.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from agent_gym.distributed import barrier_on_error
from agent_gym.policies import ScriptedPolicy
from agent_gym.rollout import Episode, Runner
from agent_gym.rollout.roles import ROLE_GROUPS
from agent_gym.trainers.batch import NOT_SAMPLED, Batch, collate, training_episode
from agent_gym.trainers.hook import Hook, RolloutBatch
from agent_gym.trainers.losses import loss_weights

WEIGHTS = "sft_weights"
"""The column (B, T) of a batch with the weight of each demonstrated token; the weights sum to 1 over a rollout."""


class Demonstrations(Hook):
    """The expert of a trainer's tasks, which plays the first `sft_share` of the tasks of each rollout."""

    @functools.cached_property
    def _runner(self) -> Runner:
        args, renderer = self.trainer.args, self.trainer.renderer
        policy = ScriptedPolicy(_expert, renderer.encode_action)
        threads = {"workers": args.env_workers, "env_processes": args.env_processes}
        return Runner(policy, renderer, args.budget, context=args.context, **threads)

    def after_credit(self, rollout: RolloutBatch) -> None:
        rollout.batch = self.add(rollout.batch, rollout.episodes)

    def before_loss(self, inputs: Batch) -> Batch:
        return {**inputs, "action_mask": inputs["action_mask"] & ~(inputs[WEIGHTS] > 0)}

    def on_loss(self, scores: Any, inputs: Batch) -> torch.Tensor:
        self.trainer._means.add("sft/loss", -scores.logps, inputs[WEIGHTS] > 0)
        weighted = (scores.logps * inputs[WEIGHTS]).sum()
        return -(self.trainer.args.sft_coef * weighted * self.trainer._loss_scale)

    def add(self, batch: Batch, played: Sequence[Episode]) -> Batch:
        """Return a batch with the expert's rows on tasks of this process added.

        The expert plays one episode of a task, and the solved episodes are added. Raises `ConfigError` if an
        environment has no expert.
        """
        trainer = self.trainer
        specs = [episode.spec for episode in played if episode.spec.member == 0 and not episode.spec.greedy]
        tasks = [*{spec.group % ROLE_GROUPS: spec for spec in specs}.values()]  # each role of self-play has a spec
        with barrier_on_error():
            shown = self._runner.run_share(tasks[: math.ceil(trainer.args.sft_share * len(tasks))])
        kept = [training_episode(e, number) for number, e in enumerate(shown) if e.success and not e.failure]
        if shown and not kept:
            warnings.warn(
                f"sft_coef has nothing to imitate: the expert solved none of its {len(shown)} tasks within "
                "max_turn_tokens, max_turns and max_episode_tokens",
                stacklevel=2,
            )
        n_rows = sum(len(episode.rows) for episode in kept) + 1
        more = collate(kept, n_rows, trainer._tokenizer.pad_token_id)
        more[WEIGHTS] = loss_weights(more["action_mask"], more["step_of"], more["episode_of"], "token", trainer.total)
        own = more["episode_of"] >= 0
        more["episode_of"] = torch.where(own, more["episode_of"] + batch["episode_of"].max() + 1, -1)
        return _joined(batch, more)


def _expert(episode: Any) -> str:
    # The summary of a script is the history: a script needs no summary to act.
    env = episode.env.unwrapped
    return str(env.expert_action() if episode.asked == "act" else env.history())


def _joined(batch: Batch, more: Batch) -> Batch:
    """Put the rows of `more` in the place of the last row of a batch, which is a dummy.

    A column that only one of the two batches has is 0 in the rows of the other.
    """
    parts = ({name: values[:-1] for name, values in batch.items()}, more)
    width = max(part["input_ids"].size(1) for part in parts)
    found: Batch = {}
    for name in {**batch, **more}:
        like = batch[name] if name in batch else more[name]
        columns = [part.get(name, like.new_zeros(len(part["input_ids"]), *like.shape[1:])) for part in parts]
        if like.ndim > 1 and like.size(1) > 1:  # a column of one number per row keeps its width
            # A 0 would be the first step of the episode.
            fill = NOT_SAMPLED if name == "step_of" else 0
            columns = [pad(column, (0, width - column.size(1)), value=fill) for column in columns]
        found[name] = torch.cat(columns)
    return found


def attach(trainer: Any) -> None:
    """Attach with `sft_coef`."""
    if trainer.args.sft_coef:
        trainer.add_callback(Demonstrations())
