"""What one token counts in the loss.

    loss = sum over all tokens of  weight x loss per token

The weights are fixed when the rollout is laid out, over all processes. So the gradient of a rollout does not depend on
how its rows are shuffled, cut into micro-batches or shared between processes, and each minibatch is an unbiased sample
of it. What the choice decides is who speaks louder. In the first four the weights sum to 1 over the whole rollout:

    token     every token alike: long episodes and long steps have more say (DAPO, arXiv:2503.14476)
    sequence  every row alike: an episode whose context was rewritten has as many votes as rows
    step      every step alike, however many words it took: the unit of the step-level MDP
    episode   every episode alike, however many steps it took (GRPO's original form, arXiv:2402.03300)

In the last one they do not:

    constant  every token 1 / (episodes of a rollout x tokens that an episode may have), both from the settings
              (Dr. GRPO, arXiv:2503.20783; TRL's `dr_grpo` divides by rows x `max_completion_length`)

What a token counts then depends on nothing that was played: beside long episodes as much as beside short ones. The
weights sum to the share of the budget that was used, so that the loss is smaller and grows with the episodes' length.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

NORMALIZATIONS = ("token", "sequence", "step", "episode", "constant")


def loss_weights(
    mask: torch.Tensor,
    step_of: torch.Tensor,
    episode_of: torch.Tensor,
    by: str,
    total: Callable[[torch.Tensor], torch.Tensor] = lambda count: count,
    constant: float = 1.0,
) -> torch.Tensor:
    """Weigh tokens so that all units count the same and all weights sum to 1, or by a constant.

    Args:
        mask: (B, T) True for tokens that are trained on.
        step_of: (B, T) step of the token within its episode.
        episode_of: (B,) number of the row's episode, from 0 on; whole episodes stay on one process.
        by: one of `NORMALIZATIONS`.
        total: sums a count over all processes.
        constant: what "constant" divides by, tokens of a rollout over all processes.

    Returns:
        (B, T) float32, 0 outside the mask; all 0 if nothing is trained on.
    """
    if by == "constant":
        return mask.float() / constant
    rows = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)
    episodes = episode_of[:, None].expand_as(mask)
    keys = {
        "token": rows * mask.size(1) + torch.arange(mask.size(1), device=mask.device),
        "sequence": rows,
        "step": episodes * (step_of.max() + 2) + step_of + 1,
        "episode": episodes,
    }
    # Only units with a trained token count; number them without gaps, then divide each unit's share among its tokens.
    _, unit, sizes = keys[by][mask].unique(return_inverse=True, return_counts=True)
    units = total(torch.tensor(len(sizes), device=mask.device)).clamp(min=1)
    weights = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    weights[mask] = 1.0 / (units * sizes[unit]).float()
    return weights
