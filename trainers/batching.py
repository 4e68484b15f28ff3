"""From episodes to tensors: what is kept of an episode for training, its share per process, and padding.

Rows are padded on the right only, and every tensor of a batch is (B, T) over the same tokens: the first column is the
first token of a row, which nobody predicted and nobody trains on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from agent_gym.rollout import Episode

Batch = dict[str, torch.Tensor]

WORLD = -1
"""The step of a token that the policy did not sample."""


@dataclass(slots=True)
class TrainingRow:
    """One row of the loss.

    Attributes:
        token_ids: (T,) ids.
        step_of: (T,) the step of the episode in which the policy sampled the token, `WORLD` for all others.
        logprobs: (T,) the engine's logprob of each sampled token, 0 elsewhere.
    """

    token_ids: list[int]
    step_of: list[int]
    logprobs: list[float]


@dataclass(slots=True)
class TrainingEpisode:
    """What training needs of a finished episode, small enough to be sent to another process.

    Attributes:
        number: position of the episode in the rollout over all processes, by which they agree on an order.
        group: which episodes answer the same task.
        terminated: whether the task itself ended.
        rows: its rows that hold a sampled token.
        outcome: (K,) reward of each step without its process terms.
        process: (K,) process reward of each step.
        anchors: (K,) a number for the state in which each step was taken.
        baseline: return of a greedy episode of the same task, if one was played.
    """

    number: int
    group: int
    terminated: bool
    rows: list[TrainingRow]
    outcome: list[float]
    process: list[float]
    anchors: list[int]
    baseline: float | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens over all rows, which is what the episode costs."""
        return sum(len(row.token_ids) for row in self.rows)


def training_episode(episode: Episode, number: int) -> TrainingEpisode:
    """Keep what training needs.

    Args:
        episode: a finished episode that did not fail.
        number: its position in the rollout over all processes.
    """
    rows = [TrainingRow(r.token_ids, [WORLD] * len(r.token_ids), r.logprobs) for r in episode.rows]
    for k, step in enumerate(episode.steps):
        rows[step.row].step_of[step.start : step.stop] = [k] * (step.stop - step.start)
    # What the world said after the last sampled token of a row is context for nobody, except where we stopped the
    # episode: there a critic is asked what would have come.
    kept = []
    for i, row in enumerate(rows):
        sampled = [t for t, step_index in enumerate(row.step_of) if step_index != WORLD]
        if not sampled:
            continue
        asked = episode.truncated and episode.steps[-1].row == i
        stop = len(row.token_ids) if asked else sampled[-1] + 1
        kept.append(TrainingRow(row.token_ids[:stop], row.step_of[:stop], row.logprobs[:stop]))
    said = [" ".join(str(message["content"]) for message in episode.opening)]
    said += [step.observation for step in episode.steps[:-1]]
    process = [step.process_reward for step in episode.steps]
    return TrainingEpisode(
        number=number,
        group=episode.spec.group,
        terminated=episode.terminated,
        rows=kept,
        outcome=[step.reward - p for step, p in zip(episode.steps, process, strict=True)],
        process=process,
        anchors=[_number(text) for text in said[: len(episode.steps)]],
    )


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=7).digest(), "little")


def balance(episodes: Sequence[TrainingEpisode], n_shares: int) -> list[list[TrainingEpisode]]:
    """Divide episodes into shares of about equal token count, keeping each episode whole.

    The longest first, each to the lightest share (LPT scheduling, R. L. Graham, 1969). Deterministic, so that every
    process computes the same division.
    """
    shares: list[list[TrainingEpisode]] = [[] for _ in range(n_shares)]
    loads = [0] * n_shares
    for episode in sorted(episodes, key=lambda e: (-e.n_tokens, e.number)):
        lightest = loads.index(min(loads))
        shares[lightest].append(episode)
        loads[lightest] += episode.n_tokens
    return shares


def collate(episodes: Sequence[TrainingEpisode], n_rows: int, pad_token_id: int, device: torch.device) -> Batch:
    """Pad the rows of episodes to one batch.

    Args:
        episodes: the episodes of this process.
        n_rows: B, more than there are rows. Every process must run the same number of passes, or collectives inside a
            sharded model wait forever, so that missing rows are filled with dummies: two attended tokens, none of them
            trained. The last row is always one, and serves wherever a piece of the batch needs another row.
        pad_token_id: fills what is not attended.
        device: where the tensors go.

    Returns:
        `input_ids`, `attention_mask`, `action_mask` (True where the policy sampled the token), `step_of`,
        `engine_logps` (B, T), and `episode_of` (B,), the place of the row's episode in `episodes`, -1 for dummies.
    """
    dummy = TrainingRow([pad_token_id] * 2, [WORLD] * 2, [0.0] * 2)
    owned = [(i, row) for i, episode in enumerate(episodes) for row in episode.rows]
    filled = [*owned, *[(-1, dummy)] * (n_rows - len(owned))]
    length = max(2, max(len(row.token_ids) for _, row in filled))

    def stack(values: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> torch.Tensor:
        padded = [[*value, *[fill] * (length - len(value))] for value in values]
        return torch.tensor(padded, dtype=dtype, device=device)

    step_of = stack([row.step_of for _, row in filled], WORLD, torch.long)
    return {
        "input_ids": stack([row.token_ids for _, row in filled], pad_token_id, torch.long),
        "attention_mask": stack([[1] * len(row.token_ids) for _, row in filled], 0, torch.long),
        "action_mask": step_of != WORLD,
        "step_of": step_of,
        "engine_logps": stack([row.logprobs for _, row in filled], 0.0, torch.float32),
        "episode_of": torch.tensor([i for i, _ in filled], device=device),
    }


def take(batch: Mapping[str, torch.Tensor], index: torch.Tensor) -> Batch:
    """Select rows of a batch and drop columns that only padding is left in."""
    longest = int(batch["attention_mask"][index].sum(1).max())
    return {name: value[index][:, :longest] if value.ndim > 1 else value[index] for name, value in batch.items()}
