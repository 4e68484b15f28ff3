"""Advantage estimators: from what the steps of an episode earned to how much better each token was than expected.

Each is a pure function of an `Experience` (trainers/credit.py): groups.py holds those without a critic, gae.py those
with one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from agent_gym.errors import ConfigError
from agent_gym.trainers.credit import Credit, Estimate, Experience
from agent_gym.trainers.estimators import gae, groups
from agent_gym.trainers.estimators.groups import SCALES

__all__ = ["ESTIMATORS", "SCALES", "Credit", "Estimate", "Estimator", "Experience", "get_estimator"]


class Estimator(NamedTuple):
    """An estimator, and whether it needs a critic, several episodes of a task, or a greedy episode of each task."""

    estimate: Callable[[Experience, Credit], Estimate]
    needs_critic: bool = False
    needs_groups: bool = False
    needs_baseline: bool = False


ESTIMATORS: dict[str, Estimator] = {
    "grpo": Estimator(groups.estimate_grpo, needs_groups=True),
    "dr_grpo": Estimator(groups.dr_grpo, needs_groups=True),
    "rloo": Estimator(groups.rloo, needs_groups=True),
    "remax": Estimator(groups.remax, needs_baseline=True),
    "reinforce_pp": Estimator(groups.reinforce_pp),
    "reinforce_pp_baseline": Estimator(groups.reinforce_pp_baseline, needs_groups=True),
    "gigpo": Estimator(groups.gigpo, needs_groups=True),
    "gae": Estimator(gae.estimate_gae, needs_critic=True),
    "step_gae": Estimator(gae.estimate_step_gae, needs_critic=True),
    "bilevel_gae": Estimator(gae.bilevel_gae, needs_critic=True),
}
"""By the name in the settings."""


def get_estimator(name: str) -> Estimator:
    """Look up an estimator; raises `ConfigError` for a name that is not in `ESTIMATORS`."""
    if name not in ESTIMATORS:
        raise ConfigError(f"no advantage estimator is called {name!r}; allowed: {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]
