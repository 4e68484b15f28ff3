"""PSPO, Proximal Sequence Policy Optimization: a turn of the policy is one action, for credit, ratio and critic.

PaperScout (T. Pan et al., arXiv:2601.10029), after the authors' program (github.com/pty12345/PaperScout,
`compute_gae_advantage_return` in arft/core_algos.py, commit 46a81be):

    V_k = V before the first token of turn k,   r_k = rewards of the turn, process rewards included
    delta_k = r_k + gamma V_{k+1} - V_k,        A_k = delta_k + gamma lam A_{k+1},        then whitened over turns
    target of the critic = A_k + V_k at every token of the turn

The credit is that of `step_gae`. The critic differs: it is trained at every token of a turn, and not only at the first.
The other half of the algorithm is settings (docs/algorithms.md, Recipes): the ratio of a whole turn, GSPO's clips of
3e-4 and 4e-4, and the same weight for each turn.
"""

from __future__ import annotations

from agent_gym.trainers.credit import Credit, Estimate, Experience
from agent_gym.trainers.estimators.gae import over_steps
from agent_gym.trainers.estimators.groups import whitened


def pspo(experience: Experience, credit: Credit) -> Estimate:
    """`gae` over steps with `step_gamma` and `step_lam`; (N, L) advantages, targets, and all tokens as value mask."""
    advantages, returns = over_steps(experience, credit)
    advantages = whitened(advantages, experience.acting_steps, experience, credit)
    return Estimate(experience.to_tokens(advantages), experience.to_tokens(returns), experience.token_mask)
