"""Settings that an estimator would leave unread: each is an error, so that no reward or correction is lost silently."""

from __future__ import annotations

from typing import Any

from agent_gym.errors import ConfigError


def check_read(args: Any) -> None:
    """Raise `ConfigError` for a setting of `AgentGRPOConfig` that its estimator or its loss does not read."""
    name, loss = args.advantage_estimator, args.policy_loss
    if args.estimator.loss and args.loss_type not in ("clip", args.estimator.loss):  # "clip" is the default
        raise ConfigError(
            f"loss_type is {args.loss_type!r}, and {name!r} has the loss {args.estimator.loss!r} by definition: leave "
            "it out, or take raft_pp or reinforce_pp, which have a probability ratio"
        )
    if loss == "reinforce" and args.vllm_importance_sampling_mode == "in_ratio":
        raise ConfigError(
            f"vllm_importance_sampling_mode is 'in_ratio', and the loss of {name!r} has no probability ratio: take "
            "token_truncate, or an estimator with a ratio (raft_pp, reinforce_pp, grpo)"
        )
    if not args.estimator.reads_rewards:
        for setting, given in rewards_of(args).items():
            if given:
                raise ConfigError(
                    f"{setting} changes rewards, and {name!r} reads success alone: leave it out, or take an estimator "
                    "that reads rewards (grpo, rloo, reinforce, ...)"
                )


def check_judged(args: Any) -> None:
    """Raise `ConfigError` for a judge whose scores the estimator would not read."""
    if not args.estimator.reads_rewards:
        raise ConfigError(
            f"the judge's score is added to the reward, and {args.advantage_estimator!r} reads success alone: leave "
            "the judge out, or take an estimator that reads rewards (grpo, rloo, reinforce, ...)"
        )


def rewards_of(args: Any) -> dict[str, bool]:
    """Return the settings that act on rewards, and whether they are in use."""
    return {
        "kl_in='reward'": args.kl_in == "reward" and bool(args.beta),
        "process_norm": args.process_norm is not None,
        "overlong_buffer": bool(args.overlong_buffer),
    }
