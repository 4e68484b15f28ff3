"""Advantage estimators: from what the steps of an episode earned to how much better each token was than expected.

Each is a pure function of an `Experience` (trainers/credit.py): groups.py holds those without a critic, gae.py those
with one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_gym.errors import ConfigError
from agent_gym.trainers.credit import Credit, Estimate, Experience
from agent_gym.trainers.estimators import gae, groups
from agent_gym.trainers.estimators.groups import PROCESS_NORMS, SCALES, normalize_process

__all__ = [
    "ESTIMATORS",
    "PROCESS_NORMS",
    "SCALES",
    "Credit",
    "Estimate",
    "Estimator",
    "Experience",
    "get_estimator",
    "normalize_process",
]


@dataclass(frozen=True, slots=True)
class Estimator:
    """An estimator and what it needs.

    Attributes:
        name: its name in the settings.
        estimate: from episodes to advantages.
        summary: one line on what it does.
        needs_critic: whether it reads `Experience.values` and `last_values`.
        needs_groups: whether it learns only from tasks that were played several times.
        needs_baseline: whether it reads `Experience.baselines`, from a greedy episode of each task.
    """

    name: str
    estimate: Callable[[Experience, Credit], Estimate]
    summary: str
    needs_critic: bool = False
    needs_groups: bool = False
    needs_baseline: bool = False


_ALL = (
    Estimator("grpo", groups.estimate_grpo, "return against the group's mean, by its spread", needs_groups=True),
    Estimator("dr_grpo", groups.dr_grpo, "return against the group's mean", needs_groups=True),
    Estimator("rloo", groups.rloo, "return against the mean of the others", needs_groups=True),
    Estimator("remax", groups.remax, "return against that of a greedy episode", needs_baseline=True),
    Estimator("reinforce_pp", groups.reinforce_pp, "discounted return of each token, whitened"),
    Estimator(
        "reinforce_pp_baseline",
        groups.reinforce_pp_baseline,
        "return against the group's mean, whitened over the batch",
        needs_groups=True,
    ),
    Estimator("gigpo", groups.gigpo, "grpo, plus steps against others from the same state", needs_groups=True),
    Estimator("gae", gae.estimate_gae, "critic; credit by tokens", needs_critic=True),
    Estimator("step_gae", gae.estimate_step_gae, "critic; credit by steps", needs_critic=True),
    Estimator("bilevel_gae", gae.bilevel_gae, "critic; credit by steps, then by tokens", needs_critic=True),
)
ESTIMATORS: dict[str, Estimator] = {estimator.name: estimator for estimator in _ALL}


def get_estimator(name: str) -> Estimator:
    """Look up an estimator; raises `ConfigError` for a name that is not in `ESTIMATORS`."""
    if name not in ESTIMATORS:
        raise ConfigError(f"no advantage estimator is called {name!r}; allowed: {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]
