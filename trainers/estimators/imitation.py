"""Imitation of the policy's successes as an advantage: RAFT, the control for every claim that rewards were needed.

RAFT samples, keeps the successes, and raises their likelihood (H. Dong et al., arXiv:2304.06767; as online rejection
sampling against GRPO in W. Xiong et al., arXiv:2504.11343, section 3):

    A_i = 1 where episode i succeeded, else 0.

`raft` uses it with the loss -A log p. `raft_pp` is RAFT++ of the second paper, with PPO's ratio and clip: -min(s A,
clip(s, 1 - epsilon, 1 + epsilon) A), s = p / p_old. `raft_pp` and `grpo` differ only in the advantage. GRPO's advantage
is centred in its group, so failures become less likely, and it is divided by the group's spread.

The papers average over the successes alone. Here failures keep their weight in the mean (`loss_normalization`), so the
size of the gradient falls with the share of successes. Adam divides this factor out again.
"""

from __future__ import annotations

from agent_gym.trainers.credit import Credit, Estimate, Experience, required


def raft(experience: Experience, credit: Credit) -> Estimate:
    """Give each step of a success the advantage 1, and all other steps 0: (N, L).

    Reads `Experience.successes` and no reward. A group whose episodes all succeed is also trained on.
    """
    succeeded = required(experience.successes, "successes").to(experience.outcome)
    return Estimate(experience.to_tokens(succeeded[:, None].expand_as(experience.outcome)))
