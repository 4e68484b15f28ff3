"""Where each sampled token of an episode stands in a batch: the bridge between rows and episodes.

The forward pass works on rows (B, T), estimators on episodes (N, L) of the policy's own tokens. `read` goes from the
first to the second and `write` back. Both only move numbers, so that no token can get a number of another.
"""

from __future__ import annotations

import torch

from agent_gym.trainers.batching import Batch


class Timeline:
    """The sampled tokens of N episodes, in the order in which they were sampled.

    Args:
        batch: what `batching.collate` made of the episodes.
        n_episodes: N.

    Attributes:
        mask: (N, L) True where there is a token.
        step_of: (N, L) the step that sampled it, 0 in padding.
        last_row: (N,) the row in which the episode ended.
    """

    def __init__(self, batch: Batch, n_episodes: int) -> None:
        """Sort by episode, then by step; the tokens of a step stand in one row, in order."""
        self._shape = batch["action_mask"].shape
        rows, columns = batch["action_mask"].cpu().nonzero(as_tuple=True)
        episodes, steps = batch["episode_of"].cpu()[rows], batch["step_of"].cpu()[rows, columns]
        order = torch.argsort(steps, stable=True)
        order = order[torch.argsort(episodes[order], stable=True)]
        rows, columns, episodes, steps = (column[order] for column in (rows, columns, episodes, steps))
        lengths = torch.bincount(episodes, minlength=n_episodes)
        place = torch.arange(len(episodes)) - (lengths.cumsum(0) - lengths)[episodes]
        width = int(lengths.max()) if n_episodes else 0
        self.mask = torch.arange(width) < lengths[:, None]
        self.step_of = torch.zeros(n_episodes, width, dtype=torch.long)
        self.step_of[episodes, place] = steps
        self._position = torch.zeros(n_episodes, width, dtype=torch.long)
        self._position[episodes, place] = rows * self._shape[1] + columns
        self.last_row = torch.zeros(n_episodes, dtype=torch.long)
        self.last_row[episodes] = rows  # the last write wins, and tokens are sorted
        # A row without a token of the policy is kept only where we stopped the episode in it.
        owner = batch["episode_of"].cpu()
        silent = ((owner >= 0) & ~batch["action_mask"].cpu().any(1)).nonzero().view(-1)
        self.last_row[owner[silent]] = silent

    def read(self, per_position: torch.Tensor) -> torch.Tensor:
        """(B, T) numbers of a batch to (N, L) float64 numbers of its sampled tokens, 0 in padding."""
        numbers = per_position.detach().to("cpu", torch.float64).reshape(-1)[self._position]
        return torch.where(self.mask, numbers, 0.0)

    def write(self, per_token: torch.Tensor, device: torch.device) -> torch.Tensor:
        """(N, L) numbers of sampled tokens to (B, T) numbers of a batch, 0 or False on all other tokens."""
        laid = torch.zeros(self._shape.numel(), dtype=per_token.dtype)
        laid[self._position[self.mask]] = per_token[self.mask]
        laid = laid.view(self._shape).to(device)
        return laid if laid.dtype == torch.bool else laid.float()
