"""`AgentGRPOTrainer`: TRL's GRPO trainer on multi-turn episodes.

TRL's code loads the model and the reference model, applies LoRA, logs, writes checkpoints, and runs the training loop.
Six methods are replaced, each as a whole (line numbers of trl 1.16.0 in docs/trainer.md, signatures checked by a test):

    _generate_and_score_completions   play -> share out -> score -> credit                 here
    _get_train_sampler                an order that survives a restart                     here, tasks.py
    evaluation_loop                   play the evaluation tasks, report success; no loss   here
    _prepare_inputs                   a variable number of rows, shuffled for each pass    rows.py
    training_step                     inner micro-batches, so that many rows fit           rows.py
    _compute_loss                     a weighted sum over the policy's tokens              rows.py
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from datasets import Dataset
from transformers.trainer_utils import EvalLoopOutput

from agent_gym.chat import ChatRenderer
from agent_gym.distributed import exchange, gather, gather_items
from agent_gym.errors import ConfigError, RolloutError
from agent_gym.judges import Judge
from agent_gym.policies.base import Policy
from agent_gym.policies.processors import let_videos_be_missing
from agent_gym.policies.transformers import TransformersPolicy
from agent_gym.policies.vocabulary import check_vocabulary, end_tokens
from agent_gym.registry import EnvLike
from agent_gym.rollout import Episode, EpisodeSpec, Runner, derive_seed
from agent_gym.trainers.batch import Batch, TrainingEpisode, balance, collate, select_rows, training_episode
from agent_gym.trainers.checkpoints import FILE, write_provenance
from agent_gym.trainers.config import INSTEAD, AgentGRPOConfig
from agent_gym.trainers.credit import Estimate, Timeline, assign, experience
from agent_gym.trainers.engine import build_policy, check_sharded, named_weights, wants_vllm, warn_of_rounding
from agent_gym.trainers.evaluation import evaluate
from agent_gym.trainers.hook import STAGES, RolloutBatch, TokenCredit
from agent_gym.trainers.hooks import attach, check_given
from agent_gym.trainers.losses import CLAMP, loss_weights
from agent_gym.trainers.model_probes import check_adapters
from agent_gym.trainers.noise import check_noise
from agent_gym.trainers.policy_model import policy_model
from agent_gym.trainers.rows import RowTrainer
from agent_gym.trainers.saving import Write
from agent_gym.trainers.schedule import RolloutScheduler, group_specs, returns_by_group
from agent_gym.trainers.tasks import EpochCallback, GroupSampler, Mixture, Rows, as_tasks, data_sets

_MEANS = "running_means"  # the key in the trainer's state, which checkpoints keep


def no_reward(prompts: Any, **kwargs: Any) -> list[float]:
    """Take the place of the reward function that TRL requires."""
    raise RolloutError("rewards come from the environment; this function is never called")


class AgentGRPOTrainer(RowTrainer):
    """Train a language model on an environment by policy gradients, without a critic.

    The default is GRPO. `args.advantage_estimator` chooses among the estimators that need no critic, and the other
    fields of `AgentSettings` give DAPO, GSPO, RLOO, GiGPO and others.

    Args:
        model: a model id, a folder (of a model or an adapter), the name of a prepared model, or a loaded model.
        env: the environment: a Gymnasium id, a class or function that makes an environment, or an environment that
            `gymnasium.make` has made (`registry.resolve_env`). It may be left out when the data sets name their
            environments, or with an agent.
        args: the settings.
        env_kwargs: arguments of the environment.
        train_dataset: rows from `task_dataset`, or questions with answers (`tasks.as_tasks`), as a data set or a list
            of dicts; by default all tasks of the split "train".
        eval_dataset: the same for evaluation; without it `evaluate()` needs one.
        agent: an agent to train: `async def agent(client, task)`, or any form that `gateway.agent_env` takes. It plays
            `tasks`, or acts in the environment if one is named.
        tasks: rows for the agent, or rows by split.
        reward: `reward(task, result, transcript)` of the agent.
        policy: an engine that samples in place of the one that `args` describe.
        hint: a function that writes the additional text for the teacher of an episode, in place of `args.teacher_hint`.
        judge: a model whose score is added to the environment's reward, in training and evaluation.
        **kwargs: all other arguments of `trl.GRPOTrainer`: processing_class, callbacks, optimizers, peft_config, ...

    Raises:
        ConfigError: for settings, data sets or environments that cannot work.
    """

    _tag_names = ["trl", "agent-gym", "grpo"]
    _name = "AgentGRPO"
    config_class: type[AgentGRPOConfig] = AgentGRPOConfig
    sampler: GroupSampler  # the order of the training tasks, once training has begun
    # Attributes of the base classes, with the types that this class uses.
    train_dataset: Any
    num_generations: int
    num_generations_eval: int
    shuffle_dataset: bool
    _logs: Any

    def __init__(
        self,
        model: Any,
        env: EnvLike | None = None,
        args: AgentGRPOConfig | None = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        train_dataset: Rows | None = None,
        eval_dataset: Rows | Mapping[str, Rows] | None = None,
        agent: Any = None,
        tasks: Any = None,
        reward: Any = None,
        policy: Policy | None = None,
        hint: Callable[[Episode], str] | None = None,
        judge: Judge | None = None,
        **kwargs: Any,
    ) -> None:
        args = _settings(type(self), model, args, kwargs)
        check_given(args, hint=hint, judge=judge)
        self.hint, self.judge, self._env_given = hint, judge, (env if agent is None else agent, env_kwargs)
        train_dataset, eval_dataset = data_sets(
            env, env_kwargs, train_dataset, eval_dataset, agent=agent, tasks=tasks, reward=reward, seed=args.seed
        )
        let_videos_be_missing()  # the processor of a named model may need it
        # TRL would build another engine, and its settings fail on a CPU and with a tied output layer.
        given, args.use_vllm = args.use_vllm, False
        try:
            with policy_model(model, args, kwargs) as policy_weights:
                super().__init__(
                    policy_weights,
                    reward_funcs=[cast(Any, no_reward)],
                    args=args,
                    train_dataset=train_dataset,
                    eval_dataset=eval_dataset,
                    **kwargs,
                )
        finally:
            args.use_vllm = given
        self._check_model(policy)
        self._engine_given = policy is not None
        self.use_vllm = bool(given) if policy is not None else wants_vllm(args)
        self.renderer = self._make_renderer()
        self.vision = self.renderer.vision
        self.estimator, self.credit_settings = args.estimator, args.credit
        self.rollout_tokens: float = args.rollout_tokens  # the largest number of tokens of a rollout, over all ranks
        self.spent = Counter[str]()  # episodes and tokens of training, on this rank
        self._policy_given = policy
        background = args.layout == "server"
        self.scheduler = RolloutScheduler(
            self._make_runner, self._weights, self.accelerator, policy=policy, background=background
        )
        self.add_callback(EpochCallback(self))
        attach(self)

    def _check_model(self, policy: Policy | None) -> None:
        if self._tokenizer.pad_token_id is None:  # TRL takes eos_token where the tokenizer has no pad_token
            raise ConfigError("the tokenizer has neither a pad_token nor an eos_token: set one of them")
        check_vocabulary(self._tokenizer, self.model)
        check_adapters(self.model)
        warn_of_rounding(self)
        if self.sharded:
            check_sharded(self.args, policy)

    def _make_renderer(self) -> ChatRenderer:
        renderer = ChatRenderer.of(self.processing_class)
        if self.args.chat_template_kwargs:
            renderer = ChatRenderer(self.processing_class, template_kwargs=cast(Any, self.args.chat_template_kwargs))
        for name in ("packing", "probe_steps", "sft_coef") if renderer.vision is not None else ():
            if getattr(self.args, name):
                raise ConfigError(
                    f"{name} does not know the images of rows: leave it out for a model that reads images"
                )
        renderer.also_ends_at(number for number in self.eos_token_ids if number is not None)
        end_tokens(renderer.eos_token_ids)
        return renderer

    def _make_runner(self) -> Runner:
        args, policy = self.args, self._policy_given
        if policy is None:
            model = self.accelerator.unwrap_model(self.model)
            policy = build_policy(model, self.renderer, args, self.accelerator.autocast, sharded=self.sharded)
        return Runner(
            policy,
            self.renderer,
            args.budget,
            workers=args.env_workers,
            env_processes=args.env_processes,
            max_live=args.max_live,
            context=args.context,
            judge=self.judge,
        )

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return named_weights(self.accelerator.unwrap_model(self.model))

    @property
    def runner(self) -> Runner:
        """The rollout loop with the trainer's engine, started on first use."""
        runner = self.scheduler.runner
        if not self._engine_given:  # transformers samples in place of a vLLM that cannot serve the model
            self.use_vllm = not isinstance(runner.policy, TransformersPolicy)
        return runner

    def rollout(self, specs: Sequence[EpisodeSpec], temperature: float) -> list[Episode]:
        """Play episodes with the current weights, and log the seconds of each part."""
        return self._played(lambda version: self.scheduler.rollout(specs, temperature, version))

    def _played(self, collect: Callable[[int], list[Episode]]) -> list[Episode]:
        training = self.model.training
        episodes = collect(self.state.global_step)
        self.model.train(training)  # an engine may sample from this model, in evaluation mode
        self.record(self.scheduler.take_metrics())
        _ = self.runner  # so that `use_vllm` tells the engine that has played
        for hook in self.hooks:
            hook.after_episodes(episodes)
        return episodes

    @property
    def _engine_differs(self) -> bool:
        # In half precision rounding differs, too: a token computed with a cache gives another sum than a whole row.
        half = self.accelerator.native_amp or self.model.dtype != torch.float32
        return super()._engine_differs or (half and isinstance(self.scheduler.policy, TransformersPolicy))

    # The stages of a rollout, see hook.py.

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
        number = self._rollout_number
        rollout = RolloutBatch(inputs, number, seed=derive_seed(self.args.seed, number))
        for stage in STAGES:
            getattr(self, f"_stage_{stage}")(rollout)
            for hook in self.hooks:
                getattr(hook, f"after_{stage}")(rollout)
        return rollout.batch

    def _stage_play(self, rollout: RolloutBatch) -> None:
        if self.args.max_staleness:
            batches = range(rollout.number, min(rollout.number + self.args.stale_rollouts + 1, self.n_rollouts))
            rollout.episodes = self._played(
                lambda version: self.scheduler.rollout_ahead(batches, self._specs_ahead, self.temperature, version)
            )
        else:
            first = self.accelerator.process_index * len(rollout.rows)
            rollout.episodes = self.rollout(self.specs_of(rollout.rows, first, rollout.seed), self.temperature)

    def _stage_select(self, rollout: RolloutBatch) -> None:
        rollout.returns, rollout.source_of, rollout.played = returns_by_group(rollout.episodes)
        rollout.groups = set(rollout.returns)

    def _stage_share(self, rollout: RolloutBatch) -> None:
        self._scoring_began = time.perf_counter()
        # An episode that failed, or in which the policy took no part, does not count for its task.
        counting = [e for e in rollout.episodes if not e.failure and (e.spec.greedy or e.sampled_tokens > 0)]
        kept = [self._training_episode(e) for e in counting if e.spec.group in rollout.groups]
        rollout.trained = {episode.number for episode in kept if episode.trained}
        rollout.share = self._my_share(kept)

    def _stage_lay_out(self, rollout: RolloutBatch) -> None:
        rollout.batch = self._lay_out(rollout.share)

    def _stage_score(self, rollout: RolloutBatch) -> None:
        self._score_rows(rollout.batch)

    def _stage_credit(self, rollout: RolloutBatch) -> None:
        batch = rollout.batch
        rollout.credit = self._assign_credit(batch, rollout.share)
        # Some rows are needed for credit but not for the loss. They have no further forward and backward pass.
        needed = (batch["weights"] > 0).any(1) | (batch["episode_of"] < 0)
        if not needed.all():
            rollout.batch = batch = select_rows(batch, needed.nonzero().view(-1))
        if "old_logps" in batch:
            self._add_engine_ratio(batch, batch["old_logps"])

    def _stage_log(self, rollout: RolloutBatch) -> None:
        self.record({"time/score": time.perf_counter() - self._scoring_began})

    # The parts of the stages.

    def specs_of(self, rows: Sequence[Mapping[str, Any]], first: int, seed: int) -> list[EpisodeSpec]:
        """Return the episodes of `rows`; `first` is the position of the first row among the rows of all ranks."""
        specs = group_specs(rows, first=first, group_size=self.num_generations, sampling_seed=seed)
        for hook in self.hooks:
            specs = hook.specs(specs)
        return specs

    @property
    def n_rollouts(self) -> int:
        """The number of rollouts of the whole run."""
        # Rollouts are counted in micro-steps, because the last optimizer step of an epoch has only the remaining ones.
        per_step, per_epoch = self.args.gradient_accumulation_steps, self.sampler.rollouts * self._uses
        epochs, steps = divmod(self.state.max_steps, -(-per_epoch // per_step))
        return -(-(epochs * per_epoch + steps * per_step) // self._uses)

    def _specs_ahead(self, number: int) -> list[EpisodeSpec]:
        """Return this rank's episodes of a coming rollout: an equal share of its tasks, in whole groups.

        Groups are numbered through the run. Tasks and seeds are the same as in a run without staleness.
        """
        tasks, size, seed = self.args.batch_tasks, self.num_generations, derive_seed(self.args.seed, number)
        share = tasks // self.accelerator.num_processes
        first = self.accelerator.process_index * share
        specs = []
        for place, row in list(enumerate(self.sampler.batch(number)))[first : first + share]:
            members = self.specs_of([self.train_dataset[row]] * size, place * size, seed)
            specs += [dataclasses.replace(spec, group=number * tasks + place) for spec in members]
        return specs

    def _my_share(self, kept: Sequence[TrainingEpisode]) -> list[TrainingEpisode]:
        """Send each episode to the rank that trains on it, and return the episodes of this rank, by falling length."""
        lengths = dict(gather_items([(e.number, e.n_tokens) for e in kept]))
        shares = balance(lengths, self.accelerator.num_processes)
        by_number = {episode.number: episode for episode in kept}
        outgoing = [[by_number[number] for number in share if number in by_number] for share in shares]
        received = {episode.number: episode for part in exchange(outgoing) for episode in part}
        return [received[number] for number in shares[self.accelerator.process_index]]

    def is_trained(self, episode: Episode) -> bool:
        """Whether an episode that counts for the credit of its group is also in the loss."""
        return not episode.spec.greedy and not (self.args.mask_truncated_completions and episode.truncated)

    def number_of(self, episode: Episode) -> int:
        """Return the position of an episode in the rollout, over all ranks."""
        # The members of each group are followed by a position for a greedy episode.
        return episode.spec.group * (self.num_generations + 1) + episode.spec.member

    def _training_episode(self, episode: Episode) -> TrainingEpisode:
        kept = training_episode(episode, self.number_of(episode))
        kept.trained, kept.greedy = self.is_trained(episode), episode.spec.greedy
        for hook in self.hooks:
            hook.on_episode(kept, episode)
        return kept

    def _lay_out(self, episodes: Sequence[TrainingEpisode]) -> Batch:
        n_rows = max(gather(sum(len(e.rows) for e in episodes))) + 1
        batch = collate(episodes, n_rows, self._tokenizer.pad_token_id, self.vision)
        trained = torch.tensor([*(e.trained for e in episodes), False])
        batch["weights"] = self._weigh(batch, batch["action_mask"] & trained[batch["episode_of"]][:, None])
        return batch

    def _weigh(self, batch: Batch, mask: torch.Tensor) -> torch.Tensor:
        by = self.args.loss_normalization
        return loss_weights(mask, batch["step_of"], batch["episode_of"], by, self.total, self.rollout_tokens)

    def _assign_credit(self, batch: Batch, episodes: Sequence[TrainingEpisode]) -> dict[int, TokenCredit]:
        """Add the advantages to the batch.

        Returns the advantage and the critic's value of each token, by the number of this rank's episodes.
        """
        timeline = Timeline(batch, len(episodes))
        local = experience(episodes, timeline, **self._evidence(batch, timeline))
        mine = [episode.number for episode in episodes]
        estimate = assign(
            self.estimator,
            self.credit_settings,
            local,
            mine,
            greedy=[episode.number for episode in episodes if episode.greedy],
            process_norm=self.args.process_norm,
            outcome_weight=self.args.outcome_weight,
            running_means=self._running_means() if self.estimator.needs_means else None,
            gather=gather,
        )
        for hook in self.hooks:
            estimate = hook.on_estimate(estimate, batch, timeline)
        self._take_estimate(batch, timeline, estimate)
        known = {"advantages": estimate.advantages, "values": local.values}
        return {
            number: {name: per[i, :length].tolist() for name, per in known.items() if per is not None}
            for i, (number, length) in enumerate(zip(mine, local.token_mask.sum(1).tolist(), strict=True))
        }

    def _running_means(self) -> dict[str, float]:
        """Return the means of earlier rollouts, to be updated; a rollout that is played again starts alike."""
        state = self.kept.get(_MEANS, {"rollout": -1, "after": {}})
        before = state["before" if state["rollout"] == self._rollout_number else "after"]
        after: dict[str, float] = {**before}
        self.kept[_MEANS] = {"rollout": self._rollout_number, "before": before, "after": after}
        return after

    def _evidence(self, batch: Batch, timeline: Timeline) -> dict[str, torch.Tensor]:
        if not self.kl_in_reward:
            return {}
        # The plain log-ratio (k1): its expectation is the KL, and as a reward it needs no gradient.
        return {"penalty": -self.beta * timeline.read((batch["old_logps"] - batch["ref_logps"]).clamp(-CLAMP, CLAMP))}

    def _take_estimate(self, batch: Batch, timeline: Timeline, estimate: Estimate) -> None:
        batch["advantages"] = timeline.write(estimate.advantages)

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
        return evaluate(self, as_tasks(dataloader.dataset, "eval_dataset", *self._env_given), metric_key_prefix)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> GroupSampler:
        dataset = self.train_dataset if dataset is None else dataset
        self.sampler = GroupSampler(
            len(dataset),
            group_size=self.num_generations,
            batch_tasks=self.args.batch_tasks,
            repeats=self._uses,
            seed=self.args.seed,
            shuffle=self.shuffle_dataset,
            mixture=Mixture.of(dataset),
        )
        return self.sampler

    def _files(self) -> dict[str, Write]:
        return {**super()._files(), FILE: lambda folder: write_provenance(self, folder)}


def _settings(trainer: type[AgentGRPOTrainer], model: Any, args: Any, given: Mapping[str, Any]) -> AgentGRPOConfig:
    """Return `args`, by default the settings of the trainer's class; `ConfigError` for settings that conflict."""
    for name in INSTEAD.keys() & given.keys():
        raise ConfigError(f"{trainer.__name__} takes no {name}: {INSTEAD[name]}")
    if args is None:
        name = model if isinstance(model, str) else model.config.name_or_path or "model"
        args = trainer.config_class(f"{name.rstrip('/').split('/')[-1]}-{trainer._name}")
    if args.estimator.needs_critic and not trainer.has_critic:
        raise ConfigError(f"advantage_estimator {args.advantage_estimator!r} needs a critic: use AgentPPOTrainer")
    if trainer.has_critic and not args.estimator.needs_critic:
        raise ConfigError(
            f"advantage_estimator {args.advantage_estimator!r} makes no use of a critic: use AgentGRPOTrainer, or "
            "one of gae, step_gae, bilevel_gae, pspo"
        )
    args.check_staleness()
    check_noise(args)
    return args
