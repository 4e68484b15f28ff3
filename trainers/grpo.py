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

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers.trainer_utils import EvalLoopOutput
from trl import GRPOTrainer

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.base import Engine, Policy
from agent_gym.rollout import Episode, Runner, derive_seed
from agent_gym.trainers.advantages import group_advantages, nan_std
from agent_gym.trainers.batching import Batch, TrainingRow, balance, collate, episode_rows, take
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.correction import engine_ratio
from agent_gym.trainers.engine import build_policy
from agent_gym.trainers.logs import completion_table, write_episodes
from agent_gym.trainers.metrics import eval_metrics, mean_metrics
from agent_gym.trainers.sampler import GroupSampler
from agent_gym.trainers.tasks import check_task_columns, group_specs, task_dataset
from agent_gym.trainers.weights import named_weights


def _scored_by_the_environment(prompts: Any, **kwargs: Any) -> list[float]:
    """Stand in where TRL insists on a reward function; the environment is the reward function."""
    raise RolloutError("rewards come from the environment; this function is never called")


class AgentGRPOTrainer(GRPOTrainer):
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
    args: AgentGRPOConfig
    model: Any
    train_dataset: Any
    num_generations: int
    num_generations_eval: int
    shuffle_dataset: bool
    _buffered_inputs: Any
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
        self._policy = policy
        self._runner: Runner | None = None
        self._weights_of_step: int | None = None  # the step whose weights the engine has
        self._generated: Batch = {}
        self._loss_inputs: Batch | None = None

    # Rollouts.

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    @property
    def runner(self) -> Runner:
        """The rollout loop with the trainer's engine, started on first use."""
        if self._runner is None:
            if self._policy is None:
                self._policy = build_policy(self.accelerator.unwrap_model(self.model), self._tokenizer, self.args)
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
            if self._weights_of_step != self.state.global_step:
                policy.sync(named_weights(self.accelerator.unwrap_model(self.model)))
                self._weights_of_step = self.state.global_step
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
        # The position within the run, not a running counter: a resumed run samples what the straight one would have.
        accumulation = args.gradient_accumulation_steps
        position = self.state.global_step * accumulation + self._step % accumulation
        specs = group_specs(
            inputs,
            first=accelerator.process_index * len(inputs),
            group_size=self.num_generations,
            sampling_seed=derive_seed(args.seed, position),
        )
        episodes = self.rollout(specs, self.temperature)
        started = time.perf_counter()
        advantages = self._advantages(episodes)
        shares = self._share_out(
            [
                episode_rows(episode, [advantage] * len(episode.steps))
                for episode, advantage in zip(episodes, advantages, strict=True)
                if not episode.failure
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

    def _add_reference_logps(self, batch: Batch) -> None:
        """Score the rows before any update, as far as the loss will need it."""
        args = self.args
        # With a single update per rollout the current policy is the old one, and the loss takes its own logprobs.
        if args.gradient_accumulation_steps % (args.chunks * self.num_iterations) != 0:
            batch["old_per_token_logps"] = self._score(self.model, batch)
            self._add_engine_ratio(batch, batch["old_per_token_logps"])
        if self.beta != 0.0:
            with self._reference_model() as model:
                batch["ref_per_token_logps"] = self._score(model, batch)

    @contextlib.contextmanager
    def _reference_model(self) -> Any:
        if self.ref_model is not None:
            yield self.ref_model
            return
        from trl.trainer.utils import use_adapter

        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            yield self.model

    def _score(self, model: Any, batch: Batch) -> torch.Tensor:
        """(B, T) logprobs without gradient, in micro-batches."""
        width = batch["completion_ids"].size(1)
        parts = []
        with torch.no_grad():
            for index in torch.arange(len(batch["prompt_ids"])).split(self.args.micro_batch_size):
                part = take(batch, index)
                ids = torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1)
                attended = torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1)
                logps, _, _ = self._get_per_token_logps_and_entropies(model, ids, attended, ids.size(1) - 1)
                parts.append(torch.nn.functional.pad(logps, (0, width - logps.size(1))))
        return torch.cat(parts)

    # The loss, with one addition to TRL's.

    def _compute_loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        self._loss_inputs = inputs
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._loss_inputs = None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        inputs = self._loss_inputs
        if inputs is not None and "importance_sampling_ratio" not in inputs:
            # TRL runs a forward pass of its own to compare the engine with the trainer. While the policy is still the
            # one that sampled, the pass of the loss has just given the same numbers.
            self._add_engine_ratio(inputs, result[0].detach())
        return result

    def _add_engine_ratio(self, batch: Batch, logps: torch.Tensor) -> None:
        """Weight tokens by how much more likely the trainer finds them than the engine did; see correction.py."""
        if not (self.use_vllm and self.vllm_importance_sampling_correction):
            return
        mask, engine = batch["tool_mask"], batch["sampling_per_token_logps"]
        ratio = engine_ratio(
            logps,
            engine,
            mask,
            mode=self.vllm_importance_sampling_mode,
            low=self.vllm_importance_sampling_clip_min,
            high=self.vllm_importance_sampling_clip_max,
        )
        batch["importance_sampling_ratio"] = ratio
        metrics = self._metrics[self._mode]
        metrics["sampling/logp_difference_max"].append(((logps - engine) * mask).abs().max().item())
        metrics["sampling/ratio_mean"].append(((ratio * mask).sum() / mask.sum().clamp(min=1)).item())

    # Seams 2 and 3: a variable number of rows through a fixed number of steps.

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        chunks = self.args.chunks
        if not self._generated or self._step % (chunks * self.num_iterations) == 0:
            self._generated = self._generate_and_score_completions(generation_batch)
        if self._buffered_inputs is None or self._step % chunks == 0:
            # A new permutation for each pass over the rows, from the position in the run and not from global state.
            count = len(self._generated["prompt_ids"])
            seed = derive_seed(self.args.seed, self.state.global_step, self._step % (chunks * self.num_iterations))
            order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
            self._buffered_inputs = [take(self._generated, index) for index in order.chunk(chunks)]
        return self._buffered_inputs[self._step % chunks]

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run one optimizer micro-step: all rows of the chunk, `micro_batch_size` at a time.

        Returns:
            The summed loss, detached.
        """
        started = time.perf_counter()
        model.train()
        chunk = self._prepare_inputs(inputs)
        generated = time.perf_counter()
        # Neighbours of about equal length waste little padding; the loss is a sum over rows, so order is free.
        order = chunk["completion_mask"].sum(1).argsort(descending=True)
        pieces = order.split(self.args.micro_batch_size)
        sync = self.accelerator.sync_gradients
        total = torch.zeros((), device=self.accelerator.device)
        for i, index in enumerate(pieces):
            last = i + 1 == len(pieces)
            # Only the last backward pass of the step exchanges gradients between processes.
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                self.accelerator.gradient_state._set_sync_gradients(sync and last)
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, take(chunk, index))
                self.accelerator.backward(loss, **({"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}))
            total += loss.detach()
        self.accelerator.gradient_state._set_sync_gradients(sync)
        if not torch.isfinite(total):
            raise RolloutError(f"the loss is {total.item()} at step {self.state.global_step}; nothing was updated")
        self._step += 1
        now = time.perf_counter()
        self._metrics["train"]["time/update"].append(now - generated)
        self._current_train_step_time += now - started
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._metrics["train"]["step_time"].append(self._current_train_step_time)
            self._current_train_step_time = 0.0
        return total

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
        episodes = self.rollout(specs, self.args.eval_temperature) if specs else []
        self._write_trajectories(episodes, len(episodes))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in eval_metrics(episodes).items()}
        return EvalLoopOutput(cast(Any, None), None, metrics, int(metrics[f"{metric_key_prefix}_episodes"]))

    # Seam 5: the order of tasks.

    def _get_train_sampler(self, dataset: Dataset | None = None) -> GroupSampler:
        dataset = self.train_dataset if dataset is None else dataset
        return GroupSampler(
            len(dataset),
            group_size=self.num_generations,
            batch_tasks=self.args.batch_tasks,
            repeats=self.num_iterations * self.args.chunks,
            seed=self.args.seed,
            shuffle=self.shuffle_dataset,
        )

    # Logs.

    def _log_episodes(self, episodes: Sequence[Episode], advantages: Sequence[float]) -> None:
        for name, value in mean_metrics(episodes).items():
            self._metrics["train"][name].append(value)
        self._write_trajectories(episodes, self.args.trajectories_per_step, advantages)
        if self.log_completions:
            for column, values in completion_table(episodes, advantages).items():
                target = self._logs["rewards"]["reward"] if column == "reward" else self._logs[column]
                target.extend(values)

    def _write_trajectories(
        self, episodes: Sequence[Episode], limit: int, advantages: Sequence[float] | None = None
    ) -> None:
        if not limit or not self.args.trajectories_per_step:
            return
        name = f"{self._mode}_{self.state.global_step:06d}_{self.accelerator.process_index}.jsonl"
        path = Path(str(self.args.output_dir)) / "trajectories" / name
        write_episodes(path, episodes[:limit], self._tokenizer, advantages, step=self.state.global_step)
