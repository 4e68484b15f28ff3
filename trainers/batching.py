"""From episodes to tensors: training rows, their share per process, and padding.

Rows are padded on the right only. TRL splits a row into a left-padded prompt and a right-padded completion; for
multi-turn rows that pads twice, so the "prompt" handed to TRL is just the first token (no token predicts it) and
everything else is "completion", where the action mask says which tokens the policy sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agent_gym.rollout import Episode

Batch = dict[str, torch.Tensor]


@dataclass(slots=True)
class TrainingRow:
    """One row of the loss.

    Attributes:
        token_ids: (T,) ids.
        action_mask: (T,) True where the policy sampled the token.
        logprobs: (T,) the engine's logprob of each sampled token, 0 elsewhere.
        advantages: (T,) advantage of each sampled token, 0 elsewhere.
    """

    token_ids: list[int]
    action_mask: list[bool]
    logprobs: list[float]
    advantages: list[float]


def episode_rows(episode: Episode, step_advantages: Sequence[float]) -> list[TrainingRow]:
    """Lay the advantages of an episode's steps over the tokens of its rows.

    Args:
        episode: a finished episode.
        step_advantages: one number per step. It goes to every token that the policy sampled in that step, and to no
            other: the world's words stand in the same sequence, and a gradient on them would teach the policy to
                imitate
            its tools.

    Returns:
        One training row per row of the episode.
    """
    rows = [TrainingRow(r.token_ids, r.action_mask, r.logprobs, [0.0] * len(r.token_ids)) for r in episode.rows]
    for step, advantage in zip(episode.steps, step_advantages, strict=True):
        rows[step.row].advantages[step.start : step.stop] = [advantage] * (step.stop - step.start)
    return rows


def balance(episodes: Sequence[Sequence[TrainingRow]], n_shares: int) -> list[list[TrainingRow]]:
    """Divide episodes into shares of about equal token count, keeping each episode whole.

    The longest first, each to the lightest share (LPT scheduling, R. L. Graham, 1969). Deterministic, so that every
    process computes the same division.
    """
    shares: list[list[TrainingRow]] = [[] for _ in range(n_shares)]
    loads = [0] * n_shares
    sizes = [sum(len(row.token_ids) for row in rows) for rows in episodes]
    for i in sorted(range(len(episodes)), key=lambda i: -sizes[i]):
        lightest = loads.index(min(loads))
        shares[lightest].extend(episodes[i])
        loads[lightest] += sizes[i]
    return shares


def collate(rows: Sequence[TrainingRow], n_rows: int, pad_token_id: int, device: torch.device) -> Batch:
    """Pad rows to one batch.

    Args:
        rows: the rows of this process.
        n_rows: B, at least `len(rows)`. Every process must run the same number of passes, or the collectives inside the
            loss wait forever, so that missing rows are filled with dummies: two attended tokens, none of them trained.
        pad_token_id: fills what is not attended.
        device: where the tensors go.

    Returns:
        Tensors under TRL's names: `prompt_ids`, `prompt_mask` (B, 1); `completion_ids`, `completion_mask`, `tool_mask`
        (TRL's name for the action mask), `advantages`, `sampling_per_token_logps` (B, T - 1).
    """
    dummy = TrainingRow([pad_token_id] * 2, [False] * 2, [0.0] * 2, [0.0] * 2)
    filled = [*rows, *[dummy] * (n_rows - len(rows))]
    length = max(2, max(len(row.token_ids) for row in filled))

    def stack(values: Sequence[Sequence[Any]], fill: Any, dtype: torch.dtype) -> torch.Tensor:
        padded = [[*value, *[fill] * (length - len(value))] for value in values]
        return torch.tensor(padded, dtype=dtype, device=device)

    ids = stack([row.token_ids for row in filled], pad_token_id, torch.long)
    attended = stack([[1] * len(row.token_ids) for row in filled], 0, torch.long)
    return {
        "prompt_ids": ids[:, :1],
        "prompt_mask": attended[:, :1],
        "completion_ids": ids[:, 1:],
        "completion_mask": attended[:, 1:],
        "tool_mask": stack([row.action_mask for row in filled], 0, torch.long)[:, 1:],
        "advantages": stack([row.advantages for row in filled], 0.0, torch.float32)[:, 1:],
        "sampling_per_token_logps": stack([row.logprobs for row in filled], 0.0, torch.float32)[:, 1:],
    }


def take(batch: Mapping[str, torch.Tensor], index: torch.Tensor) -> Batch:
    """Select rows of a batch and drop columns that only padding is left in. Scalars stay as they are."""
    longest = int(batch["completion_mask"][index].sum(1).max())
    picked = {}
    for name, value in batch.items():
        if value.ndim:
            value = value[index]
            if name not in ("prompt_ids", "prompt_mask"):
                value = value[:, :longest]
        picked[name] = value
    return picked
