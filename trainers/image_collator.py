"""Batches for imitation with images: TRL pads texts, and knows images only as files of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from agent_gym.images import Vision
from agent_gym.policies.processors import image_inputs
from agent_gym.rollout import Row


class ImageCollator:
    """Makes batches of rows, each with its own images.

    Args:
        rows: all rows; an example of the data set names its row by number.
        vision: of the model's processor.
        pad_token_id: fills what is not attended.
    """

    def __init__(self, rows: Sequence[Row], vision: Vision, pad_token_id: int) -> None:
        """Keep the rows."""
        self._rows, self._vision, self._pad = rows, vision, pad_token_id

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Pad examples with `row` and `labels` on the right, and read their images."""
        rows = [self._rows[example["row"]] for example in examples]
        read = [torch.tensor(self._vision.readable(row.token_ids, row.images)) for row in rows]
        labels = [torch.tensor(example["labels"]) for example in examples]
        ids = pad_sequence(read, batch_first=True, padding_value=self._pad)
        return {
            "input_ids": ids,
            "attention_mask": pad_sequence([torch.ones_like(one) for one in read], batch_first=True),
            "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
            **image_inputs(self._vision, ids, [image for row in rows for image, *_ in row.images]),
        }
