"""One phase of imitation as a speedrun does it: the expert plays, SFT follows, each with a line of progress."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl import SFTConfig

from agent_gym.errors import ConfigError
from agent_gym.evaluate import EvalResult, summarize
from agent_gym.rollout import Episode, Row
from agent_gym.speedrun.presets import Imitation, Preset
from agent_gym.trainers.sft import expert_episodes, train_sft

QUIET = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
"""Settings of a run that prints its own lines."""


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """The result of a phase of imitation."""

    rows: list[Row]  # that were imitated
    train_on: str  # as in `train_sft`
    played: EvalResult  # of all that the expert played


def imitation_settings(phase: Imitation, folder: Path, seed: int, args: Any) -> SFTConfig:
    """Make TRL's settings of one phase.

    Context length and precision are the ones of the `AgentGRPOConfig` in `args`.
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


def fitting(rows: list[Row], most: int | None) -> list[Row]:
    """Leave out, and tell of, demonstrations that are longer than the episodes of RL may be.

    Raises:
        ConfigError: if most of them are.
    """
    kept = [row for row in rows if most is None or len(row.token_ids) <= most]
    if len(kept) < len(rows):
        left = f"{len(rows) - len(kept):,} of {len(rows):,} demonstrations have more than {most:,} tokens"
        if 2 * len(kept) < len(rows):
            raise ConfigError(f"{left}, the limit of an episode: make the environment's episodes shorter")
        print(f"{left}, the limit of an episode, and are left out", flush=True)
    return kept


def imitate(
    preset: Preset,
    phase: Imitation,
    model: Any,
    tokenizer: Any,
    settings: SFTConfig,
    callbacks: list[Any],
    again: PhaseResult | None = None,
) -> PhaseResult:
    """Let the expert play and train the model on its episodes, which are returned; `again` has them already."""
    if again is not None:
        train_sft(model, tokenizer, again.rows, settings, train_on=again.train_on, callbacks=callbacks)
        return again
    options: dict[str, Any] = {"episodes": phase.episodes, "seed": settings.seed, "styles": phase.styles}
    played: list[Episode] = []
    episodes = expert_episodes(preset.env_id, preset.env_kwargs, tokenizer, **options, on_end=played.append)
    rows = fitting([row for episode in episodes for row in episode.rows], settings.max_length)
    # All tokens are trained on in this phase, the environment's included: a model that starts from random weights
    # learns to copy numbers from them. RL afterwards trains on the policy's tokens only, and imitation does where the
    # environment shows images, since the text besides them is always the same, and where the model is pre-trained: it
    # can copy, and logits of a vocabulary of 49k tokens cost more than the rest of its step.
    train_on = "policy" if preset.model is not None or any(row.images for row in rows) else "all"
    train_sft(model, tokenizer, rows, settings, train_on=train_on, callbacks=callbacks)
    return PhaseResult(rows, train_on, summarize(played))
