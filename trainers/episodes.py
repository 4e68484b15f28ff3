"""`EpisodeTrainer`: tasks in, episodes out. The part of the trainers that plays, evaluates and writes down.

It gives TRL's trainer a data set of tasks, an engine that samples, an evaluation that plays, and an order of tasks that
survives a restart. What is learned from the episodes is its subclasses' business.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from transformers.trainer_utils import EvalLoopOutput

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.base import Engine, Policy, barrier_on_error
from agent_gym.policies.processors import let_videos_be_missing
from agent_gym.policies.transformers import TransformersPolicy
from agent_gym.rollout import Episode, EpisodeSpec, Runner
from agent_gym.trainers.ahead import RolloutAhead
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.echo_trap import EchoTrapCallback
from agent_gym.trainers.engine import build_policy, check_sharded, named_weights, wants_vllm, warn_of_rounding
from agent_gym.trainers.metrics import TokenCredit, check_failures_everywhere, eval_metrics, write_episodes
from agent_gym.trainers.rows import RowTrainer
from agent_gym.trainers.tasks import EpochCallback, GroupSampler, Mixture, check_task_columns, group_specs, task_dataset


def _scored_by_the_environment(prompts: Any, **kwargs: Any) -> list[float]:
    """Stand in where TRL insists on a reward function; the environment is the reward function."""
    raise RolloutError("rewards come from the environment; this function is never called")


class EpisodeTrainer(RowTrainer):
    """A trainer that plays episodes of Gymnasium environments; see `AgentGRPOTrainer` for its arguments."""

    config_class: type[AgentGRPOConfig] = AgentGRPOConfig
    # What the base classes set, as this class knows it.
    train_dataset: Any
    num_generations: int
    num_generations_eval: int
    shuffle_dataset: bool
    _name: str

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
                reward_funcs=[cast(Any, _scored_by_the_environment)],
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
        self._policy = policy
        self._runner: Runner | None = None
        self.ahead = RolloutAhead(self)

    def check_settings(self, args: AgentGRPOConfig) -> None:
        """Raise `ConfigError` for settings that this trainer cannot serve; called before anything is loaded."""

    # Rollouts.

    @property
    def runner(self) -> Runner:
        """The rollout loop with the trainer's engine, started on first use."""
        if self._runner is None:
            args = self.args
            if self._policy is None:
                model = self.accelerator.unwrap_model(self.model)
                self._policy = build_policy(model, self.renderer, args, self.accelerator.autocast, sharded=self.sharded)
                self.use_vllm = not isinstance(self._policy, TransformersPolicy)
            self._runner = Runner(
                self._policy,
                self.renderer,
                args.budget,
                workers=args.env_workers,
                env_processes=args.env_processes,
                context=args.context,
            )
        return self._runner

    @property
    def _engine_differs(self) -> bool:
        # In half precision the model itself rounds otherwise: one token behind a cache is another sum than a whole row.
        half = self.accelerator.native_amp or self.model.dtype != torch.float32
        return super()._engine_differs or (half and isinstance(self._policy, TransformersPolicy))

    def rollout(self, specs: Sequence[EpisodeSpec], temperature: float) -> list[Episode]:
        """Play episodes with the current weights and log where the time went."""
        return self.with_engine(lambda: self.runner.run_share(specs, temperature=temperature))

    def with_engine(self, play: Callable[[], list[Episode]]) -> list[Episode]:
        """Call something that plays episodes when the engine has the current weights, in all processes at once.

        Raises:
            RolloutError: if it failed in a process, or if every episode failed in all of them.
        """
        self.ahead.wait()
        self.ready_engine()
        training = self.model.training
        with barrier_on_error(self.accelerator.num_processes > 1):
            episodes = play()
        policy = self.runner.policy
        if isinstance(policy, Engine):
            policy.sleep()
        self.model.train(training)
        self.log_rollout()
        check_failures_everywhere(episodes)
        return episodes

    def ready_engine(self) -> None:
        """Hand the current weights to the engine, and set the limits of the episodes to come."""
        started = time.perf_counter()
        policy = self.runner.policy
        self.runner.budget = self._budget(self.model.training)
        self.runner.version = self.state.global_step
        if isinstance(policy, Engine):
            policy.wake()
            # Every time, even twice in a step: the step says little about the weights (a second `train()`, the best
            # checkpoint loaded at the end), and an engine that slept has none.
            policy.sync(named_weights(self.accelerator.unwrap_model(self.model)))
        self._metrics[self._mode]["time/sync"].append(time.perf_counter() - started)

    def log_rollout(self) -> None:
        """Log where the time of the last rollout went."""
        for name, value in self.runner.stats.metrics().items():
            self._metrics[self._mode][name].append(value)

    def _budget(self, training: bool) -> Any:
        """Return the limits of an episode; a curriculum tightens those of training."""
        budget, curriculum = self.args.budget, self.args.curriculum
        if curriculum is None or not training:
            return budget
        turns = curriculum.turns(self.state.global_step)
        self._metrics["train"]["rollout/max_turns"].append(turns)
        return dataclasses.replace(budget, max_turns=min(turns, budget.max_turns or turns))

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

    # Trajectories on disk.

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
