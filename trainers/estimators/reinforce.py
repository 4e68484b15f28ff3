"""REINFORCE without a baseline: the return itself is the advantage.

R. Williams, Machine Learning 8 (1992), 229-256. Of the algorithms in Agent-R1's tables it is the row REINFORCE.
"""

from __future__ import annotations

from agent_gym.trainers.credit import Credit, Estimate, Experience, returns_to_go


def reinforce(experience: Experience, credit: Credit) -> Estimate:
    """Score each token by its return, A_t = r_t + gamma A_{t+1}: (N, L), with the loss -A log p.

    Nothing is subtracted or scaled. So with rewards of 0 and 1 this is `raft` (imitation.py), and with only positive
    rewards every action becomes more likely. `reinforce_pp` whitens the same numbers.
    """
    returns = returns_to_go(experience.token_rewards, credit.gamma)
    return Estimate(returns.where(experience.token_mask, returns.new_zeros(())))
