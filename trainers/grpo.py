"""`AgentGRPOTrainer`: TRL's GRPO trainer on multi-turn episodes.

What is TRL's stays TRL's: model loading, LoRA, the reference model, the loss, logging, checkpoints, the loop. Five
seams are replaced, each as a whole (line numbers of trl 1.16.0 in docs/trainer.md, signatures held by a test):

    _generate_and_score_completions   rollouts -> rows -> advantages (B, T)
    _prepare_inputs                   a variable number of rows, shuffled anew for each pass over them
    training_step                     inner micro-batches, so that many rows fit into one step
    evaluation_loop                   play the evaluation tasks, report success; no loss
    _get_train_sampler                an order that survives a restart

TRL's own multi-turn path steps environments one after the other, waits for the slowest at every turn, and knows one
scalar reward per episode. None of it is used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers.trainer_utils import EvalLoopOutput

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.base import Engine, Policy
from agent_gym.rollout import Episode, Runner, derive_seed
from agent_gym.trainers.advantages import group_advantages, nan_std
from agent_gym.trainers.batching import Batch, TrainingRow, balance, collate, episode_rows
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.engine import build_policy
from agent_gym.trainers.logs import completion_table, write_episodes
from agent_gym.trainers.metrics import eval_metrics, mean_metrics
from agent_gym.trainers.rows import RowTrainer
from agent_gym.trainers.sampler import EpochCallback, GroupSampler
from agent_gym.trainers.tasks import check_task_columns, group_specs, task_dataset
from agent_gym.trainers.weights import named_weights


def _scored_by_the_environment(prompts: Any, **kwargs: Any) -> list[float]:
    """Stand in where TRL insists on a reward function; the environment is the reward function."""
    raise RolloutError("rewards come from the environment; this function is never called")


class AgentGRPOTrainer(RowTrainer):
    """Train a language model on an environment with group-relative policy optimisation.

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
        """Load everything; the engine starts with the first rollout."""
        if args is None:
            name = model if isinstance(model, str) else model.config.name_or_path or "model"
            args = AgentGRPOConfig(f"{name.rstrip('/').split('/')[-1]}-AgentGRPO")
        if train_dataset is None:
            if env is None:
                raise ConfigError("give an environment id (env=...) or a train_dataset made with task_dataset()")
            train_dataset = task_dataset(env, env_kwargs, split="train", seed=args.seed)
        check_task_columns(train_dataset, "train_dataset")
        if eval_dataset is not None:
            check_task_columns(eval_dataset, "eval_dataset")
        # TRL would build an engine of its own, with settings that neither a CPU nor a tied output layer survives.
        wants_vllm, args.use_vllm = args.use_vllm, False
        try:
            super().__init__(
                model,
                reward_funcs=[cast(Any, _scored_by_the_environment)],
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                **kwargs,
            )
        finally:
            args.use_vllm = wants_vllm
        self.use_vllm = wants_vllm
        self.renderer = ChatRenderer.of(self._tokenizer)
        if args.chat_template_kwargs:
            self.renderer = ChatRenderer(self._tokenizer, template_kwargs=cast(Any, args.chat_template_kwargs))
        self.renderer.also_ends_at(self.eos_token_ids)
        self._epochs = EpochCallback()
        self.add_callback(self._epochs)
        self._policy = policy
        self._runner: Runner | None = None

    # Rollouts.

    @property
    def runner(self) -> Runner:
        """The rollout loop with the trainer's engine, started on first use."""
        if self._runner is None:
            if self._policy is None:
                self._policy = build_policy(self.accelerator.unwrap_model(self.model), self.renderer, self.args)
            show = self.args.rollout_progress and self.accelerator.is_main_process
            self._runner = Runner(
                self._policy, self.renderer, self.args.budget, workers=self.args.env_workers, progress=show
            )
        return self._runner

    def rollout(self, specs: Sequence[Any], temperature: float) -> list[Episode]:
        """Play episodes with the current weights and log where the time went."""
        runner, policy = self.runner, self.runner.policy
        times = self._metrics[self._mode]
        started = time.perf_counter()
        training = self.model.training
        if isinstance(policy, Engine):
            policy.wake()
            # Every time, even twice in a step: the step says little about the weights (a second `train()`, the best
            # checkpoint loaded at the end), and an engine that slept has none.
            policy.sync(named_weights(self.accelerator.unwrap_model(self.model)))
        times["time/sync"].append(time.perf_counter() - started)
        episodes = runner.run(specs, temperature=temperature)
        if isinstance(policy, Engine):
            policy.sleep()
        self.model.train(training)
        for name, value in runner.stats.metrics().items():
            times[name].append(value)
        return episodes

    # Seam 1: from tasks to tensors.

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
        args, accelerator = self.args, self.accelerator
        specs = group_specs(
            inputs,
            first=accelerator.process_index * len(inputs),
            group_size=self.num_generations,
            sampling_seed=derive_seed(args.seed, self._rollout_number),
        )
        episodes = self.rollout(specs, self.temperature)
        started = time.perf_counter()
        advantages = self._advantages(episodes)
        shares = self._share_out(
            [
                episode_rows(episode, [advantage] * len(episode.steps))
                for episode, advantage in zip(episodes, advantages, strict=True)
                if not episode.failure and not (args.mask_truncated_completions and episode.truncated)
            ]
        )
        batch = self._collate(shares)
        self._add_reference_logps(batch)
        self._metrics["train"]["time/score"].append(time.perf_counter() - started)
        self._log_episodes(episodes, advantages)
        return batch

    def _advantages(self, episodes: Sequence[Episode]) -> list[float]:
        """Compare each episode with its group, which may be spread over processes."""
        rewards = torch.tensor([episode.reward for episode in episodes], device=self.accelerator.device)
        everyone = self.accelerator.gather(rewards)
        advantages = group_advantages(everyone, self.num_generations, self.scale_rewards)
        spread = nan_std(everyone.view(-1, self.num_generations), dim=1)
        metrics = self._metrics["train"]
        metrics["reward"].append(torch.nanmean(everyone).item())
        metrics["reward_std"].append(spread.mean().item())
        metrics["frac_reward_zero_std"].append((spread < 1e-6).float().mean().item())
        metrics["rollout/failed"].append(everyone.isnan().float().mean().item())
        first = self.accelerator.process_index * len(episodes)
        return advantages[first : first + len(episodes)].tolist()

    def _share_out(self, episodes: list[list[TrainingRow]]) -> list[TrainingRow]:
        """Give each process about the same number of tokens; whole episodes stay together."""
        if self.accelerator.num_processes > 1:
            episodes = gather_object(episodes)
        return balance(episodes, self.accelerator.num_processes)[self.accelerator.process_index]

    def _collate(self, rows: list[TrainingRow]) -> Batch:
        chunks = self.args.chunks
        count = torch.tensor([len(rows)], device=self.accelerator.device)
        most = int(self.accelerator.gather(count).max())
        n_rows = max(1, -(-most // chunks)) * chunks
        batch = collate(rows, n_rows, self._tokenizer.pad_token_id, self.accelerator.device)
        batch["num_items_in_batch"] = self.accelerator.gather(batch["tool_mask"].sum()).sum()
        return batch

    # Seam 4: evaluation plays episodes.

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

    # Seam 5: the order of tasks.

    def _get_train_sampler(self, dataset: Dataset | None = None) -> GroupSampler:
        dataset = self.train_dataset if dataset is None else dataset
        self._epochs.sampler = GroupSampler(
            len(dataset),
            group_size=self.num_generations,
            batch_tasks=self.args.batch_tasks,
            repeats=self.num_iterations * self.args.chunks,
            seed=self.args.seed,
            shuffle=self.shuffle_dataset,
        )
        return self._epochs.sampler

    # Logs.

    def _log_episodes(self, episodes: Sequence[Episode], advantages: Sequence[float]) -> None:
        for name, value in mean_metrics(episodes).items():
            self._metrics["train"][name].append(value)
        self._write_trajectories("train", episodes, self.args.trajectories_per_step, advantages)
        if self.log_completions:
            for column, values in completion_table(episodes, advantages).items():
                target = self._logs["rewards"]["reward"] if column == "reward" else self._logs[column]
                target.extend(values)

    def _write_trajectories(
        self, kind: str, episodes: Sequence[Episode], limit: int, advantages: Sequence[float] | None = None
    ) -> None:
        if not limit or not self.args.trajectories_per_step:
            return
        name = f"{kind}_{self.state.global_step:06d}_{self.accelerator.process_index}"
        if self._micro_step:  # a later rollout of the same step
            name += f"_{self._micro_step}"
        path = Path(str(self.args.output_dir)) / "trajectories" / f"{name}.jsonl"
        write_episodes(path, episodes[:limit], self._tokenizer, advantages, step=self.state.global_step)
