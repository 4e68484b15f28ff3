"""The settings of the agent trainers: TRL's settings, and the settings of multi-turn episodes (settings.py).

TRL's names keep their meaning where they apply (`num_generations`, `temperature`, `use_vllm`, `scale_rewards`, ...). A
field of `GRPOConfig` that does not apply to this trainer is refused, and not silently ignored.
"""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import torch
from trl import GRPOConfig

from agent_gym.errors import ConfigError, one_of
from agent_gym.policies.base import MIN_TEMPERATURE
from agent_gym.rollout import Budget, make_context, tighten
from agent_gym.trainers.common import check_precision, check_warmup, choose_metric
from agent_gym.trainers.estimators import SCALES, Credit, Estimator, get_estimator
from agent_gym.trainers.public_arguments import ReportedArguments
from agent_gym.trainers.settings import AgentSettings, CriticSettings
from agent_gym.trainers.unread import check_read

_BY_REASON = {
    "Rollouts sample the full distribution, because the loss scores the full distribution": (
        "top_p top_k min_p repetition_penalty generation_kwargs vllm_structured_outputs_regex"
    ),
    "The entropy bonus is constant: entropy_coef": (
        "use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target"
    ),
    "loss_type is clip, cispo or reinforce": (
        "sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg"
    ),
    "The loss is computed here, as a weighted sum over tokens that can be cut into micro-batches anywhere": (
        "top_entropy_quantile off_policy_mask_threshold use_liger_kernel"
    ),
    "The engine is vLLM, here or behind a server (`layout`), or agent_gym's own loop around transformers": (
        "vllm_mode vllm_model_impl use_transformers_paged use_transformers_continuous_batching "
        "transformers_continuous_batching_config cache_implementation"
    ),
    "Each process runs an engine of its own": "vllm_tensor_parallel_size",
    "Servers are named by layout='server' and vllm_server_base_url": "vllm_server_host vllm_server_port",
    "How weights reach the servers is weights_transfer": "vllm_group_port",
    "Shards are gathered whenever weights go to the engine": "ds3_gather_for_generation",
    "Rows are padded to the longest of their pass": "pad_to_multiple_of",
    "Turns are limited by max_turn_tokens, episodes by max_episode_tokens": "max_completion_length",
    "Tables of completions hold no images; trajectory files do": "log_multimodal",
    "The environment owns the reward: weigh its terms with env_kwargs={'reward_weights': {...}}": (
        "reward_weights multi_objective_aggregation"
    ),
    "Turns are limited by max_turns": "max_tool_calling_iterations",
    # Of transformers.
    "There are no labels; entropy_coef keeps the policy from certainty": "label_smoothing_factor label_names",
    "Evaluation plays episodes; there are no batches of predictions": (
        "prediction_loss_only eval_do_concat_batches eval_use_gather_object eval_accumulation_steps "
        "include_for_metrics batch_eval_metrics per_device_eval_batch_size"
    ),
    "Evaluation has the precision of training: bf16": "bf16_full_eval fp16_full_eval",
    "The order of tasks comes from seed; shuffle_dataset false takes them as they are": (
        "train_sampling_strategy length_column_name data_seed"
    ),
    "An epoch has whole rollouts only": "dataloader_drop_last",
    "The columns of a row decide its episode": "remove_unused_columns",
    "A rollout has a fixed number of episodes; micro_batch_tokens bounds the tokens of a pass": "auto_find_batch_size",
    "The loss is a weighted sum over the tokens of all processes": "average_tokens_across_devices",
    "Tokens are counted in card.json and in num_tokens": "include_num_input_tokens_seen",
    "Memory is given back by the engine; micro_batch_tokens bounds that of a pass": "torch_empty_cache_steps",
    "use_liger_kernel is false": "liger_kernel_config",
    "A training command only trains, and evaluates by eval_strategy": "do_predict",
}
FIXED = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
"""The settings of TRL and transformers that must keep TRL's default here, and the reasons."""

# Settings whose default has several spellings.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_k": (0, -1, None),
    "min_p": (None, 0.0),
    "generation_kwargs": (None, {}),
    "transformers_continuous_batching_config": (None, {}),
    "pad_to_multiple_of": ("auto", None),
    "include_for_metrics": ([], None),
}

_LEAST = {
    **dict.fromkeys(("num_generations", "num_iterations", "per_device_train_batch_size"), 1),
    **dict.fromkeys(("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"), 1),
    **dict.fromkeys(("beta", "epsilon", "epsilon_high", "learning_rate", "seed"), 0),
}
"""The least values of the settings that neither TRL nor transformers checks before a run has started."""

INSTEAD = {
    "reward_funcs": (
        "the environment scores: give QuestionEnv(questions, score=f), or a term in reward_weights whose value is in "
        "Reply(terms=...)"
    ),
    "environment_factory": "give env=lambda: agent_gym.contrib.trl.FromTRL(factory, rows), or a TextEnv",
    "tools": "they belong to the environment: env=lambda: QuestionEnv(questions, tools=[f])",
    "columns": "they are an argument of the environment: env_kwargs={'columns': {'question': ..., 'answer': ...}}",
    "rollout_func": "the environment answers the policy, and policy= takes what samples",
}
"""The arguments of TRL's trainer that this trainer does not take, and their replacements."""


class _OneEpisode(int):
    """The number 1 for TRL, which refuses groups of fewer than 2 because all its estimators compare episodes."""

    def __lt__(self, other: int) -> bool:
        return False


def follow_new_words(args: Any) -> None:
    """Copy `gradient_checkpointing*` to `activation_checkpointing*`, the words of transformers 5.24, where these exist.

    TRL sets the old words, and transformers would warn of them in each run. A new word that the user set is kept.
    """
    for old in ("gradient_checkpointing", "gradient_checkpointing_kwargs"):
        new = old.replace("gradient", "activation")
        if getattr(args, new, False) is None:  # the field exists and is not set
            setattr(args, new, getattr(args, old))


@dataclass
class AgentGRPOConfig(ReportedArguments, AgentSettings, GRPOConfig):  # type: ignore[misc]  # choices, where TRL takes any text
    """Settings of `AgentGRPOTrainer`: the fields of `trl.GRPOConfig` and of `AgentSettings`.

    `per_device_train_batch_size` counts episodes. Turns and episodes have separate budgets, in place of
    `max_completion_length`. Raises `ConfigError` for settings that contradict each other or this trainer.
    """

    # Checkpointing saves memory and adds a third more computation. On a CPU speed is scarcer than memory.
    gradient_checkpointing: bool = field(
        default_factory=torch.cuda.is_available,
        metadata={"help": GRPOConfig.__dataclass_fields__["gradient_checkpointing"].metadata["help"]},
    )

    def __post_init__(self) -> None:
        follow_new_words(self)
        self.check_settings()
        if self.bf16 is None and (self.use_cpu or not torch.cuda.is_available()):
            self.bf16 = False  # TRL's default is bf16 everywhere: slow on a CPU, and refused there without use_cpu
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ConfigError(f"{name} is {value}; it must be at least {least}")
        single = self.num_generations == 1  # without groups
        if single and (self.keep_groups < 1.0 or self.keep_variance is not None or self.max_refills):
            raise ConfigError(
                "keep_groups, keep_variance and max_refills compare episodes of a task: num_generations must be above 1"
            )
        if single and self.estimator.needs_groups and self.reward_coef:
            raise ConfigError(
                f"num_generations is 1, but {self.advantage_estimator!r} compares episodes of the same task: raise it "
                "to 2 or more, or take an estimator that learns from single episodes (reinforce_pp, remax, gae, ...)"
            )
        check_precision(self)
        choose_metric(self)
        if single:
            self.num_generations = _OneEpisode(1)
        # TRL requires a multiple of the attempts of an evaluation, which this trainer plays in another way.
        evaluated, self.per_device_eval_batch_size = self.per_device_eval_batch_size, self.num_generations_eval or 8
        try:
            super().__post_init__()
        except ValueError as error:  # the user can correct a setting that TRL or transformers refuses
            raise ConfigError(str(error)) from error
        self.per_device_eval_batch_size = evaluated
        if self.do_eval and self.eval_strategy == "no":
            raise ConfigError("do_eval is True, and eval_strategy 'no' evaluates nothing: set eval_strategy to steps")
        if single:
            self.num_generations = 1
        for name, reason in FIXED.items():
            allowed = _NEUTRAL.get(name, (GRPOConfig.__dataclass_fields__[name].default,))
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; allowed: {allowed[0]!r}. {reason}")
        check_warmup(self)
        one_of("scale_rewards", self.scale_rewards, SCALES)
        if self.micro_batch_size is None and self.micro_batch_tokens is None:
            self.micro_batch_size = self.per_device_train_batch_size
        self._check_ranges()
        check_read(self)
        self._check_layout()
        # The budget is checked before the model is loaded.
        tighten(self.budget, make_context(self.context))

    def _check_ranges(self) -> None:
        """Refuse numbers that contradict each other or this trainer."""
        if self.temperature < MIN_TEMPERATURE:
            raise ConfigError(
                f"temperature is {self.temperature}; it must be at least {MIN_TEMPERATURE}: without chance all members "
                "of a group are the same. Only eval_temperature may be 0"
            )
        if self.eval_temperature != 0.0 and self.eval_temperature < MIN_TEMPERATURE:
            raise ConfigError(
                f"eval_temperature is {self.eval_temperature}; it must be 0 (greedy) or at least {MIN_TEMPERATURE}"
            )
        if self.vllm_max_model_length is not None and self.vllm_max_model_length < self.max_episode_tokens:
            raise ConfigError(
                f"vllm_max_model_length is {self.vllm_max_model_length}, less than max_episode_tokens "
                f"({self.max_episode_tokens}): leave it out, or lower max_episode_tokens"
            )
        if self.loss_type == "cispo" and (self.epsilon_high is None or self.epsilon_high <= 1.0):
            raise ConfigError(
                f"epsilon_high is {self.epsilon_high}; with loss_type 'cispo' it is the largest importance weight and "
                "must be above 1, for example 5.0"
            )
        if self.delta is not None and self.delta <= 1.0 + (self.epsilon_high or self.epsilon):
            raise ConfigError(f"delta is {self.delta}; the dual clip must lie above 1 + epsilon_high, for example 3.0")

    def _check_layout(self) -> None:
        if self.layout == "server":
            self.use_vllm = True
            if not self.server_urls:
                raise ConfigError(
                    "layout is 'server', but vllm_server_base_url names none: start `agent-gym serve model` and give "
                    "its address, for example http://127.0.0.1:8010, or several with commas"
                )
        elif self.server_urls or self.weights_transfer != "auto":
            raise ConfigError(
                "vllm_server_base_url and weights_transfer belong to layout='server'; set it, or leave them out"
            )

    def check_staleness(self) -> None:
        """Raise `ConfigError` for a staleness that allows nothing, or for settings that exclude staleness."""
        if self.max_staleness == 0:
            return
        if not self.stale_rollouts:
            raise ConfigError(
                f"max_staleness is {self.max_staleness}, and a rollout is trained on in {self.rollout_steps:g} "
                "optimizer steps, so that none can begin before the one in front of it is trained on: set it to 0, or "
                f"to {self.rollout_steps:g} or more"
            )
        if self.max_refills:
            raise ConfigError("max_staleness does not go with max_refills, which draws tasks after a rollout: take one")
        if not self.vllm_importance_sampling_correction:
            raise ConfigError("max_staleness needs vllm_importance_sampling_correction: some weights are older")
        if self.batch_tasks % self.world_size:
            raise ConfigError(
                f"with max_staleness each process plays its own whole groups: the {self.batch_tasks} tasks of a "
                f"rollout must divide by the {self.world_size} processes"
            )

    @property
    def device(self) -> torch.device:
        # With several ranks accelerate calls it "cpu:0", which torch.load refuses when a run is resumed.
        device = super().device
        return torch.device("cpu") if device.type == "cpu" else device

    @property
    def server_urls(self) -> list[str]:
        return [url.strip() for url in (self.vllm_server_base_url or "").split(",") if url.strip()]

    @property
    def weights_folder(self) -> str | None:
        """The folder of weight files for servers on other machines; None where memory or a broadcast suffices."""
        hosts = {urlsplit(url).hostname for url in self.server_urls}
        away = hosts - {"localhost", "127.0.0.1", "::1", platform.node()}
        return str(self.output_dir) if away and self.weights_transfer == "files" else None

    @property
    def batch_tasks(self) -> int:
        """Tasks of one rollout, over all ranks."""
        return cast(int, self.generation_batch_size) // cast(int, self.num_generations)

    @property
    def rollout_tokens(self) -> int:
        """Episodes of one rollout, over all ranks, x tokens of one context: `constant` divides the loss by it."""
        return cast(int, self.generation_batch_size) * self.max_episode_tokens

    @property
    def rollout_steps(self) -> float:
        """Optimizer steps on one rollout; below 1 where one step takes several rollouts."""
        return cast(int, self.steps_per_generation) * self.num_iterations / self.gradient_accumulation_steps

    @property
    def stale_rollouts(self) -> int:
        """The number of rollouts whose updates fit in `max_staleness`."""
        return math.floor(self.max_staleness / self.rollout_steps + 1e-9)

    @property
    def budget(self) -> Budget:
        return Budget(self.max_turn_tokens, self.max_episode_tokens, self.max_turns, self.episode_timeout)

    @property
    def estimator(self) -> Estimator:
        return get_estimator(self.advantage_estimator)

    @property
    def policy_loss(self) -> str:
        """The loss of a token: the loss that the estimator prescribes, if any, else `loss_type`."""
        return self.estimator.loss or self.loss_type

    @property
    def credit(self) -> Credit:
        return Credit(
            gamma=self.gamma,
            lam=self.lam,
            step_gamma=self.step_gamma,
            step_lam=self.step_lam,
            scale=self.scale_rewards,
            whiten=self.whiten_advantages,
        )


@dataclass
class AgentPPOConfig(CriticSettings, AgentGRPOConfig):  # type: ignore[misc]
    """Settings of `AgentPPOTrainer`: all fields of `AgentGRPOConfig` and of `CriticSettings`.

    TRL's `num_iterations` is the number of PPO's epochs, and `steps_per_generation` / `gradient_accumulation_steps`
    that of its minibatches.
    """
