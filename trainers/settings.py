"""The settings of this project, by group: settings for multi-turn episodes that TRL does not have.

This module imports neither torch nor TRL, so that `--help` can show these settings at once. config.py joins them with
the settings of TRL. A setting that TRL has keeps TRL's name (`epsilon`, `delta`, `beta`, `scale_rewards`, ...).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from agent_gym.errors import ConfigError, one_of

GROUPS = {
    "episodes": "The episodes",
    "sampling": "The place and time of playing",
    "credit": "From rewards to advantages",
    "selection": "The choice of episodes to train on",
    "loss": "From advantages to the gradient",
    "teacher": "Teachers and demonstrations",
    "memory": "The micro-batches",
    "critic": "The critic",
    "evaluation": "Evaluation and records",
}
"""The groups of settings, in the order in which the help shows them."""

HINTS = ("gold", "plan")
"""The names that `teacher_hint` may have in braces."""

REMOVED = {
    "gigpo_step_weight": "GiGPO adds the step advantage with weight 1, as the paper does: leave it out",
    "weights_folder": "weights_transfer='files' writes into output_dir where a server is on another machine",
    "minibatch_by": "the rows of a rollout are divided at random, whose gradient is the same on average",
    "turn_curriculum": "set max_turns, and raise it from run to run with --resume_from_checkpoint",
}
"""Settings that earlier versions had, each with its replacement."""

EstimatorName = Literal[
    "grpo", "dr_grpo", "rloo", "remax", "reinforce_pp", "reinforce_pp_baseline", "gigpo", "rae", "reinforce",
    "raft", "raft_pp", "gae", "step_gae", "bilevel_gae", "pspo",
]  # fmt: skip

BoundedRatio = Literal[
    "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_truncate", "geometric_mask",
    "in_ratio",
]  # fmt: skip

_TRL_LOSSES = {
    "dapo": "loss_type='clip', loss_normalization='token'",
    "grpo": "loss_type='clip', loss_normalization='sequence'",
    "dr_grpo": "advantage_estimator='dr_grpo', loss_type='clip', loss_normalization='constant'",
}


class Default(int):
    """A default that a rule may change. The same number that a user gives is an int, and stays."""


class _Metadata(dict[str, Any]):
    """The facts of a setting. The parser of transformers passes a copy to argparse, which knows only `help`."""

    def copy(self) -> dict[str, Any]:
        return {"help": self["help"]}


def _setting(group: str, default: Any, text: str, least: int | None = None) -> Any:
    """Declare a setting: its group in `GROUPS`, its default, its help, and the least value that it may have."""
    return field(default=default, metadata=_Metadata(help=text, group=group, least=least))


_episodes, _sampling, _credit, _selection, _loss, _teacher, _memory, _critic, _evaluation = (
    functools.partial(_setting, group) for group in GROUPS
)

_hints = functools.cache(get_type_hints)


def choices(settings: type, name: str) -> list[Any]:
    """Return the values that a setting allows, None first; empty if it is not a choice."""
    hint = _hints(settings)[name]
    kinds = [kind for kind in (hint, *get_args(hint)) if getattr(kind, "__origin__", None) is Literal]
    allowed = [value for kind in kinds for value in get_args(kind)]
    return [None, *allowed] if allowed and type(None) in get_args(hint) else allowed


_KINDS: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    NoneType: (NoneType, "None"),
}


def check_types(settings: Any) -> None:
    """Raise `ConfigError` for a value of the wrong type, in settings of numbers and truth values.

    The command line makes values of the right types. In Python, `learning_rate="1e-4"` would be compared with 0. Texts
    are not checked, because settings of TRL that are declared as text also take other types.
    """
    of: type = type(settings)
    for one in fields(settings):
        hint, value = _hints(of)[one.name], getattr(settings, one.name)
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if value is one.default or not set(kinds) <= _KINDS.keys():
            continue
        if not isinstance(value, tuple(_KINDS[kind][0] for kind in kinds)):
            words = " or ".join(_KINDS[kind][1] for kind in kinds)
            raise ConfigError(f"{one.name} is {value!r}; it must be {words}")


def check_removed(names: Iterable[str]) -> None:
    """Raise `ConfigError` if one of the names is a setting that was removed."""
    for name in names:
        if name in REMOVED:
            raise ConfigError(f"the setting {name} was removed: {REMOVED[name]}")


@dataclass
class AgentSettings:
    """The settings that `AgentGRPOConfig` adds to `trl.GRPOConfig`. Each field is declared by its group in `GROUPS`."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        check_removed(given)  # before the generated `__init__`, which would call them unexpected
        return super().__new__(cls)

    max_turns: int | None = _episodes(None, "Limit of turns in an episode, in addition to the environment's limit.")
    max_turn_tokens: int = _episodes(512, "Limit of tokens that the policy samples in one turn.")
    max_episode_tokens: int = _episodes(
        Default(4096), "Limit of tokens in one context: prompt, turns and observations."
    )
    episode_timeout: float | None = _episodes(None, "Limit of seconds of wall-clock time for an episode.")
    context: str = _episodes(
        "append",
        "Context policy for earlier turns: append, window:N, budget:TOKENS, summarize:TOKENS, rebuild or template.",
    )
    use_vllm: bool | None = _sampling(
        None,
        "Sample with vLLM. The default is vLLM if it is installed and can serve the policy, else transformers. With "
        "true vLLM is required, with false it is not used. A given policy= is used unchanged.",
    )
    layout: Literal["colocate", "server"] = _sampling(
        "colocate",
        "Where vLLM runs: colocate (in each training process) or server (`agent-gym serve model` on other GPUs, at "
        "vllm_server_base_url).",
    )
    engine_process: bool | None = _sampling(
        None,
        "With layout colocate: run vLLM in a separate process, which environments that compute in Python do not slow. "
        "The default is true on GPUs, for policies that read no images.",
    )
    weights_transfer: Literal["auto", "files", "broadcast"] = _sampling(
        "auto",
        "With layout server: the transfer of weights: broadcast (NCCL between GPUs, gloo elsewhere), files (in memory; "
        "for servers on other machines in output_dir) or auto, which broadcasts between GPUs that reach each other.",
    )
    max_staleness: int = _sampling(
        0,
        "Limit of optimizer steps by which a token may be older than the weights that learn from it. Above 0 training "
        "does not wait for the slowest episodes, and servers sample during updates.",
        0,
    )
    max_live: int = _sampling(512, "Limit of live episodes at the same time, per process.", 1)
    max_num_seqs: int = _sampling(256, "Limit of sequences that vLLM decodes at the same time, per process.", 1)
    env_workers: int = _sampling(32, "Limit of environments that compute at the same time, per process.", 1)
    env_processes: int = _sampling(
        0,
        "Processes that run environments, per process; 0 for threads. For environments that compute in Python or are "
        "not thread-safe.",
        0,
    )
    # The ratio of a whole multi-turn row is a product over thousands of tokens. With bf16 rollouts it leaves any fixed
    # range by rounding alone, and "sequence_mask" (TRL's default) then drops the episode.
    vllm_importance_sampling_mode: BoundedRatio = _loss(
        "token_truncate",
        "Bound on the ratio between trainer and engine logprobs: of each token, of the row, or of the geometric mean "
        "of the row's tokens. in_ratio: by the clip of the loss, whose old logprobs are then the engine's.",
    )
    engine_tolerance: float | None = _sampling(
        0.01,
        "Limit of nats per token (sampling/kl) between the engine's logprobs and the loss's on the first rollout; "
        "above it training stops before its first update. In 16 bits the limit is 10 times this. None, inf: no limit.",
        0,
    )
    advantage_estimator: EstimatorName = _credit(
        "grpo", f"How credit is given: {', '.join(get_args(EstimatorName))}. The last four need a critic."
    )
    gamma: float = _credit(1.0, "Discount per sampled token.")
    lam: float = _credit(1.0, "Lambda of the GAE over tokens.")
    step_gamma: float = _credit(1.0, "Discount per step, also of process rewards.")
    step_lam: float = _credit(1.0, "Lambda of the GAE over steps.")
    whiten_advantages: bool = _credit(
        True, "Centre and scale advantages over the batch, in the estimators that do so by definition."
    )
    process_norm: Literal["none", "trajectory", "group", "batch", "prime"] | None = _credit(
        None, "Scale of process rewards, which are credited from their step on; by default like any other reward."
    )
    outcome_weight: float = _credit(1.0, "With process_norm: factor of the outcome reward.", 0)
    keep_groups: float = _selection(1.0, "StarPO-S: train on this share of the groups, by largest reward spread.")
    keep_variance: float | None = _selection(
        None,
        "RAGEN-2's SNR-aware filter: train on the fewest groups that hold this share of the summed reward variance.",
    )
    starpo_s: Literal["off", "auto"] = _selection("off", "auto: StarPO-S, from a warning of echo_trap on.")
    max_refills: int = _selection(
        0, "DAPO's dynamic sampling: replace groups without spread by new tasks, up to this many times.", 0
    )
    overlong_buffer: int = _selection(
        0, "DAPO's soft penalty: tokens before max_turn_tokens over which it rises to 1; 0 for no penalty.", 0
    )
    loss_type: Literal["clip", "cispo", "reinforce"] = _loss(
        "clip", "clip (PPO's), cispo, or reinforce (no ratio). TRL's dapo is clip with loss_normalization token."
    )
    loss_normalization: Literal["token", "sequence", "step", "episode", "constant"] = _loss(
        "token",
        "Unit of equal weight in the loss: token, sequence (row), step or episode; or constant (Dr. GRPO): each token "
        "has the weight 1 / (episodes of a rollout x max_episode_tokens).",
    )
    importance_sampling_level: Literal["token", "step", "sequence"] = _loss(
        "token", "Unit of the probability ratio: token, step (GSPO per step) or sequence (row)."
    )
    kl_in: Literal["loss", "reward"] = _loss(
        "loss",
        "Place of beta x KL: loss (k3 x probability ratio; k3 alone with use_bias_correction_kl false) or reward "
        "(log-ratio per token, before credit is given).",
    )
    teacher: str | None = _teacher(
        None,
        "Teacher whose logprobs of the policy's tokens give advantages: a model (id, folder, prepared name), a vLLM "
        "server (http://HOST:PORT/v1), self (the policy's current weights) or initial (the policy's first weights).",
    )
    teacher_coef: float = _teacher(
        1.0, "Factor of log p_teacher - log p_policy of each sampled token in its advantage.", 0
    )
    reward_coef: float = _teacher(
        1.0, "With teacher: factor of the advantages from rewards; with 0 only the teacher gives advantages.", 0
    )
    teacher_gamma: float = _teacher(0.0, "Discount per sampled token of the teacher's terms of later tokens.")
    teacher_hint: str | None = _teacher(
        None,
        "Text for the teacher alone, at the end of the task: {gold} is the gold answer, {plan} the expert's turns.",
    )
    sft_coef: float = _teacher(
        0.0, "Factor of the SFT loss on episodes of the environment's expert, added to RL; 0 for none.", 0
    )
    sft_share: float = _teacher(0.125, "With sft_coef: share of a rollout's tasks that the expert plays, too.")
    micro_batch_size: int | None = _memory(
        None, "Rows per pass; per_device_train_batch_size, or with micro_batch_tokens as many as fit.", 1
    )
    micro_batch_tokens: int | None = _memory(
        None,
        "Tokens per forward and backward pass, padding included; a longer row has a pass alone, and a row that shares "
        "half of its tokens with the pass may exceed it by one row.",
        2,
    )
    packing: bool = _memory(
        False,
        "Join the rows of a pass into one sequence, without padding, for attention that keeps rows apart by "
        "position_ids (flash attention).",
    )
    eval_temperature: float = _evaluation(0.0, "Sampling temperature of evaluation; 0 is greedy decoding.")
    num_generations_eval: int | None = _evaluation(1, "Attempts per task in evaluation.", 1)
    trajectories_per_step: int = _evaluation(
        8, "Episodes written to <output_dir>/trajectories per rollout and process; 0 writes none.", 0
    )
    echo_trap: Literal["off", "warn", "stop"] = _evaluation(
        "warn", "Action of the monitor at signs of a collapse: off, warn or stop."
    )

    probe_steps: int = _evaluation(
        0,
        "Steps between probes, which score responses under each other's prompts to see their dependence; 0 for none.",
        0,
    )

    def check_settings(self) -> None:
        """Raise `ConfigError` for impossible values, and for settings of this project that contradict each other."""
        check_types(self)
        if self.loss_type in _TRL_LOSSES:
            raise ConfigError(f"loss_type {self.loss_type!r} of TRL is called {_TRL_LOSSES[self.loss_type]} here")
        for own in (own for own in fields(self) if "group" in own.metadata):
            value, least, allowed = getattr(self, own.name), own.metadata["least"], choices(type(self), own.name)
            if allowed:
                one_of(own.name, value, allowed)
            if least is not None and value is not None and value < least:
                raise ConfigError(f"{own.name} is {value}; it must be at least {least}")
        for name in ("gamma", "lam", "step_gamma", "step_lam", "teacher_gamma"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be from 0 to 1")
        for name, more in (("keep_groups", ""), ("keep_variance", ", or None to keep all groups"), ("sft_share", "")):
            value = getattr(self, name)
            if value is not None and not 0.0 < value <= 1.0:
                raise ConfigError(f"{name} is {value}; it must be above 0 and at most 1{more}")
        if self.keep_variance is not None and self.keep_groups < 1.0:
            raise ConfigError(
                f"keep_groups {self.keep_groups} and keep_variance {self.keep_variance} are two rules for one choice: "
                "set one of them"
            )
        if self.outcome_weight != 1.0 and self.process_norm is None:
            raise ConfigError("outcome_weight weighs the outcome against process rewards: set process_norm, too")
        self._check_teacher()
        if self.overlong_buffer > self.max_turn_tokens:
            raise ConfigError(
                f"overlong_buffer is {self.overlong_buffer}; it must be at most max_turn_tokens, here "
                f"{self.max_turn_tokens}"
            )
        if self.engine_process is not None and self.layout == "server":
            raise ConfigError(
                f"engine_process is {self.engine_process}, and layout 'server' has engines elsewhere: leave it out"
            )

    def _check_teacher(self) -> None:
        """Raise `ConfigError` for settings of a teacher without one, and for hints with names that no fact fills."""
        own = ("teacher_coef", "reward_coef", "teacher_gamma", "teacher_hint")
        defaults = {one.name: one.default for one in fields(self)}
        given = [name for name in own if getattr(self, name) != defaults[name]]
        if self.teacher is None and given:
            raise ConfigError(f"{given[0]} is {getattr(self, given[0])!r} without a teacher: name one (teacher=...)")
        if unknown := set(re.findall(r"{(\w*)}", self.teacher_hint or "")) - set(HINTS):
            places = ", ".join(f"{{{name}}}" for name in HINTS)
            raise ConfigError(f"teacher_hint has the place {{{min(unknown)}}}, which nothing fills; allowed: {places}")


@dataclass
class CriticSettings:
    """The settings that `AgentPPOConfig` adds: the settings of the critic, and defaults that suit a critic."""

    critic: Literal["model", "head"] = _critic(
        "model", "model: a separate backbone; head: one layer on the policy's trunk."
    )
    critic_learning_rate: float = _critic(1e-5, "Learning rate of the critic.", 0)
    critic_warmup_steps: int = _critic(0, "Optimizer steps at the start in which only the critic learns.", 0)
    vf_coef: float = _critic(0.5, "Factor of the value loss.", 0)
    cliprange_value: float | None = _critic(
        0.2, "Limit of a value's distance from the old value within a rollout; None for no limit."
    )
    advantage_estimator: EstimatorName = _credit("gae", "How credit is given: gae, step_gae, bilevel_gae or pspo.")
    num_generations: int | None = _credit(1, "Episodes per task. The critic is the baseline, so one is enough.")

    def check_settings(self) -> None:
        if self.cliprange_value is not None and self.cliprange_value <= 0:
            raise ConfigError(f"cliprange_value is {self.cliprange_value}; it must be positive, or None for no limit")
        super().check_settings()  # type: ignore[misc]  # `AgentSettings` follows in the bases of every config
