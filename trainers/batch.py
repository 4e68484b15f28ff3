"""The tensors of training: the kept parts of an episode, the episodes of each rank, and the rows of a micro-batch.

Every tensor of a batch is (B, T) over the same tokens, padded on the right. The first column holds the first token of a
row. No token predicts it, so it is not trained on. The loss is a weighted sum over tokens, so rows may be cut into
micro-batches anywhere.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from agent_gym.chat import described
from agent_gym.errors import EnvFailure
from agent_gym.images import Image, Shown, Vision
from agent_gym.rollout import Episode, EpisodeSpec, Row
from agent_gym.transcript import check_tiling, kind_of

Batch = dict[str, Any]
"""Tensors whose first dimension is rows, and `RowImages` where the environment shows images."""

NOT_SAMPLED = -1
"""The step of a token that the environment wrote, and the policy did not sample."""


class RowImages:
    """The images of each row of a batch, selected with their rows.

    A model takes the pixels of all images in one sequence, without a mark at the end of a row. The images are therefore
    joined only for a forward pass, when its rows are known.
    """

    ndim = 1

    def __init__(self, rows: Sequence[Sequence[Image]]) -> None:
        self.rows = rows

    def __getitem__(self, index: torch.Tensor) -> RowImages:
        return RowImages([self.rows[row] for row in index.tolist()])

    @property
    def flat(self) -> list[Image]:
        """All images, row by row."""
        return [image for row in self.rows for image in row]


class TrainingRow(NamedTuple):
    """A row of T tokens as arrays, because a list of Python numbers takes eight times the memory."""

    token_ids: np.ndarray  # (T,) int32
    step_of: np.ndarray  # (T,) int32, the step that sampled the token, `NOT_SAMPLED` where the environment wrote it
    logprobs: np.ndarray  # (T,) float32, under the weights that sampled the token; 0 elsewhere
    images: Sequence[Shown] = ()

    @classmethod
    def of(cls, row: Row, stop: int | None = None) -> TrainingRow:
        """Take a row, or its tokens up to `stop`; an image that ends after `stop` is left out."""
        steps = np.full(len(row.token_ids), NOT_SAMPLED, dtype=np.int32)
        for span in row.spans:
            if kind_of(span.source) == "agent":
                steps[span.start : span.stop] = span.step
        images = [image for image in row.images if stop is None or image.stop <= stop]
        return cls(
            np.array(row.token_ids[:stop], np.int32), steps[:stop], np.array(row.logprobs[:stop], np.float32), images
        )


class Hint(NamedTuple):
    """The tokens that a teacher reads in place of the beginning of each row of an episode."""

    before: tuple[int, ...]  # the ids with which the rows begin
    after: tuple[int, ...]  # the ids that the teacher reads instead


@dataclass(slots=True)
class TrainingEpisode:
    """The parts of a finished episode that training needs, small enough to be sent to another rank."""

    number: int  # position in the rollout over all ranks; it gives all ranks the same order
    group: int  # equal for the episodes of one task
    terminated: bool  # whether the episode ended because its task had ended
    rows: list[TrainingRow]  # the rows with a token of the policy
    outcome: list[float]  # (K,) reward of each step without its process rewards
    process: list[float]  # (K,) process reward of each step
    # (K,) a number for the state in which each step was taken. A step without a token of the policy has one alone.
    anchors: list[int]
    trained: bool = True  # whether its tokens are in the loss; other episodes count only for the credit of their group
    greedy: bool = False  # whether it is the greedy episode of its task, a baseline
    source: int = 0  # number of its environment, see `source_number`
    success: bool = False  # whether the task was solved
    hint: Hint | None = None

    @property
    def n_tokens(self) -> int:
        """The number of tokens over all rows, which is the cost of the episode."""
        return sum(len(row.token_ids) for row in self.rows)


def training_episode(episode: Episode, number: int) -> TrainingEpisode:
    """Keep the parts that training needs of an episode that did not fail.

    Raises:
        EnvFailure: if a span says that the policy wrote a token which it did not sample.
    """
    _check_spans(episode)
    # No trained token follows the last sampled token of a row, so the later tokens are left out.
    stops = [max((s.stop for s in row.spans if kind_of(s.source) == "agent"), default=0) for row in episode.rows]
    kept = [TrainingRow.of(row, stop) for row, stop in zip(episode.rows, stops, strict=True) if stop]
    process = [step.process_reward for step in episode.steps]
    outcome = [step.reward - p for step, p in zip(episode.steps, process, strict=True)]
    # The state of a step is the initial messages, or the text and images of the environment after the step before.
    states = [described(episode.initial_messages)]
    for step, following in itertools.pairwise(episode.steps):
        if step.kind == "summary":  # The environment does not answer a summary, so the last state holds.
            states.append(states[-1])
            continue
        row = episode.rows[step.row]
        stop = following.start if following.row == step.row else len(row.token_ids)
        shown = [image.digest for image, start, _ in row.images if step.stop <= start < stop]
        states.append("\0".join([step.observation, *shown]))
    anchors = [_hash(f"{step.kind}\0{state}") for step, state in zip(episode.steps, states, strict=False)]
    acting = {int(step) for row in kept for step in np.unique(row.step_of) if step != NOT_SAMPLED}
    for k in set(range(len(episode.steps))) - acting:
        # The environment took this turn, and the turn answers no state. A reward before the policy's first token
        # credits no step of the policy, so it counts as outcome.
        anchors[k] = _hash(f"turn {k} of episode {number}")
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
        success=episode.success,
    )


def _check_spans(episode: Episode) -> None:
    for number, row in enumerate(episode.rows):
        check_tiling(row.spans, len(row.token_ids))
        for start, stop, source, k in row.spans:
            if kind_of(source) != "agent" or start == stop:
                continue
            step = episode.steps[k] if 0 <= k < len(episode.steps) else None
            if step is None or step.row != number or not step.start <= start < stop <= step.stop:
                raise EnvFailure(
                    f"{episode.spec.env_id}, step {k}: the spans of row {number} give tokens {start} to {stop} to the "
                    f"policy, which sampled {'nothing there' if step is None else f'{step.start} to {step.stop}'}"
                )


def source_number(spec: EpisodeSpec) -> int:
    """Number the environment of an episode by its id, its source in a mixture, and the role that the policy plays.

    Sources may differ only in their arguments. Rewards have one scale within an environment, and only there.
    """
    return _hash("\0".join([spec.env_id, str(spec.source), *filter(None, [spec.role])]))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=7).digest(), "little")


def balance(lengths: Mapping[int, int], n_shares: int) -> list[list[int]]:
    """Divide episodes into shares of about equal token count, keeping each episode whole.

    The longest episode goes first, and each goes to the share with the fewest tokens (LPT scheduling, R. L. Graham,
    1969). Every rank computes the same shares.

    Args:
        lengths: tokens of each episode, by its number.
        n_shares: the number of shares.

    Returns:
        The numbers of the episodes of each share, by falling length.
    """
    shares: list[list[int]] = [[] for _ in range(n_shares)]
    loads = [(0, share) for share in range(n_shares)]  # a heap
    for number in sorted(lengths, key=lambda number: (-lengths[number], number)):
        load, lightest = loads[0]
        shares[lightest].append(number)
        heapq.heapreplace(loads, (load + lengths[number], lightest))
    return shares


def collate(
    episodes: Sequence[TrainingEpisode],
    n_rows: int,
    pad_token_id: int,
    vision: Vision | None = None,
) -> Batch:
    """Pad the rows of episodes to one batch, which stays on the CPU; `select_rows` moves the rows of a pass.

    Args:
        episodes: the episodes of this rank.
        n_rows: B, larger than the number of rows. Every rank must run the same number of passes, so the missing rows
            are filled with dummies: two attended tokens, neither of them trained on. The last row is always a dummy.
        pad_token_id: fills the positions that are not attended to.
        vision: the vision part of a model that reads images.

    Returns:
        (B, T) `input_ids` and `step_of` int32, `attention_mask` and `action_mask` (True where the policy sampled the
        token) bool, `engine_logps` float32, and `episode_of` (B,), the position of the row's episode in `episodes`, -1
        for dummies. With `vision` also `read_ids` (B, T), which the model reads, and `images`, a `RowImages`.
    """
    dummy = TrainingRow(np.full(2, pad_token_id, np.int32), np.full(2, NOT_SAMPLED, np.int32), np.zeros(2, np.float32))
    owned = [(i, row) for i, episode in enumerate(episodes) for row in episode.rows]
    filled = [*owned, *[(-1, dummy)] * (n_rows - len(owned))]
    length = max(2, max(len(row.token_ids) for _, row in filled))

    def stack(columns: Iterable[Any], fill: float, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        padded = torch.full((len(filled), length), fill, dtype=dtype)
        for line, values in zip(padded, columns, strict=True):
            line[: len(values)] = torch.as_tensor(values)
        return padded

    rows = [row for _, row in filled]
    steps = stack((row.step_of for row in rows), NOT_SAMPLED)
    batch: Batch = {
        "input_ids": stack((row.token_ids for row in rows), pad_token_id),
        "attention_mask": stack((np.ones(len(row.token_ids), bool) for row in rows), 0, torch.bool),
        "action_mask": steps != NOT_SAMPLED,
        "step_of": steps,
        "engine_logps": stack((row.logprobs for row in rows), 0.0, torch.float32),
        "episode_of": torch.tensor([i for i, _ in filled]),
    }
    if vision is not None:
        read = (vision.readable(row.token_ids.tolist(), row.images) for row in rows)
        batch["read_ids"] = stack(read, pad_token_id)
        batch["images"] = RowImages([[image for image, *_ in row.images] for _, row in filled])
    return batch


def select_rows(batch: Mapping[str, Any], index: torch.Tensor, device: torch.device | None = None) -> Batch:
    """Select rows, and drop the columns that then hold only padding; on a device as a model reads them, in int64."""
    longest = int(batch["attention_mask"][index].sum(1).max())
    rows = {name: value[index][:, :longest] if value.ndim > 1 else value[index] for name, value in batch.items()}
    for name in () if device is None else rows.keys() - {"images"}:
        wide = name == "attention_mask" or rows[name].dtype == torch.int32
        rows[name] = rows[name].to(device, torch.long if wide else rows[name].dtype)
    return rows


def common_prefixes(rows: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """Return for each row the number of leading tokens that the row before it in an order has, too."""
    arrays, common = [np.asarray(row) for row in rows], [0] * len(rows)
    for before, row in itertools.pairwise(order):
        least = min(len(rows[before]), len(rows[row]))
        common[row] = int(np.append(arrays[before][:least] != arrays[row][:least], True).argmax())
    return common


COPIES = 16
"""A pass with shared prefixes has rows of at most so many times its tokens: attention copies their keys and values."""


def micro_batches(
    lengths: Sequence[int],
    *,
    max_rows: int | None = None,
    max_tokens: int | None = None,
    packed: bool = False,
    order: Sequence[int] | None = None,
    common: Sequence[int] | None = None,
) -> list[list[int]]:
    """Divide rows into micro-batches.

    Args:
        lengths: tokens of each row.
        max_rows: the largest number of rows of a micro-batch.
        max_tokens: the largest number of tokens of a micro-batch. A longer row has a micro-batch to itself, and a row
            that shares half of its tokens may exceed the limit by its own length: a long opening is shared, too.
        packed: whether rows are written in one sequence, so that a micro-batch has no padding.
        order: rows that are neighbours in this order go to the same micro-batch, as far as there is room.
        common: with an order, the tokens of each row that a pass computes once for the row and the one before it.

    Returns:
        The positions of the rows of each micro-batch, each row once; without an order the longest rows come first.
    """
    passes: list[list[int]] = []
    tokens: list[int] = []
    for row in order or sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        # Packed rows go to the first micro-batch with room ("first fit decreasing", D. S. Johnson, 1973). Other rows go
        # to the latest micro-batch: its rows are the closest in length, or share the most tokens with this row.
        open_passes = range(len(passes)) if packed else range(max(0, len(passes) - 1), len(passes))
        for i in open_passes:
            cost = (lengths[row] if packed or order else lengths[passes[i][0]]) - (common[row] if common else 0)
            full = max_rows is not None and len(passes[i]) >= max_rows
            room = float(max_tokens or "inf")
            if common and 2 * common[row] >= lengths[row]:
                room = max(room, lengths[passes[i][0]]) + lengths[row]
            full |= bool(common) and (len(passes[i]) + 1) * lengths[row] > COPIES * room
            if not full and tokens[i] + cost <= room:
                passes[i].append(row)
                tokens[i] += cost
                break
        else:
            passes.append([row])
            tokens.append(lengths[row])
    return passes
