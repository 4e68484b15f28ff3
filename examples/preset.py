"""What a speedrun consists of, what all tiny models share, and the speedrun of an environment of your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.rollout import make_env


@dataclass(frozen=True, slots=True)
class Imitation:
    """One phase of supervised fine-tuning on episodes of the environment's expert."""

    name: str  # what the results table calls the policy after it
    episodes: int
    styles: Mapping[str, float]  # expert style to its share of the episodes
    steps: int  # optimizer steps, at most
    batch: int  # episodes per step
    settings: Mapping[str, Any]  # further fields of `trl.SFTConfig`
    # End the phase when the mean loss of 25 steps falls below this. A tiny model learns to copy names all at once, and
    # how soon that happens differs between seeds by a factor of two.
    until_loss: float | None = None


@dataclass(frozen=True, slots=True)
class Preset:
    """A complete run."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    model: str | None  # a model id; None for a tiny model made on the spot
    imitation: tuple[Imitation, ...]  # phases before RL
    train_tasks: int | None  # tasks RL trains on; None for all
    dev_split: str  # of the learning curve
    dev_tasks: int
    test_tasks: int | None  # of the results table; None for all
    test_split: str = "test"
    needs_gpu: bool = False
    tiny: Mapping[str, Any] = field(default_factory=dict)  # arguments of `make_tiny_model`
    grpo: Mapping[str, Any] = field(default_factory=dict)  # fields of `AgentGRPOConfig`


ADAM: Mapping[str, Any] = {"adam_beta2": 0.98, "weight_decay": 0.05}
"""Of all phases with a tiny model."""

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


def hold_then_decay(decay_steps: int, warmup_steps: int = 30) -> dict[str, Any]:
    """Return a schedule whose linear decay at the end is worth more than further steps at the full rate."""
    return {
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": decay_steps, "decay_type": "linear", "min_lr_ratio": 0.05},
        "warmup_steps": warmup_steps,
    }


def own_preset(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> Preset:
    """Make the preset of any environment that has an expert: `agent-gym speedrun --env ID`.

    A tiny model, a short imitation that leaves it far from the expert, and as much RL as the calculator's speedrun has.
    A task of few words, such as the one that `agent-gym new env` writes, is learned so; a task whose names have to be
    copied wants a longer imitation (see `HOTPOTQA`).

    The system prompt is left out unless `env_kwargs` have one.

    Raises:
        ConfigError: for an unknown id, arguments it does not take, or an environment without a split "train".
    """
    settings = {"system_prompt": "", **(env_kwargs or {})}
    env = make_env(env_id, settings)
    sizes = {split: len(tasks) for split, tasks in env.get_wrapper_attr("tasks").items()}
    env.close()
    if "train" not in sizes:
        raise ConfigError(f"{env_id} has no split 'train' to learn from; it has: {', '.join(sizes)}")
    # The best name for the learning curve and for the table first.
    dev = next((name for name in ("validation", "dev", "valid", "test") if name in sizes), "train")
    test = next((name for name in ("test", "validation", "dev", "valid") if name in sizes), "train")
    imitation = Imitation(
        name="expert imitation",
        episodes=min(3000, sizes["train"]),
        styles={"default": 1.0},
        steps=160,
        batch=24,
        settings={"learning_rate": 2e-3, "lr_scheduler_type": "cosine", "warmup_steps": 10, **ADAM},
    )
    return Preset(
        env_id=env_id,
        env_kwargs=settings,
        model=None,
        imitation=(imitation,),
        train_tasks=min(4000, sizes["train"]),
        dev_split=dev,
        dev_tasks=min(200, sizes[dev]),
        test_split=test,
        test_tasks=min(500, sizes[test]),
        grpo=TINY_GRPO,
    )
