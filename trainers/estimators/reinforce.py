"""REINFORCE without a baseline: the return itself is the advantage.

R. Williams, Machine Learning 8 (1992), 229-256. Of the algorithms in Agent-R1's tables it is the row REINFORCE.
"""

from __future__ import annotations

from agent_gym.trainers.credit import Credit, Estimate, Experience
from agent_gym.trainers.grouping import returns_to_go


def reinforce(experience: Experience, credit: Credit) -> Estimate:
    """Score each token by what came after it, A_t = r_t + gamma A_{t+1}: (N, L), with the loss -A log p.

    Nothing is subtracted and nothing scaled, so that with rewards of 0 and 1 this is `raft` (imitation.py), and with
    rewards that are all positive every action becomes likelier. `reinforce_pp` whitens the same numbers.
    """
    returns = returns_to_go(experience.token_rewards, credit.gamma)
    return Estimate(returns.where(experience.token_mask, returns.new_zeros(())))
