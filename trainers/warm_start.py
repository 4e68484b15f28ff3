"""The policy that RL starts from, as a preset makes it: phases of imitating the environment's expert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trl import SFTConfig

from agent_gym.trainers.presets import Imitation, Preset
from agent_gym.trainers.sft import expert_episodes, train_sft

QUIET = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
"""Settings of a run that prints its own lines."""


def imitation_settings(preset: Preset, phase: Imitation, folder: Path, seed: int, args: Any) -> SFTConfig:
    """Make TRL's settings of one phase.

    Args:
        preset: the run.
        phase: one of its phases.
        folder: where TRL may write.
        seed: of the data order.
        args: the `AgentGRPOConfig` of what follows, for context length and precision.
    """
    return SFTConfig(
        str(folder),
        seed=seed,
        max_steps=phase.steps,
        per_device_train_batch_size=phase.batch,
        max_length=args.max_episode_tokens,
        bf16=args.bf16,
        use_cpu=args.use_cpu,
        gradient_checkpointing=args.gradient_checkpointing,
        **{**QUIET, "logging_steps": max(1, phase.steps // 4), **phase.settings},
    )


def imitate(
    preset: Preset, phase: Imitation, model: Any, tokenizer: Any, settings: SFTConfig, callbacks: list[Any]
) -> None:
    """Let the expert play and train on its episodes.

    Args:
        preset: the run.
        phase: one of its phases.
        model: the policy; it is changed.
        tokenizer: its tokenizer.
        settings: from `imitation_settings`.
        callbacks: of TRL's trainer.
    """
    episodes = expert_episodes(
        preset.env_id,
        preset.env_kwargs,
        tokenizer,
        episodes=phase.episodes,
        seed=settings.seed,
        styles=phase.styles,
    )
    # All tokens are trained on in this phase, the world's included: a model that starts from random weights learns to
    # copy numbers from them. RL afterwards trains on the policy's tokens only.
    rows = [row for episode in episodes for row in episode.rows]
    train_sft(model, tokenizer, rows, settings, train_on="all", callbacks=callbacks)
