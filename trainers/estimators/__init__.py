"""Advantage estimators: from the rewards of an episode's steps to the advantage of each token.

Each is a pure function of an `Experience` (trainers/credit.py). The estimators in groups.py compare episodes,
reinforce.py and imitation.py compare nothing, and gae.py and pspo.py use a critic.
"""

from __future__ import annotations

from agent_gym.errors import ConfigError
from agent_gym.trainers.credit import Credit, Estimate, Estimator, Experience, assign
from agent_gym.trainers.estimators import gae, groups, imitation, pspo, reinforce
from agent_gym.trainers.estimators.groups import SCALES

__all__ = ["ESTIMATORS", "SCALES", "Credit", "Estimate", "Estimator", "Experience", "assign", "get_estimator"]


ESTIMATORS: dict[str, Estimator] = {
    "grpo": Estimator(groups.estimate_grpo, needs_groups=True),
    "dr_grpo": Estimator(groups.dr_grpo, needs_groups=True),
    "rloo": Estimator(groups.rloo, needs_groups=True),
    "remax": Estimator(groups.remax, needs_baseline=True),
    "reinforce_pp": Estimator(groups.reinforce_pp, reads_tokens=True),
    "reinforce_pp_baseline": Estimator(groups.reinforce_pp_baseline, needs_groups=True),
    "gigpo": Estimator(groups.gigpo, needs_groups=True),
    "rae": Estimator(groups.rae, needs_means=True),
    "reinforce": Estimator(reinforce.reinforce, reads_tokens=True, loss="reinforce"),
    "raft": Estimator(imitation.raft, reads_rewards=False, loss="reinforce"),
    "raft_pp": Estimator(imitation.raft, reads_rewards=False),
    "gae": Estimator(gae.estimate_gae, reads_tokens=True, needs_critic=True),
    "step_gae": Estimator(gae.estimate_step_gae, reads_tokens=True, needs_critic=True),
    "bilevel_gae": Estimator(gae.bilevel_gae, reads_tokens=True, needs_critic=True),
    "pspo": Estimator(pspo.pspo, reads_tokens=True, needs_critic=True),
}
"""The estimators by their names in the settings."""


def get_estimator(name: str) -> Estimator:
    """Look up an estimator; raises `ConfigError` for a name that is not in `ESTIMATORS`."""
    if name not in ESTIMATORS:
        raise ConfigError(f"no advantage estimator is called {name!r}; allowed: {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]
