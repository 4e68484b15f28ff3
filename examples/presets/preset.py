"""What a speedrun consists of, and the settings that all tiny models share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Imitation:
    """One phase of supervised fine-tuning.

    Attributes:
        name: what the results table calls the policy after it.
        episodes: expert episodes to play.
        styles: expert style to its share.
        steps: optimizer steps, at most.
        batch: episodes per step.
        settings: further fields of `trl.SFTConfig`.
        until_loss: end the phase when the mean loss of 25 steps falls below this. A tiny model learns to copy names all
            at once, and how soon that happens differs between seeds by a factor of two.
    """

    name: str
    episodes: int
    styles: Mapping[str, float]
    steps: int
    batch: int
    settings: Mapping[str, Any]
    until_loss: float | None = None


@dataclass(frozen=True, slots=True)
class Preset:
    """A complete run.

    Attributes:
        env_id: the environment.
        env_kwargs: its arguments.
        model: a model id, or None for a tiny model made on the spot.
        tiny: arguments of `make_tiny_model` for the second.
        imitation: phases of supervised fine-tuning before RL.
        train_tasks: tasks RL trains on; None for all.
        dev_split: the split of the learning curve.
        dev_tasks: its size.
        test_tasks: size of the test set of the results table.
        test_split: the split of the results table.
        needs_gpu: whether it makes sense on a GPU only.
        grpo: fields of `AgentGRPOConfig`.
    """

    env_id: str
    env_kwargs: Mapping[str, Any]
    model: str | None
    imitation: tuple[Imitation, ...]
    train_tasks: int | None
    dev_split: str
    dev_tasks: int
    test_tasks: int | None
    test_split: str = "test"
    needs_gpu: bool = False
    tiny: Mapping[str, Any] = field(default_factory=dict)
    grpo: Mapping[str, Any] = field(default_factory=dict)


ADAM: Mapping[str, Any] = {"adam_beta2": 0.98, "weight_decay": 0.05}
"""Of all phases with a tiny model."""

COPY: Mapping[str, Any] = {"learning_rate": 4e-3, **ADAM, "weight_decay": 1.0}
"""Of a phase in which copying has to be learned: with less weight decay it comes later, and for some seeds in part."""


def learn_to_copy(*, episodes: int, steps: int, until_loss: float, then: int) -> tuple[Imitation, Imitation]:
    """Imitate the expert at a constant rate until the loss shows that copying has come, then settle.

    Args:
        episodes: expert episodes of the first phase.
        steps: its steps, at most.
        until_loss: the loss that ends it.
        then: expert episodes of the second phase.
    """
    expert = {"default": 1.0}
    constant = {**COPY, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 30}
    decay = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.05}, "warmup_steps": 5}
    return (
        Imitation("expert imitation, first phase", episodes, expert, steps, 24, constant, until_loss),
        Imitation("expert imitation", then, expert, 300, 24, {**COPY, **decay}),
    )


def mostly_badly(name: str, styles: Mapping[str, float]) -> Imitation:
    """Show, after imitation, few episodes of which most are in a worse style: the start that RL has to come back from.

    Args:
        name: what the results table calls the policy after it.
        styles: expert style to its share.
    """
    settings = {"learning_rate": 5e-4, "lr_scheduler_type": "cosine", **ADAM}
    return Imitation(name, episodes=640, styles=styles, steps=20, batch=32, settings=settings)


TINY_GRPO: Mapping[str, Any] = {
    "max_steps": 36,
    "per_device_train_batch_size": 128,
    "num_generations": 8,
    "micro_batch_size": 64,
    "learning_rate": 5e-4,
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    "warmup_steps": 5,
    "adam_beta2": 0.98,
    "epsilon_high": 0.28,
    "max_turn_tokens": 40,
    "max_episode_tokens": 400,
    "eval_steps": 3,
    "max_num_seqs": 128,
    "trajectories_per_step": 48,
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "model_init_kwargs": {"dtype": "float32"},
}
"""Fields of `AgentGRPOConfig` for a tiny model on two CPU cores."""
