"""The settings of our own, by group: what multi-turn episodes need besides the settings of TRL.

This file imports neither torch nor TRL, so that `--help` can show these settings at once. config.py joins them with
TRL's. Where TRL has a name for something, it keeps that name (`epsilon`, `delta`, `beta`, `scale_rewards`, ...).
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
    "episodes": "What an episode is",
    "sampling": "Where and when episodes are played",
    "credit": "From rewards to advantages",
    "selection": "Which episodes are trained on",
    "loss": "From advantages to the gradient",
    "teacher": "Teachers and demonstrations",
    "memory": "How a minibatch is cut",
    "critic": "The critic",
    "evaluation": "Evaluation and records",
}
"""The groups of settings, in the order in which the help shows them."""

HINTS = ("gold", "plan")
"""What may stand in braces in `teacher_hint`."""

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


class _Metadata(dict[str, Any]):
    """What is known of a setting. The parser of transformers hands a copy to argparse, which knows only `help`."""

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

    The command line has made values of these types. In Python, `learning_rate="1e-4"` would be compared with 0. Texts
    are left alone: settings of TRL that are declared as text take other things, too.
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
    """What `AgentGRPOConfig` adds to `trl.GRPOConfig`. Each field is declared by its group in `GROUPS`."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        check_removed(given)  # before the generated `__init__` calls them unexpected
        return super().__new__(cls)

    max_turns: int | None = _episodes(None, "Turns of an episode, besides the environment's own limit.")
    max_turn_tokens: int = _episodes(512, "Tokens the policy may sample in one turn.")
    max_episode_tokens: int = _episodes(4096, "Tokens of one context: prompt, turns and observations.")
    episode_timeout: float | None = _episodes(None, "Seconds of wall-clock time that an episode may take.")
    context: str = _episodes(
        "append",
        "What the model sees of earlier turns: append, window:N, budget:TOKENS, summarize:TOKENS, rebuild or template.",
    )
    use_vllm: bool | None = _sampling(
        None,
        "Sample with vLLM. By default where it is installed and can serve the policy, else with transformers; true "
        "insists, false never does. A policy= of your own is taken as it is.",
    )
    layout: Literal["colocate", "server"] = _sampling(
        "colocate",
        "Where vLLM runs: colocate (in each training process) or server (`agent-gym serve model` on other GPUs, at "
        "vllm_server_base_url).",
    )
    engine_process: bool | None = _sampling(
        None,
        "With layout colocate: vLLM in a process of its own, which environments that compute in Python do not slow. "
        "By default on GPUs, for policies that read no images.",
    )
    weights_transfer: Literal["auto", "files", "broadcast"] = _sampling(
        "auto",
        "With layout server: how weights get there: broadcast (NCCL between GPUs, gloo elsewhere), files (in memory; "
        "for servers of other machines in output_dir) or auto, which broadcasts between GPUs that reach each other.",
    )
    max_staleness: int = _sampling(
        0,
        "Optimizer steps by which a token may be older than the weights that learn from it. Above 0 nothing waits for "
        "the slowest episodes, and servers sample during updates.",
        0,
    )
    max_live: int = _sampling(512, "Episodes alive at the same time, per process.", 1)
    max_num_seqs: int = _sampling(256, "Most sequences vLLM decodes at once, per process.", 1)
    env_workers: int = _sampling(32, "Environments that compute at the same time, per process.", 1)
    env_processes: int = _sampling(
        0,
        "Processes that run environments, per process; 0 for threads. For environments that compute in Python or are "
        "not thread-safe.",
        0,
    )
    # The ratio of a whole multi-turn row is a product over thousands of tokens: with bf16 rollouts it leaves any fixed
    # range by rounding alone, and "sequence_mask" (TRL's default) then drops the episode.
    vllm_importance_sampling_mode: BoundedRatio = _loss(
        "token_truncate",
        "How the ratio between trainer and engine logprobs is bounded: of each token, of the row, or the geometric "
        "mean of the row's tokens. in_ratio: by the clip of the loss, whose old logprobs are then the engine's.",
    )
    engine_tolerance: float | None = _sampling(
        0.01,
        "Nats per token (sampling/kl) by which the engine's logprobs may differ from those of the loss on the first "
        "rollout; training stops before its first update above it. In 16 bits 10 times as much. None, or inf: never.",
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
        None, "Credit process rewards from their step on, scaled this way; by default as any other reward."
    )
    outcome_weight: float = _credit(1.0, "With process_norm: factor of the outcome reward.", 0)
    keep_groups: float = _selection(1.0, "StarPO-S: train on this share of the groups, those of largest reward spread.")
    keep_variance: float | None = _selection(
        None,
        "RAGEN-2's SNR-aware filter: train on the fewest groups that hold this share of the summed reward variance.",
    )
    max_refills: int = _selection(
        0, "DAPO's dynamic sampling: replace groups without spread by new tasks, up to this many times.", 0
    )
    overlong_buffer: int = _selection(
        0, "DAPO's soft penalty: tokens before max_turn_tokens in which it rises to 1; 0 for none.", 0
    )
    loss_type: Literal["clip", "cispo", "reinforce"] = _loss(
        "clip", "clip (PPO's), cispo, or reinforce (no ratio). TRL's dapo is clip with loss_normalization token."
    )
    loss_normalization: Literal["token", "sequence", "step", "episode", "constant"] = _loss(
        "token",
        "What counts the same in the loss: token, sequence (row), step or episode; or constant (Dr. GRPO): each token "
        "by 1 / (episodes of a rollout x max_episode_tokens).",
    )
    importance_sampling_level: Literal["token", "step", "sequence"] = _loss(
        "token", "Over what the probability ratio is taken: token, step (GSPO per step) or sequence (row)."
    )
    kl_in: Literal["loss", "reward"] = _loss(
        "loss",
        "Where beta x KL goes: loss (k3 x probability ratio; k3 alone with use_bias_correction_kl false) or reward "
        "(log-ratio per token, before credit is given).",
    )
    teacher: str | None = _teacher(
        None,
        "Whose logprobs of the policy's own tokens give advantages: a model (id, folder, prepared name), a vLLM server "
        "(http://HOST:PORT/v1), self (the policy's current weights) or initial (those that it starts with).",
    )
    teacher_coef: float = _teacher(
        1.0, "Factor of log p_teacher - log p_policy of each sampled token in its advantage.", 0
    )
    reward_coef: float = _teacher(
        1.0, "Factor of the advantages from rewards beside it; with 0 the teacher alone is learned from.", 0
    )
    teacher_gamma: float = _teacher(0.0, "Discount per sampled token of what the teacher finds of later tokens.")
    teacher_hint: str | None = _teacher(
        None,
        "What only the teacher reads, at the end of the task: {gold} is the gold answer, {plan} the expert's turns.",
    )
    sft_coef: float = _teacher(
        0.0, "Factor of the SFT loss on episodes of the environment's expert, beside RL; 0 for none.", 0
    )
    sft_share: float = _teacher(0.125, "With sft_coef: share of a rollout's tasks that the expert plays, too.")
    micro_batch_size: int | None = _memory(
        None, "Rows per pass; per_device_train_batch_size, or with micro_batch_tokens as many as fit.", 1
    )
    micro_batch_tokens: int | None = _memory(
        None, "Tokens per forward and backward pass, padding included; a longer row is alone in its own.", 2
    )
    packing: bool = _memory(
        False,
        "Put the rows of a pass behind each other in one sequence, without padding, for attention that keeps them "
        "apart by position_ids (flash attention).",
    )
    eval_temperature: float = _evaluation(0.0, "Sampling temperature of evaluation; 0 is greedy decoding.")
    num_generations_eval: int | None = _evaluation(1, "Attempts per task in evaluation.", 1)
    trajectories_per_step: int = _evaluation(
        8, "Episodes written to <output_dir>/trajectories per rollout and process; 0 writes none.", 0
    )
    echo_trap: Literal["off", "warn", "stop"] = _evaluation(
        "warn", "What the collapse monitor does when it sees one coming: off, warn or stop."
    )

    probe_steps: int = _evaluation(
        0,
        "Every so many steps score responses under each other's prompts, to see if they depend on them; 0 for never.",
        0,
    )

    def check_settings(self) -> None:
        """Raise `ConfigError` for values that no run can have, and for settings of ours that contradict each other."""
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
        """Find settings of a teacher without one, and hints with places that nothing fills."""
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
    """What `AgentPPOConfig` adds: the settings of the critic, and defaults that suit one."""

    critic: Literal["model", "head"] = _critic(
        "model", "model: a backbone of its own; head: one layer on the policy's trunk."
    )
    critic_learning_rate: float = _critic(1e-5, "Learning rate of the critic.", 0)
    critic_warmup_steps: int = _critic(0, "Optimizer steps at the start in which only the critic learns.", 0)
    vf_coef: float = _critic(0.5, "Factor of the value loss.", 0)
    cliprange_value: float | None = _critic(
        0.2, "How far a value may move from the old one within a rollout; None for no limit."
    )
    advantage_estimator: EstimatorName = _credit("gae", "How credit is given: gae, step_gae, bilevel_gae or pspo.")
    num_generations: int | None = _credit(1, "Episodes per task. The critic is the comparison, so one is enough.")

    def check_settings(self) -> None:
        if self.cliprange_value is not None and self.cliprange_value <= 0:
            raise ConfigError(f"cliprange_value is {self.cliprange_value}; it must be positive, or None for no limit")
        super().check_settings()  # type: ignore[misc]  # of `AgentSettings`, which stands behind in every config
