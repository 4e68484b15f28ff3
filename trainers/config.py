"""The settings of the agent trainers: TRL's own, plus what multi-turn episodes need.

TRL's names keep their meaning where they apply (`num_generations`, `temperature`, `use_vllm`, `scale_rewards`, ...).
Fields of `GRPOConfig` that describe something this trainer does differently are checked here and not silently ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from trl import GRPOConfig

from agent_gym.errors import ConfigError
from agent_gym.policies.base import MIN_TEMPERATURE
from agent_gym.policies.vllm.weights import TRANSFERS
from agent_gym.rollout import Budget, make_context, tighten
from agent_gym.trainers.algorithm import AlgorithmConfig
from agent_gym.trainers.correction import MODES
from agent_gym.trainers.estimators import SCALES

_FULL = "Rollouts sample the full distribution, because the loss scores the full distribution"
_LOSS = "The loss is computed here, as a weighted sum over tokens that can be cut into micro-batches anywhere"
_ENGINE = "The engine is vLLM, here or behind a server as `layout` says, or agent_gym's own loop around transformers"
_WORLD = "The environment owns the reward: weigh its terms with env_kwargs={'reward_weights': {...}}"
_ENTROPY = "The entropy bonus is constant: entropy_coef"
_OTHER_LOSS = "loss_type is clip or cispo"
_SERVER = "Servers are named by layout='server' and vllm_server_base_url"

_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "top_p": ((1.0,), _FULL),
    "top_k": ((0, -1, None), _FULL),
    "min_p": ((None, 0.0), _FULL),
    "repetition_penalty": ((1.0,), _FULL),
    "generation_kwargs": ((None, {}), _FULL),
    "vllm_structured_outputs_regex": ((None,), _FULL),
    "use_adaptive_entropy": ((False,), _ENTROPY),
    "entropy_coef_min": ((0.0,), _ENTROPY),
    "entropy_coef_max": ((1.0,), _ENTROPY),
    "entropy_coef_delta": ((0.005,), _ENTROPY),
    "entropy_target": ((0.2,), _ENTROPY),
    "sapo_temperature_neg": ((1.05,), _OTHER_LOSS),
    "sapo_temperature_pos": ((1.0,), _OTHER_LOSS),
    "vespo_k_pos": ((2.0,), _OTHER_LOSS),
    "vespo_lambda_pos": ((3.0,), _OTHER_LOSS),
    "vespo_k_neg": ((3.0,), _OTHER_LOSS),
    "vespo_lambda_neg": ((2.0,), _OTHER_LOSS),
    "top_entropy_quantile": ((1.0,), _LOSS),
    "off_policy_mask_threshold": ((None,), _LOSS),
    "use_liger_kernel": ((False,), _LOSS),
    "vllm_mode": (("colocate",), _ENGINE),
    "vllm_model_impl": (("vllm",), _ENGINE),
    "vllm_tensor_parallel_size": ((1,), "Each process runs an engine of its own"),
    "vllm_server_host": (("0.0.0.0",), _SERVER),
    "vllm_server_port": ((8000,), _SERVER),
    "vllm_group_port": ((51216,), "How weights reach the servers is weights_transfer"),
    "use_transformers_paged": ((False,), _ENGINE),
    "use_transformers_continuous_batching": ((False,), _ENGINE),
    "transformers_continuous_batching_config": ((None, {}), _ENGINE),
    "cache_implementation": ((None,), _ENGINE),
    "ds3_gather_for_generation": ((True,), "Shards are gathered whenever weights go to the engine"),
    "pad_to_multiple_of": (("auto", None), "Rows are padded to the longest of their pass"),
    "max_completion_length": ((512,), "Turns are limited by max_turn_tokens, episodes by max_episode_tokens"),
    "log_multimodal": ((True,), "Tables of completions hold no images; trajectory files do"),
    "reward_weights": ((None,), _WORLD),
    "multi_objective_aggregation": (("sum_then_normalize",), _WORLD),
    "max_tool_calling_iterations": ((None,), "Turns are limited by max_turns"),
}
"""TRL's settings that allow one value here, the neutral one first, and why."""


LAYOUTS = ("colocate", "server")


class _OneEpisode(int):
    """The number 1 for TRL, which refuses groups of fewer than 2: it knows only estimators that compare."""

    def __lt__(self, other: int) -> bool:
        return False


@dataclass
class AgentGRPOConfig(AlgorithmConfig, GRPOConfig):
    """Settings of `AgentGRPOTrainer`: what `trl.GRPOConfig` and `AlgorithmConfig` have, and the fields below.

    `per_device_train_batch_size` counts episodes. Turns and episodes have budgets of their own instead of
    `max_completion_length`.

    Raises:
        ConfigError: for settings that contradict each other or this trainer.
    """

    max_turns: int | None = field(
        default=None,
        metadata={"help": "Turns after which an episode is truncated, besides the environment's own limit."},
    )
    max_turn_tokens: int = field(default=512, metadata={"help": "Tokens the policy may sample in one turn."})
    max_episode_tokens: int = field(
        default=4096, metadata={"help": "Tokens of one context: prompt, turns and answers of the world."}
    )
    episode_timeout: float | None = field(
        default=None, metadata={"help": "Seconds of wall-clock time after which an episode is stopped."}
    )
    context: str = field(
        default="append",
        metadata={
            "help": "What the model sees of earlier turns: append, window:N, budget:TOKENS, summarize:TOKENS, rebuild "
            "or template."
        },
    )
    micro_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Rows per forward and backward pass. Default: per_device_train_batch_size; with "
            "micro_batch_tokens as many as fit."
        },
    )
    micro_batch_tokens: int | None = field(
        default=None,
        metadata={"help": "Tokens per forward and backward pass, padding included; a longer row is alone in its own."},
    )
    packing: bool = field(
        default=False,
        metadata={
            "help": "Put the rows of a pass behind each other in one sequence, without padding. For attention that "
            "keeps them apart by position_ids; meant for flash attention."
        },
    )
    use_vllm: bool | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "Sample with vLLM. By default where it is installed and can serve the policy, else with "
            "transformers; true insists, false never does. A policy= of your own is taken as it is."
        },
    )
    layout: str = field(
        default="colocate",
        metadata={
            "help": "Where vLLM runs: colocate (an engine in each training process) or server (`agent-gym serve model` "
            "on other GPUs, at vllm_server_base_url)."
        },
    )
    weights_transfer: str = field(
        default="auto",
        metadata={
            "help": "With layout server: how weights get there: files, broadcast (NCCL between GPUs, gloo elsewhere) "
            "or auto, which broadcasts between GPUs that reach each other."
        },
    )
    weights_folder: str | None = field(
        default=None,
        metadata={
            "help": "With layout server: where files with weights are handed over, in a folder that the servers see, "
            "too. By default in this machine's memory (/dev/shm)."
        },
    )
    overlap: bool = field(
        default=False,
        metadata={
            "help": "Play the next rollout while this one trains, with weights that are one rollout older. For layout "
            "server, where engine and trainer do not share a device."
        },
    )
    over_sampling: float = field(
        default=0.0,
        metadata={
            "help": "Share of task groups in play beside those that a batch needs, so that a rollout does not wait for "
            "its slowest: what is unfinished goes on in the next one, and none is dropped."
        },
    )
    max_num_seqs: int = field(default=256, metadata={"help": "Most sequences vLLM decodes at once, per process."})
    env_workers: int = field(default=32, metadata={"help": "Environments that compute at the same time, per process."})
    env_processes: int = field(
        default=0,
        metadata={
            "help": "Processes that run environments while the threads wait, per process; 0 for none. For environments "
            "that compute in Python or are not thread-safe."
        },
    )
    eval_temperature: float = field(
        default=0.0, metadata={"help": "Sampling temperature of evaluation; 0 is greedy decoding."}
    )
    trajectories_per_step: int = field(
        default=8,
        metadata={"help": "Episodes written to <output_dir>/trajectories per rollout and process; 0 writes none."},
    )
    rollout_progress: bool = field(default=False, metadata={"help": "Show a progress bar for each rollout."})

    # Defaults of TRL that do not suit episodes.
    num_generations_eval: int | None = field(default=1, metadata={"help": "Attempts per task in evaluation."})
    vllm_importance_sampling_mode: str = field(
        # The ratio of a whole multi-turn row is a product over thousands of tokens: with bf16 rollouts it leaves any
        # fixed range by rounding alone, and "sequence_mask" (TRL's default) then drops the episode.
        default="token_truncate",
        metadata={"help": "How the ratio between trainer and engine logprobs is bounded; see trl.GRPOConfig."},
    )

    def __post_init__(self) -> None:
        """Check what only this trainer can know."""
        self.check_algorithm()
        if self.single:
            self.num_generations = _OneEpisode(1)
        try:
            super().__post_init__()
        except ValueError as error:  # what TRL and transformers find wrong is the user's to mend too
            raise ConfigError(str(error)) from error
        if self.single:
            self.num_generations = 1
        if self.device.type == "cpu":
            # With several processes accelerate calls it "cpu:0", which torch.load refuses when a run is taken up again.
            self.__dict__["_setup_devices"] = torch.device("cpu")
        for name, (allowed, reason) in _FIXED.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; allowed: {allowed[0]!r}. {reason}")
        for name, choices in (("scale_rewards", SCALES), ("vllm_importance_sampling_mode", MODES)):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; allowed: {', '.join(choices)}")
        self._check_layout()
        if self.temperature < MIN_TEMPERATURE:
            raise ConfigError(
                f"temperature is {self.temperature}; it must be at least {MIN_TEMPERATURE}: without chance all members "
                "of a group are the same. Only eval_temperature may be 0"
            )
        if self.eval_temperature != 0.0 and self.eval_temperature < MIN_TEMPERATURE:
            raise ConfigError(
                f"eval_temperature is {self.eval_temperature}; it must be 0 (greedy) or at least {MIN_TEMPERATURE}"
            )
        if self.micro_batch_size is None and self.micro_batch_tokens is None:
            self.micro_batch_size = self.per_device_train_batch_size
        at_least = {"max_num_seqs": 1, "env_workers": 1, "env_processes": 0, "trajectories_per_step": 0}
        at_least |= {"micro_batch_size": 1, "micro_batch_tokens": 2}
        for name, least in at_least.items():
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}")
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
        if self.overlong_buffer > self.max_turn_tokens:
            raise ConfigError(
                f"overlong_buffer is {self.overlong_buffer}; it must be at most max_turn_tokens, here "
                f"{self.max_turn_tokens}"
            )
        # The limits are checked now and not after the model is loaded.
        tighten(self.budget, make_context(self.context))

    def _check_layout(self) -> None:
        for name, allowed in (("layout", LAYOUTS), ("weights_transfer", TRANSFERS)):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
        if self.layout == "server":
            self.use_vllm = True
            if not self.server_urls:
                raise ConfigError(
                    "layout is 'server', but vllm_server_base_url names none: start `agent-gym serve model` and give "
                    "its address, for example http://127.0.0.1:8010, or several with commas"
                )
        if self.overlap and not self.vllm_importance_sampling_correction:
            raise ConfigError("overlap needs vllm_importance_sampling_correction: the samples are of older weights")
        if self.layout != "server" and (self.server_urls or self.weights_folder or self.weights_transfer != "auto"):
            raise ConfigError(
                "vllm_server_base_url, weights_transfer and weights_folder belong to layout='server'; set it, or leave "
                "them out"
            )
        if self.weights_transfer == "broadcast" and self.weights_folder:
            raise ConfigError("weights_folder is for weights_transfer='files'; a broadcast needs none")

    def check_over_sampling(self) -> None:
        """Raise `ConfigError` for a share of further tasks that is none, or settings that do not go with it."""
        share = self.over_sampling
        if not 0.0 <= share < 1.0:
            raise ConfigError(f"over_sampling is {share}; it must be at least 0 and below 1")
        if share == 0.0:
            return
        if self.overlap:
            raise ConfigError("over_sampling and overlap both make samples one rollout old: take one of them")
        if self.max_refills:
            raise ConfigError(
                "over_sampling does not go with max_refills, which draws further tasks when a rollout is done: take one"
            )
        if not self.vllm_importance_sampling_correction:
            raise ConfigError("over_sampling needs vllm_importance_sampling_correction: some weights are older")
        if self.batch_tasks % self.world_size:
            raise ConfigError(
                f"with over_sampling each process plays whole groups of its own: the {self.batch_tasks} tasks of a "
                f"rollout must divide by the {self.world_size} processes"
            )
        if not self.extra_tasks:
            raise ConfigError(
                f"over_sampling is {share}, less than one of the {self.batch_tasks // self.world_size} tasks that a "
                "process plays in a rollout: raise it, give a rollout more tasks, or set it to 0"
            )

    def check_overlap(self, own_policy: bool) -> None:
        """Raise `ConfigError` if the engine cannot play while the trainer trains.

        Args:
            own_policy: whether the user brought an engine, which then must keep its weights to itself.
        """
        if self.overlap and self.layout != "server" and not own_policy:
            raise ConfigError("overlap needs layout='server': an engine in the training process shares its device")

    @property
    def server_urls(self) -> list[str]:
        """The addresses of the model servers."""
        return [url.strip() for url in (self.vllm_server_base_url or "").split(",") if url.strip()]

    @property
    def chunks(self) -> int:
        """Optimizer micro-steps that share one rollout; TRL resolves it from three settings."""
        assert self.steps_per_generation is not None
        return self.steps_per_generation

    @property
    def batch_tasks(self) -> int:
        """Tasks of one rollout, over all processes."""
        assert self.generation_batch_size is not None and self.num_generations is not None
        return self.generation_batch_size // self.num_generations

    @property
    def rollout_tokens(self) -> int:
        """Episodes of one rollout, over all processes, x tokens of one context: what `constant` divides the loss by."""
        assert self.generation_batch_size is not None
        return self.generation_batch_size * self.max_episode_tokens

    @property
    def extra_tasks(self) -> int:
        """Tasks that each process has in play beside those that it needs, with over_sampling."""
        return math.floor(self.over_sampling * self.batch_tasks / self.world_size + 1e-9)

    @property
    def budget(self) -> Budget:
        """The limits of one episode."""
        return Budget(
            max_turn_tokens=self.max_turn_tokens,
            max_tokens=self.max_episode_tokens,
            max_turns=self.max_turns,
            max_seconds=self.episode_timeout,
        )
