"""The features of the trainers that are hooks, one feature in each file.

Each feature adds its hooks to a trainer whose settings ask for them. The order of `FEATURES` is the order of the calls:
the budget of an episode is set first, rewards are logged before a hook replaces groups, self-play divides episodes
before the others see them, refills are drawn before groups are chosen, and the agreement is measured before
demonstrations join the batch.
"""

from __future__ import annotations

from typing import Any

from agent_gym.trainers.hooks import (
    agreement,
    baselines,
    demonstrations,
    driver,
    echo_trap,
    input_dependence,
    judging,
    metrics,
    overlong,
    records,
    repetition,
    room,
    run_card,
    selection,
    self_play,
    staleness,
    starpo_s,
    teacher,
    utilisation,
)

FEATURES = (
    room, metrics, driver, self_play, staleness, selection, starpo_s, baselines, overlong, teacher, agreement,
    demonstrations, utilisation, repetition, judging, run_card, records, echo_trap, input_dependence,
)  # fmt: skip
"""Modules with a function `attach(trainer)`; some have a function `check_given(args, **given)` too."""


def check_given(args: Any, **given: Any) -> None:
    """Let each feature check its own arguments of a trainer, before the model is loaded.

    Raises:
        ConfigError: for an argument that cannot work with the settings.
    """
    for feature in FEATURES:
        if check := getattr(feature, "check_given", None):
            check(args, **given)


def attach(trainer: Any) -> None:
    """Let each feature add its hooks to a trainer, and give the trainer to the hooks of the user."""
    for feature in FEATURES:
        feature.attach(trainer)
    for hook in trainer.hooks:
        hook.trainer = trainer
