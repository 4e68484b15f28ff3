"""`AgentGRPOTrainer`: TRL's GRPO trainer on multi-turn episodes.

What is TRL's stays TRL's: model loading, LoRA, the reference model, logging, checkpoints, the loop. Six seams are
replaced, each as a whole (line numbers of trl 1.16.0 in docs/trainer.md, signatures held by a test):

    _generate_and_score_completions   play -> share out -> score -> credit                 here
    _get_train_sampler                an order that survives a restart                     here, tasks.py
    evaluation_loop                   play the evaluation tasks, report success; no loss   here
    _prepare_inputs                   a variable number of rows, shuffled for each pass    rows.py
    training_step                     inner micro-batches, so that many rows fit           rows.py
    _compute_loss                     a weighted sum over the policy's tokens              rows.py

TRL's own multi-turn path steps environments one after the other, waits for the slowest at every turn, and knows one
scalar reward per episode. None of it is used.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers.trainer_utils import EvalLoopOutput

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.base import Policy
from agent_gym.policies.processors import let_videos_be_missing
from agent_gym.policies.transformers import TransformersPolicy
from agent_gym.rollout import Episode, EpisodeSpec, Runner
from agent_gym.trainers.batch import Batch, TrainingEpisode, balance, collate, step_of, take, training_episode
from agent_gym.trainers.checkpoints import write_provenance
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.credit import Estimate, Timeline, experience, merge, shape_rewards, with_baselines
from agent_gym.trainers.echo_trap import EchoTrapCallback
from agent_gym.trainers.engine import check_sharded, wants_vllm, warn_of_rounding
from agent_gym.trainers.losses import CLAMP, loss_weights, overlong_penalty
from agent_gym.trainers.metrics import (
    TokenCredit,
    completion_table,
    eval_metrics,
    mean_metrics,
    repeated_share,
    show_on_tensorboard,
    write_episodes,
)
from agent_gym.trainers.rows import RowTrainer
from agent_gym.trainers.schedule import RolloutScheduler, group_specs, sampled
from agent_gym.trainers.tasks import EpochCallback, GroupSampler, Mixture, check_task_columns, task_dataset


def _no_reward_function(prompts: Any, **kwargs: Any) -> list[float]:
    """Stand in where TRL insists on a reward function; the environment is the reward function."""
    raise RolloutError("rewards come from the environment; this function is never called")


class AgentGRPOTrainer(RowTrainer):
    """Train a language model on an environment by policy gradients, without a critic.

    GRPO by default; `args.advantage_estimator` chooses among the estimators that need no critic, and the other fields
    of `AgentSettings` turn it into DAPO, GSPO, RLOO, GiGPO and others.

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
    config_class: type[AgentGRPOConfig] = AgentGRPOConfig
    # What the base classes set, as this class knows it.
    train_dataset: Any
    num_generations: int
    num_generations_eval: int
    shuffle_dataset: bool
    _logs: Any

    def __init__(
        self,
        model: Any,
        env: str | None = None,
        args: AgentGRPOConfig | None = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | None = None,
        policy: Policy | None = None,
        **kwargs: Any,
    ) -> None:
        if args is None:
            name = model if isinstance(model, str) else model.config.name_or_path or "model"
            args = self.config_class(f"{name.rstrip('/').split('/')[-1]}-{self._name}")
        self.check_settings(args)
        args.check_over_sampling()
        if args.overlap and args.layout != "server" and policy is None:
            raise ConfigError("overlap needs layout='server': an engine in the training process shares its device")
        if train_dataset is None:
            if env is None:
                raise ConfigError("give an environment id (env=...) or a train_dataset made with task_dataset()")
            train_dataset = task_dataset(env, env_kwargs, split="train", seed=args.seed)
        check_task_columns(train_dataset, "train_dataset")
        if eval_dataset is not None:
            check_task_columns(eval_dataset, "eval_dataset")
        let_videos_be_missing()  # a model that is named may need it for its processor
        # TRL would build an engine of its own, with settings that neither a CPU nor a tied output layer survives.
        given, args.use_vllm = args.use_vllm, False
        try:
            super().__init__(
                model,
                reward_funcs=[cast(Any, _no_reward_function)],
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                **kwargs,
            )
        finally:
            args.use_vllm = given
        warn_of_rounding(self)
        if self.sharded:
            check_sharded(args, policy)
        self.use_vllm = bool(given) if policy is not None else wants_vllm(args)
        self.renderer = ChatRenderer.of(self.processing_class)
        if args.chat_template_kwargs:
            self.renderer = ChatRenderer(self.processing_class, template_kwargs=cast(Any, args.chat_template_kwargs))
        self.vision = self.renderer.vision
        if self.vision is not None and args.packing:
            raise ConfigError("packing does not know the images of rows: leave it out for a model that reads images")
        self.renderer.also_ends_at(self.eos_token_ids)
        self._epochs = EpochCallback()
        self.add_callback(self._epochs)
        if args.echo_trap != "off":
            # In front of the callbacks that report, which shall see what it adds to the logs.
            self.callback_handler.callbacks.insert(0, EchoTrapCallback(args.echo_trap))
        self.estimator, self.credit_settings = args.estimator, args.credit
        self._rollout_tokens = args.rollout_tokens
        self.scheduler = RolloutScheduler(self, policy)

    def check_settings(self, args: AgentGRPOConfig) -> None:
        """Raise `ConfigError` if this trainer cannot serve the estimator."""
        if args.estimator.needs_critic:
            raise ConfigError(f"advantage_estimator {args.advantage_estimator!r} needs a critic: use AgentPPOTrainer")

    # Rollouts.

    @property
    def runner(self) -> Runner:
        """The rollout loop with the trainer's engine, started on first use."""
        return self.scheduler.runner

    def rollout(self, specs: Sequence[EpisodeSpec], temperature: float) -> list[Episode]:
        """Play episodes with the current weights and log where the time went."""
        return self.scheduler.play(lambda: self.runner.run_share(specs, temperature=temperature))

    @property
    def _engine_differs(self) -> bool:
        # In half precision the model itself rounds otherwise: one token behind a cache is another sum than a whole row.
        half = self.accelerator.native_amp or self.model.dtype != torch.float32
        return super()._engine_differs or (half and isinstance(self.scheduler.policy, TransformersPolicy))

    # From tasks to tensors.

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
        episodes, groups = self.scheduler.collect(inputs)
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
            self._rollout_tokens,
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
        if self.estimator.needs_baseline:
            greedy = set(gather_object([episode.number for episode in episodes if episode.greedy]))
            found = with_baselines(found, torch.tensor([number in greedy for number in numbers], dtype=torch.bool))
        estimate = self.estimator.estimate(found, self.credit_settings)
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

    # Evaluation plays episodes.

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Play every evaluation task once (`num_generations_eval` times) and report success with a 95% interval."""
        self.model.eval()
        accelerator, attempts = self.accelerator, self.num_generations_eval
        # The data set is divided here and not by the loader, which would repeat tasks until all processes have equally
        # many.
        rows = list(dataloader.dataset)
        mine = range(accelerator.process_index, len(rows), accelerator.num_processes)
        specs = [
            spec
            for i in mine
            for spec in group_specs(
                [rows[i]] * attempts, first=i * attempts, group_size=attempts, sampling_seed=self.args.seed
            )
        ]
        # Also without a task for this process: all of them take part in handing over sharded weights.
        episodes = self.rollout(specs, self.args.eval_temperature)
        self._write_trajectories(metric_key_prefix, episodes, len(episodes))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in eval_metrics(episodes).items()}
        return EvalLoopOutput(cast(Any, None), None, metrics, int(metrics[f"{metric_key_prefix}_episodes"]))

    # The order of tasks.

    def _get_train_sampler(self, dataset: Dataset | None = None) -> GroupSampler:
        dataset = self.train_dataset if dataset is None else dataset
        self._epochs.sampler = GroupSampler(
            len(dataset),
            group_size=self.num_generations,
            batch_tasks=self.args.batch_tasks,
            repeats=self.num_iterations * self.args.chunks,
            seed=self.args.seed,
            shuffle=self.shuffle_dataset,
            mixture=Mixture.of(dataset),
        )
        return self._epochs.sampler

    @property
    def sampler(self) -> GroupSampler:
        """The order of the training tasks, once training has begun."""
        assert self._epochs.sampler is not None
        return self._epochs.sampler

    # Logs.

    def _log_episodes(self, episodes: Sequence[Episode], credit: Sequence[TokenCredit | None]) -> None:
        metrics = self._metrics["train"]
        for name, value in mean_metrics(episodes).items():
            metrics[name].append(value)
        rows = [row for episode in episodes for row in episode.rows]
        turns = [row.token_ids[s.start : s.stop] for row in rows for s in row.spans if s.source == "agent"]
        shares = gather_object([repeated_share(turns)])
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

    def _write_trajectories(
        self,
        kind: str,
        episodes: Sequence[Episode],
        limit: int,
        credit: Sequence[TokenCredit | None] | None = None,
    ) -> None:
        if not limit or not self.args.trajectories_per_step:
            return
        name = f"{kind}_{self.state.global_step:06d}_{self.accelerator.process_index}"
        if self._micro_step:  # a later rollout of the same step
            name += f"_{self._micro_step}"
        path = Path(str(self.args.output_dir)) / "trajectories" / f"{name}.jsonl"
        write_episodes(path, episodes[:limit], self._tokenizer, credit, step=self.state.global_step)

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
