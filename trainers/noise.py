"""RL without noise: a policy is scored as it sampled, so that the ratio of a token is 1 until the weights have moved.

Rollouts are sampled in evaluation mode. With dropout in the loss, even the first pass over a rollout finds other
logprobs. Before any update the ratios of 8% of the tokens left the clip range with the dropout 0.05 of LoRA, and 45%
with the dropout 0.1 of GPT-2. The gradient then follows the noise. TRL offers `disable_dropout` against this, which
knows only `torch.nn.Dropout`.

    dropout of modules      its probability is set to 0 in the trained model, and a warning says so
    remaining noise         passes run in evaluation mode, except for the flag that gradient checkpointing reads. Two
                            passes over random tokens show whether noise remains: dropout that a module reads from its
                            configuration, or a router that samples its experts
    noise in embeddings     is refused (neftune)

The saved configuration keeps its values, for a later SFT.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from transformers.modeling_layers import GradientCheckpointingLayer

from agent_gym.errors import ConfigError
from agent_gym.trainers.model_probes import random_rows, random_scores, tolerance


def check_noise(args: Any) -> None:
    """Raise `ConfigError` for settings that put noise into the loss."""
    if args.neftune_noise_alpha is not None:
        raise ConfigError(
            f"neftune_noise_alpha is {args.neftune_noise_alpha}; it must be None: the loss would see other embeddings "
            "than the rollout, and ratios of tokens before any update. It belongs to SFT"
        )


def remove_dropout(model: nn.Module) -> dict[str, float]:
    """Set each probability of dropout in a model to 0, and return the former probabilities by name."""
    found: dict[str, float] = {}
    for path, module in model.named_modules():
        for field, value in list(vars(module).items()):
            if isinstance(module, _DropoutNd) and field == "p":
                name = next((part for part in reversed(path.split(".")) if part not in ("default", "ref")), path)
            elif "drop" in field:
                name = field
            else:
                continue
            if isinstance(value, dict):  # the probabilities of adapters, by their names
                for adapter, probability in value.items():
                    if _is_probability(probability):
                        found[name] = max(probability, found.get(name, 0.0))
                        value[adapter] = 0.0
            elif _is_probability(value):
                found[name] = max(value, found.get(name, 0.0))
                setattr(module, field, 0.0)
    return found


def _is_probability(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value <= 1.0


def remove_noise(trainer: Any) -> bool:
    """Take all noise out of the model of a `RowTrainer`, its critic included.

    Returns whether noise remains, so that the passes have to run in evaluation mode (`leave_training_mode`).
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    lines = []
    if found := remove_dropout(model):
        listed = ", ".join(f"{name} {probability:g}" for name, probability in sorted(found.items()))
        lines.append(f"dropout is set to 0 ({listed})")
    remains = _is_noisy(trainer)
    if remains:
        for layer in _checkpointed(model):
            layer.register_forward_pre_hook(_leave_training)
            layer.register_forward_hook(_enter_training, always_call=True)
        lines.append(f"{model.config.model_type!r} has more noise in training mode, and is trained in evaluation mode")
    if lines and trainer.accelerator.is_main_process:
        reason = "rollouts are sampled without it, and the ratio of a token is 1 until the weights have moved"
        warnings.warn(f"{'; '.join(lines)}: {reason}", stacklevel=2)
    return remains


def leave_training_mode(model: Any) -> None:
    """Put modules into evaluation mode, except for the outermost module and checkpointed layers.

    A checkpointed layer leaves training mode only during its call, because checkpointing reads the mode before it.
    """
    checkpointed = set(map(id, _checkpointed(model)))
    for module in model.modules():
        module.training = module is model or id(module) in checkpointed


def _checkpointed(model: Any) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _leave_training(module: Any, _inputs: Any) -> None:
    module.was_training, module.training = module.training, False


def _enter_training(module: Any, _inputs: Any, _output: Any) -> None:
    module.training = module.was_training


def _is_noisy(trainer: Any) -> bool:
    """Whether random tokens get other logprobs in training mode than in evaluation mode."""
    model = trainer.model_wrapped
    rows, lengths = random_rows(trainer, 2)
    without = random_scores(trainer, model, rows, lengths)
    with_noise = random_scores(trainer, model, rows, lengths, training=True)
    gap = (without - with_noise).abs()
    # Kernels of training sum in another order, and in half precision this makes a large difference.
    return bool(gap.max() > tolerance(trainer, model, 0.3) and gap.mean() > tolerance(trainer, model, 0.02) / 10)
