"""`AgentGRPOTrainer`: TRL's GRPO trainer on multi-turn episodes.

What is TRL's stays TRL's: model loading, LoRA, the reference model, logging, checkpoints, the loop. Six seams are
replaced, each as a whole (line numbers of trl 1.16.0 in docs/trainer.md, signatures held by a test):

    _generate_and_score_completions   play -> share out -> score -> credit                 here
    _get_train_sampler                an order that survives a restart                     episodes.py
    evaluation_loop                   play the evaluation tasks, report success; no loss   episodes.py
    _prepare_inputs                   a variable number of rows, shuffled for each pass    rows.py
    training_step                     inner micro-batches, so that many rows fit           rows.py
    _compute_loss                     a weighted sum over the policy's tokens              rows.py

TRL's own multi-turn path steps environments one after the other, waits for the slowest at every turn, and knows one
scalar reward per episode. None of it is used.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import gather_object

from agent_gym.errors import ConfigError
from agent_gym.rollout import Episode
from agent_gym.trainers.batch import Batch, TrainingEpisode, balance, collate, step_of, take, training_episode
from agent_gym.trainers.checkpoints import write_provenance
from agent_gym.trainers.collect import Collector, sampled
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.credit import Timeline, experience, merge, with_baselines
from agent_gym.trainers.episodes import EpisodeTrainer
from agent_gym.trainers.estimators import Estimate
from agent_gym.trainers.estimators.process import shape_rewards
from agent_gym.trainers.losses import CLAMP, loss_weights, overlong_penalty
from agent_gym.trainers.metrics import TokenCredit, completion_table, mean_metrics, repeated_share, show_on_tensorboard


class AgentGRPOTrainer(EpisodeTrainer):
    """Train a language model on an environment by policy gradients, without a critic.

    GRPO by default; `args.advantage_estimator` chooses among the estimators that need no critic, and the other fields
    of `AlgorithmConfig` turn it into DAPO, GSPO, RLOO, GiGPO and others.

    Args:
        model: a model id, a folder, or a loaded model.
        env: the Gymnasium id to train on; may be left out when the data sets name their environments.
        args: the settings.
        env_kwargs: arguments of the environment.
        train_dataset: rows from `task_dataset`; by default all tasks of the split "train".
        eval_dataset: the same for evaluation; without it `evaluate()` needs one.
        policy: an engine to sample with instead of the one that `args` describe.
        **kwargs: everything else `trl.GRPOTrainer` takes: processing_class, callbacks, optimizers, peft_config, ...

    Raises:
        ConfigError: for settings, data sets or environments that cannot work.
    """

    _tag_names = ["trl", "agent-gym", "grpo"]
    _name = "AgentGRPO"
    _logs: Any

    def check_settings(self, args: AgentGRPOConfig) -> None:
        """Raise `ConfigError` if this trainer cannot serve the estimator."""
        if args.estimator.needs_critic:
            raise ConfigError(f"advantage_estimator {args.advantage_estimator!r} needs a critic: use AgentPPOTrainer")

    @functools.cached_property
    def _collector(self) -> Collector:
        return Collector(self)

    # From tasks to tensors.

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
        episodes, groups = self._collector.collect(inputs)
        started = time.perf_counter()
        mine = self._share_out(
            [self._training_episode(e) for e in episodes if e.spec.group in groups and self._counts(e)]
        )
        batch = self._lay_out(mine)
        self._score_rows(batch)
        credit = self._assign_credit(batch, mine)
        batch = _trained_rows(batch)
        if "old_logps" in batch:
            self._add_engine_ratio(batch, batch["old_logps"])
        self._metrics["train"]["time/score"].append(time.perf_counter() - started)
        played = sampled(episodes)
        self._log_episodes(played, [credit.get(self._number(e)) if self._trains(e) else None for e in played])
        return batch

    def _counts(self, episode: Episode) -> bool:
        """Whether an episode says something about its task: it was scored, and the policy took part."""
        return not episode.failure and (episode.spec.greedy or episode.sampled_tokens > 0)

    def _trains(self, episode: Episode) -> bool:
        """Whether an episode that counts is in the loss, too."""
        return not episode.spec.greedy and not (self.args.mask_truncated_completions and episode.truncated)

    def _number(self, episode: Episode) -> int:
        # With a place for a greedy episode behind the members of each group.
        return episode.spec.group * (self.num_generations + 1) + episode.spec.member

    def _training_episode(self, episode: Episode) -> TrainingEpisode:
        args = self.args
        kept = training_episode(episode, self._number(episode))
        kept.trained, kept.greedy = self._trains(episode), episode.spec.greedy
        if args.overlong_buffer:
            lengths = Counter(k for row in kept.rows for k in step_of(row))
            for k in range(len(kept.outcome)):
                due = overlong_penalty(lengths[k], args.max_turn_tokens, args.overlong_buffer)
                kept.outcome[k] += due
        if kept.greedy:
            # A baseline is what the outcome is compared with. Normalised process rewards are not, and set no scale.
            kept.process = kept.process if args.process_norm is None else [0.0] * len(kept.process)
            # Its tokens are scored only where the return depends on them.
            kept.rows = kept.rows if self._kl_in_reward else []
        return kept

    @property
    def _kl_in_reward(self) -> bool:
        return self.beta != 0.0 and self.args.kl_in == "reward"

    def _share_out(self, episodes: list[TrainingEpisode]) -> list[TrainingEpisode]:
        """Give each process about the same number of tokens; whole episodes stay together."""
        if self.accelerator.num_processes > 1:
            episodes = gather_object(episodes)
        return balance(episodes, self.accelerator.num_processes)[self.accelerator.process_index]

    def _lay_out(self, episodes: Sequence[TrainingEpisode]) -> Batch:
        """Make tensors of the rows, of equal shape on all processes, and say what each token counts."""
        count = torch.tensor([sum(len(e.rows) for e in episodes)], device=self.accelerator.device)
        n_rows = int(self.accelerator.gather(count).max()) + 1
        batch = collate(episodes, n_rows, self._tokenizer.pad_token_id, self.accelerator.device, self.vision)
        trained = torch.tensor([*(e.trained for e in episodes), False], device=self.accelerator.device)
        mask = batch["action_mask"] & trained[batch["episode_of"]][:, None]
        batch["weights"] = loss_weights(
            mask,
            batch["step_of"],
            batch["episode_of"],
            self.args.loss_normalization,
            self._total,
            self.args.rollout_tokens,
        )
        return batch

    def _total(self, count: torch.Tensor) -> torch.Tensor:
        """Sum over processes."""
        return self.accelerator.reduce(count, reduction="sum")

    # Credit.

    def _assign_credit(self, batch: Batch, episodes: Sequence[TrainingEpisode]) -> dict[int, TokenCredit]:
        """Add the advantages to the batch.

        Returns:
            By number of the episode, of all processes, the advantage of each of its tokens, and the critic's value.
        """
        args = self.args
        timeline = Timeline(batch, len(episodes))
        local = experience(episodes, timeline, **self._evidence(batch, timeline))
        numbers, found = merge(gather_object([([episode.number for episode in episodes], local)]))
        found = shape_rewards(found, args.process_norm, args.outcome_weight, args.step_gamma)
        if args.estimator.needs_baseline:
            greedy = set(gather_object([episode.number for episode in episodes if episode.greedy]))
            found = with_baselines(found, torch.tensor([number in greedy for number in numbers], dtype=torch.bool))
        estimate = args.estimator.estimate(found, args.credit)
        place = {number: i for i, number in enumerate(numbers)}
        mine = torch.tensor([place[episode.number] for episode in episodes], dtype=torch.long)
        self._take_estimate(batch, timeline, _part(estimate, mine, timeline.mask.size(1)))
        lengths = found.token_mask.sum(1).tolist()
        known = {"advantages": estimate.advantages, "values": found.values}
        return {
            number: {name: per[i, : lengths[i]].tolist() for name, per in known.items() if per is not None}
            for i, number in enumerate(numbers)
        }

    def _evidence(self, batch: Batch, timeline: Timeline) -> dict[str, torch.Tensor]:
        """Return what the forward passes know that credit depends on."""
        if not self._kl_in_reward:
            return {}
        # The plain log-ratio (k1): its expectation is the KL, and as a reward it needs no gradient of its own.
        return {"penalty": -self.beta * timeline.read((batch["old_logps"] - batch["ref_logps"]).clamp(-CLAMP, CLAMP))}

    def _take_estimate(self, batch: Batch, timeline: Timeline, estimate: Estimate) -> None:
        batch["advantages"] = timeline.write(estimate.advantages, self.accelerator.device)

    # Logs.

    def _log_episodes(self, episodes: Sequence[Episode], credit: Sequence[TokenCredit | None]) -> None:
        metrics = self._metrics["train"]
        for name, value in mean_metrics(episodes).items():
            metrics[name].append(value)
        rows = [row for episode in episodes for row in episode.rows]
        said = [row.token_ids[s.start : s.stop] for row in rows for s in row.spans if s.source == "agent"]
        shares = gather_object([repeated_share(said)])
        metrics["rollout/repeated"].append(sum(shares) / len(shares))
        self._write_trajectories("train", episodes, self.args.trajectories_per_step, credit)
        if self.log_completions:
            for column, values in completion_table(episodes, credit).items():
                target = self._logs["rewards"]["reward"] if column == "reward" else self._logs[column]
                target.extend(values)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, and show tensorboard the episodes of which the other trackers get a table."""
        of_a_step = "loss" in logs  # and not of an evaluation or of the whole run
        super().log(logs, start_time)
        if of_a_step and self.log_completions and self.accelerator.is_main_process:
            step, limit = self.state.global_step, self.args.trajectories_per_step
            show_on_tensorboard(self.callback_handler.callbacks, self._logs, step=step, limit=limit)

    # Checkpoints.

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        write_provenance(self, output_dir if output_dir is not None else str(self.args.output_dir))


def _trained_rows(batch: Batch) -> Batch:
    """Leave out the rows that credit needed and the loss does not: no forward and backward pass for them."""
    kept = ((batch["weights"] > 0).any(1) | (batch["episode_of"] < 0)).nonzero().view(-1).cpu()
    return batch if len(kept) == len(batch["weights"]) else take(batch, kept)


def _part(estimate: Estimate, index: torch.Tensor, width: int) -> Estimate:
    """Select episodes of an estimate and cut its padding to theirs."""

    def cut(numbers: torch.Tensor | None) -> torch.Tensor | None:
        return None if numbers is None else numbers[index, :width]

    advantages = cut(estimate.advantages)
    assert advantages is not None
    return Estimate(advantages, cut(estimate.returns), cut(estimate.value_mask))
