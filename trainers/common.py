"""Checks of the settings of transformers that all training commands share: a wrong one would fail late or do nothing.

Each trainer lists the settings that it does not support (config.py, `UNUSED_BY_SFT`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from agent_gym.errors import ConfigError

_NO_WARMUP = {"constant": "constant_with_warmup", "reduce_lr_on_plateau": "cosine or another schedule"}
_COUNTED = ("success", "success_low", "success_high", "reward", "episodes", "failed")
_MEANS = ("episode/success", "episode/turns", "episode/tokens", "episode/truncated", "episode/tool_calls",
          "episode/parse_errors")  # fmt: skip
_TIMES = ("runtime", "samples_per_second", "steps_per_second")
_FAMILIES = ("reward/", "env/", "tool/")
METRICS = (*_COUNTED, *_MEANS, *_TIMES)
"""The metrics that every evaluation has. Each evaluation also has the metrics of its environment, under `_FAMILIES`."""

UNUSED_BY_SFT = {
    **dict.fromkeys(
        ("dataset_text_field", "dataset_num_proc", "completion_only_loss", "assistant_only_loss", "truncation_mode"),
        "demonstrations come as tokens, and train_on says which of them count",
    ),
    **dict.fromkeys(("packing_strategy", "eval_packing"), "demonstrations are not packed"),
    **dict.fromkeys(
        ("chat_template_path", "eos_token"), "demonstrations are what the policy will see, by the model's own template"
    ),
    "do_predict": "a training command only trains",
}
"""The settings of TRL that must keep TRL's default in `train_sft`, and the reasons."""


def check_precision(args: Any) -> None:
    """Raise `ConfigError` for fp16 without a GPU, where it changes nothing."""
    if args.fp16 and (args.use_cpu or not torch.cuda.is_available()):
        raise ConfigError("fp16 is True, and a CPU computes in it as in float32: leave it out, or take bf16")


def check_warmup(args: Any) -> None:
    """Raise `ConfigError` for a warmup that the schedule does not have."""
    kind = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if args.warmup_steps and kind in _NO_WARMUP:
        raise ConfigError(
            f"warmup_steps is {args.warmup_steps}, and lr_scheduler_type {kind!r} has no warmup: leave it out, or take "
            f"{_NO_WARMUP[kind]}"
        )


def choose_metric(args: Any) -> None:
    """Choose the best checkpoint by success, unless the settings name another metric.

    Raises:
        ConfigError: for a metric that no evaluation has, such as transformers' default, the loss.
    """
    kind = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    save = str(getattr(args.save_strategy, "value", args.save_strategy))
    needed = args.load_best_model_at_end or kind in ("reduce_lr_on_plateau", "greedy") or save == "best"
    if args.metric_for_best_model is None:
        if not needed:
            return
        args.metric_for_best_model = "eval_success"
    name = args.metric_for_best_model.removeprefix("eval_")
    # With several sets or environments, the name of the set or environment precedes that of the metric.
    inner = name if name in METRICS else next((one for one in METRICS if name.endswith((f"_{one}", f"/{one}"))), "")
    if not inner and not re.search(rf"(^|[_/])({'|'.join(_FAMILIES)})", name):
        raise ConfigError(
            f"metric_for_best_model is {args.metric_for_best_model!r}, which no evaluation has; allowed: "
            f"{', '.join(METRICS)}, or one of the environment's (reward/TERM, env/NAME, tool/NAME/calls)"
        )
    if args.greater_is_better is None:
        args.greater_is_better = inner not in ("failed", "episode/parse_errors", "episode/truncated", "runtime")
    if kind == "reduce_lr_on_plateau":
        mode = {"mode": "max" if args.greater_is_better else "min"}
        args.lr_scheduler_kwargs = {**mode, **(args.lr_scheduler_kwargs or {})}


def with_metric(metric: str, found: Mapping[str, float], *, first: bool) -> dict[str, float]:
    """Return an evaluation's metrics, with the metric by which the best checkpoint is chosen.

    A metric that no episode had, such as the calls of a tool, is 0. In the `first` evaluation a missing metric may be a
    wrong name.

    Raises:
        ConfigError: if the first evaluation lacks the metric.
    """
    name = metric if metric.startswith("eval_") else f"eval_{metric}"
    if name not in found and first and "tool/" not in name:
        known = ", ".join(sorted(one.removeprefix("eval_") for one in found if one.startswith("eval_")))
        raise ConfigError(f"metric_for_best_model is {metric!r}, which this evaluation does not have; it has: {known}")
    return {name: 0.0, **found}


def check_sft(args: Any) -> None:
    """Raise `ConfigError` for settings that do nothing in `train_sft`."""
    check_precision(args)
    check_warmup(args)
    for name, reason in UNUSED_BY_SFT.items():
        default = type(args).__dataclass_fields__[name].default
        if getattr(args, name) != default:
            raise ConfigError(f"{name} is {getattr(args, name)!r}; allowed: {default!r}, since {reason}")
