"""Advantage estimators: from the rewards of an episode's steps to the advantage of each token.

Each is a pure function of an `Experience` (trainers/credit.py). The estimators in groups.py compare episodes,
reinforce.py and imitation.py compare nothing, and gae.py and pspo.py use a critic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from agent_gym.errors import ConfigError
from agent_gym.trainers.credit import Credit, Estimate, Experience, merge, shape_rewards, with_baselines
from agent_gym.trainers.estimators import gae, groups, imitation, pspo, reinforce
from agent_gym.trainers.estimators.groups import SCALES

__all__ = ["ESTIMATORS", "SCALES", "Credit", "Estimate", "Estimator", "Experience", "assign", "get_estimator"]


class Estimator(NamedTuple):
    """An estimator and its needs: a critic, several episodes of a task, a greedy episode, or running means.

    An estimator that `reads_tokens` gets the tokens of this rank's episodes. Any other estimator gets the episodes of
    all ranks `by_steps`, and its advantages are the same for all tokens of a step.
    """

    estimate: Callable[[Experience, Credit], Estimate]
    reads_tokens: bool = False
    needs_critic: bool = False
    needs_groups: bool = False
    needs_baseline: bool = False
    needs_means: bool = False
    reads_rewards: bool = True  # False if only success counts
    loss: str | None = None  # the `loss_type` that it prescribes; None for the one in the settings


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


def assign(
    estimator: Estimator,
    credit: Credit,
    local: Experience,
    numbers: Sequence[int],
    *,
    greedy: Collection[int] = (),
    process_norm: str | None = None,
    outcome_weight: float = 1.0,
    running_means: dict[str, float] | None = None,
    gather: Callable[[Any], list[Any]],
) -> Estimate:
    """Estimate the advantages of this rank's episodes, which are compared with the episodes of all ranks.

    Args:
        estimator: the estimator.
        credit: its settings.
        local: the N episodes of this rank.
        numbers: the number of each episode, which no other episode of any rank has.
        greedy: numbers of this rank's greedy episodes; each group has one if the estimator needs them.
        process_norm: the scale of process rewards, see `shape_rewards`.
        outcome_weight: the factor of the outcome under a `process_norm`.
        running_means: the means of `rae`, which are updated; the same on all ranks.
        gather: returns the values of all ranks; all ranks call this function at the same point.
    """
    all_numbers, steps = merge(gather((list(numbers), local.by_steps())))
    steps = shape_rewards(steps, process_norm, outcome_weight, credit.step_gamma)
    mine = torch.searchsorted(torch.tensor(all_numbers, dtype=torch.long), torch.tensor(numbers, dtype=torch.long))
    width = local.outcome.size(1)
    if estimator.reads_tokens:
        outcome, process = steps.outcome[mine, :width], steps.process[mine, :width]
        return estimator.estimate(replace(local, outcome=outcome, process=process, gather=gather), credit)
    if estimator.needs_baseline:
        all_greedy = {number for part in gather(list(greedy)) for number in part}
        steps = with_baselines(steps, torch.tensor([number in all_greedy for number in all_numbers], dtype=torch.bool))
    per_step = estimator.estimate(replace(steps, running_means=running_means), credit).advantages
    return Estimate(local.to_tokens(per_step[mine, :width]))
