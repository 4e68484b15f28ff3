"""From episodes to tensors: what is kept of an episode for training, its share per process, and padding.

Rows are padded on the right only, and every tensor of a batch is (B, T) over the same tokens: the first column is the
first token of a row, which nobody predicted and nobody trains on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from agent_gym.errors import EnvFailure
from agent_gym.images import Image, Shown, Vision, described
from agent_gym.rollout import Episode, EpisodeSpec
from agent_gym.transcript import check_tiling

Batch = dict[str, Any]
"""Tensors with a first dimension of rows, and, where images are shown, `RowImages`."""

WORLD = -1
"""The step of a token that the policy did not sample."""


@dataclass(slots=True)
class TrainingRow:
    """One row of the loss.

    Attributes:
        token_ids: (T,) ids.
        step_of: (T,) the step of the episode in which the policy sampled the token, `WORLD` for all others.
        logprobs: (T,) the engine's logprob of each sampled token, 0 elsewhere.
        images: those that the row shows.
    """

    token_ids: list[int]
    step_of: list[int]
    logprobs: list[float]
    images: list[Shown] = field(default_factory=list)


class RowImages:
    """The images of each row of a batch. They are selected with their rows, and so can never come to others.

    A model wants the pixels of all images behind each other, with no sign of where a row ends. So they are put together
    only for a forward pass, when it is settled which rows it has.

    Args:
        rows: the images of each row.
    """

    ndim = 1

    def __init__(self, rows: Sequence[Sequence[Image]]) -> None:
        self.rows = rows

    def __getitem__(self, index: torch.Tensor) -> RowImages:
        """Select rows."""
        return RowImages([self.rows[row] for row in index.tolist()])

    @property
    def flat(self) -> list[Image]:
        """All of them, row by row."""
        return [image for row in self.rows for image in row]


@dataclass(slots=True)
class TrainingEpisode:
    """What training needs of a finished episode, small enough to be sent to another process.

    Attributes:
        number: position of the episode in the rollout over all processes, by which they agree on an order.
        group: which episodes answer the same task.
        terminated: whether the task itself ended.
        rows: its rows that hold a token of the policy; also the last one, where we stopped the episode.
        outcome: (K,) reward of each step without its process terms.
        process: (K,) process reward of each step.
        anchors: (K,) a number for the state in which each step was taken; one of its own for a step without a token of
            the policy.
        trained: whether its tokens are in the loss. The others count for the credit of their group only.
        greedy: whether it is the greedy episode of its task, a baseline.
        source: number of its environment, see `source_number`.
    """

    number: int
    group: int
    terminated: bool
    rows: list[TrainingRow]
    outcome: list[float]
    process: list[float]
    anchors: list[int]
    trained: bool = True
    greedy: bool = False
    source: int = 0

    @property
    def n_tokens(self) -> int:
        """Tokens over all rows, which is what the episode costs."""
        return sum(len(row.token_ids) for row in self.rows)


def training_episode(episode: Episode, number: int) -> TrainingEpisode:
    """Keep what training needs.

    Args:
        episode: a finished episode that did not fail.
        number: its position in the rollout over all processes.

    Raises:
        EnvFailure: if its spans give the policy a token that it did not sample.
    """
    # What the world said after the last sampled token of a row is context for nobody, except where we stopped the
    # episode: there a critic is asked what would have come.
    kept = []
    for i, row in enumerate(episode.rows):
        step_of = _step_of(episode, i)
        asked = episode.truncated and episode.steps[-1].row == i
        stop = len(step_of) if asked else max((t + 1 for t, k in enumerate(step_of) if k != WORLD), default=0)
        if stop:
            images = [image for image in row.images if image.stop <= stop]
            kept.append(TrainingRow(row.token_ids[:stop], step_of[:stop], row.logprobs[:stop], images))
    said = [described(episode.opening)]
    said += [_observed(episode, k) for k in range(len(episode.steps) - 1)]
    anchors = [_number(text) for text in said[: len(episode.steps)]]
    process = [step.process_reward for step in episode.steps]
    outcome = [step.reward - p for step, p in zip(episode.steps, process, strict=True)]
    acting = {k for row in kept for k in row.step_of}
    for k in set(range(len(episode.steps))) - acting:
        # The world took this turn. It is nobody's answer to a state, and what it pays on the way before the policy's
        # first token credits no step of the policy: it is a part of the outcome.
        anchors[k] = _number(f"turn {k} of episode {number}")
        if not any(earlier in acting for earlier in range(k)):
            outcome[k], process[k] = outcome[k] + process[k], 0.0
    return TrainingEpisode(
        number=number,
        group=episode.spec.group,
        terminated=episode.terminated,
        rows=kept,
        outcome=outcome,
        process=process,
        anchors=anchors,
        source=source_number(episode.spec),
    )


def _step_of(episode: Episode, number: int) -> list[int]:
    """Return the step that sampled each token of a row, `WORLD` for the world's, as its spans say: the loss mask.

    Raises:
        EnvFailure: if a span gives the policy a token that it did not sample in that step.
    """
    row = episode.rows[number]
    check_tiling(row.spans, len(row.token_ids))
    step_of: list[int] = []
    for start, stop, source, k in row.spans:
        if source == "agent" and start < stop:
            step = episode.steps[k] if 0 <= k < len(episode.steps) else None
            if step is None or step.row != number or not step.start <= start < stop <= step.stop:
                raise EnvFailure(
                    f"{episode.spec.env_id}, step {k}: the spans of row {number} give tokens {start} to {stop} to the "
                    f"policy, which sampled {'nothing there' if step is None else f'{step.start} to {step.stop}'}"
                )
        step_of += [k if source == "agent" else WORLD] * (stop - start)
    return step_of


def source_number(spec: EpisodeSpec) -> int:
    """Number the environment of an episode: its id and its source in a mixture, which may differ in arguments alone.

    Rewards are of one scale within it, and only there.
    """
    return _number(f"{spec.env_id}\0{spec.source}")


def _observed(episode: Episode, number: int) -> str:
    """Return what the world said to a step, with the names of the images that it showed."""
    step, following = episode.steps[number], episode.steps[number + 1]
    images = episode.rows[step.row].images
    until = following.start if following.row == step.row else len(episode.rows[step.row].token_ids)
    shown = [image.digest for image, start, _ in images if step.stop <= start < until]
    return "\0".join([step.observation, *shown])


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


def collate(
    episodes: Sequence[TrainingEpisode],
    n_rows: int,
    pad_token_id: int,
    device: torch.device,
    vision: Vision | None = None,
) -> Batch:
    """Pad the rows of episodes to one batch.

    Args:
        episodes: the episodes of this process.
        n_rows: B, more than there are rows. Every process must run the same number of passes, or collectives inside a
            sharded model wait forever, so that missing rows are filled with dummies: two attended tokens, none of them
            trained. The last row is always one, and serves wherever a piece of the batch needs another row.
        pad_token_id: fills what is not attended.
        device: where the tensors go.
        vision: of a model that reads images.

    Returns:
        `input_ids`, `attention_mask`, `action_mask` (True where the policy sampled the token), `step_of`,
        `engine_logps` (B, T), and `episode_of` (B,), the place of the row's episode in `episodes`, -1 for dummies. With
        `vision` also `read_ids` (B, T), the tokens as the model reads them, and `images`, a `RowImages`.
    """
    dummy = TrainingRow([pad_token_id] * 2, [WORLD] * 2, [0.0] * 2)
    owned = [(i, row) for i, episode in enumerate(episodes) for row in episode.rows]
    filled = [*owned, *[(-1, dummy)] * (n_rows - len(owned))]
    length = max(2, max(len(row.token_ids) for _, row in filled))

    def stack(values: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> torch.Tensor:
        padded = [[*value, *[fill] * (length - len(value))] for value in values]
        return torch.tensor(padded, dtype=dtype, device=device)

    step_of = stack([row.step_of for _, row in filled], WORLD, torch.long)
    seen: Batch = {}
    if vision is not None:
        read = [vision.readable(row.token_ids, row.images) for _, row in filled]
        images = RowImages([[image for image, *_ in row.images] for _, row in filled])
        seen = {"read_ids": stack(read, pad_token_id, torch.long), "images": images}
    return {
        **seen,
        "input_ids": stack([row.token_ids for _, row in filled], pad_token_id, torch.long),
        "attention_mask": stack([[1] * len(row.token_ids) for _, row in filled], 0, torch.long),
        "action_mask": step_of != WORLD,
        "step_of": step_of,
        "engine_logps": stack([row.logprobs for _, row in filled], 0.0, torch.float32),
        "episode_of": torch.tensor([i for i, _ in filled], device=device),
    }


def take(batch: Mapping[str, Any], index: torch.Tensor) -> Batch:
    """Select rows of a batch and drop columns that only padding is left in."""
    longest = int(batch["attention_mask"][index].sum(1).max())
    return {name: value[index][:, :longest] if value.ndim > 1 else value[index] for name, value in batch.items()}
