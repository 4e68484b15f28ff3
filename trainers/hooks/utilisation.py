"""The tokens of an update, in rows and as computed, and the share of its device that it uses (MFU)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from agent_gym.distributed import gather
from agent_gym.trainers.batch import Batch, common_prefixes
from agent_gym.trainers.hook import Hook

PEAK = {
    "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "GH200": 989e12, "B200": 2250e12,
    "A100": 312e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "RTX 4090": 165e12,
}  # fmt: skip
"""Operations per second in bf16 without sparsity, from NVIDIA's data sheets.

The first name that is contained in a GPU's name counts.
"""


def peak_of(device: torch.device) -> float | None:
    """Return the operations per second that a device promises in bf16; None if the number is not known."""
    if device.type != "cuda":
        return None
    found = torch.cuda.get_device_name(device)
    return next((value for name, value in PEAK.items() if re.search(rf"\b{name}\b", found)), None)


class UpdateMeter(Hook):
    """Counts the tokens that this process computes with a gradient, for the share of its device that it uses (MFU).

        operations that the model needs / (seconds of the update * operations per second of the device)

    The model needs 6 operations per parameter and token (Kaplan et al., arXiv:2001.08361, section 2.1): 2 in the
    forward pass, 2 for the gradient of the layer's inputs, and 2 for the gradient of the weights, which frozen weights
    do not need. An activation that is computed twice (checkpointing) counts once. Attention to other tokens is not
    counted, while PaLM (arXiv:2204.02311, appendix B) adds it; for long rows the true share is higher.
    """

    def __init__(self, model: Any, device: torch.device, batch: Callable[[], Batch | None] = lambda: None) -> None:
        self._batch: Callable[[], Batch | None] | None = batch  # of the update, until it was looked at
        self._peak, self._tokens, self._in_rows = peak_of(device), 0, 0
        self._per_token = 0  # operations per token
        for parameter in model.parameters():
            # ZeRO-3 leaves an empty tensor in the place of a parameter.
            size = getattr(parameter, "ds_numel", parameter.numel())
            self._per_token += size * (6 if parameter.requires_grad else 4)

    def after_forward(self, places: torch.Tensor) -> None:
        """Add the tokens of a pass by their places: rows that share a place share its token."""
        if torch.is_grad_enabled():
            self._tokens += len(places.unique())
            self._in_rows += places.numel()

    def after_backward(self, metrics: Mapping[str, float], seconds: float) -> dict[str, float]:
        """Return the tokens of an update, and its MFU if the device is known, and begin the next count."""
        tokens, in_rows, self._tokens, self._in_rows = self._tokens, self._in_rows, 0, 0
        if self._batch is not None and (batch := self._batch()) is not None:
            self._batch = None  # once in a run: the rows of later updates are alike
            if told := recomputed(batch, tokens):
                warnings.warn(told, RuntimeWarning, stacklevel=2)
        rows, computed = (float(sum(of_all)) for of_all in zip(*gather((in_rows, tokens)), strict=True))
        found = {"update/tokens": rows, "update/tokens_computed": computed}
        return found if self._peak is None else {**found, "perf/mfu": self._per_token * tokens / (seconds * self._peak)}


def recomputed(batch: Batch, computed: int) -> str:
    """Return a line about openings that several passes of an update computed, "" where these are under a tenth.

    Args:
        batch: its rows; `input_ids`, `attention_mask` (B, T) and `episode_of` (B,) are read.
        computed: the tokens that its passes computed.
    """
    owned, lengths = (batch["episode_of"] >= 0).cpu(), batch["attention_mask"].sum(1).cpu()
    rows = [ids[:n].tolist() for ids, n in zip(batch["input_ids"].cpu()[owned], lengths[owned], strict=True)]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    common = common_prefixes(rows, order)
    # Distinct tokens of rows that share at least half of each with the row before: those of a group.
    together = [0]
    for row in order:
        new = len(rows[row]) - common[row]
        if common[row] >= len(rows[row]) / 2:
            together[-1] += new
        else:
            together.append(len(rows[row]))
    distinct = sum(together)
    if computed <= 1.1 * distinct:
        return ""
    cure = f"--micro_batch_tokens {max(together)} lets a pass hold the rows of a group, which takes more memory"
    return (
        f"an update computes {computed:,} tokens, of which {distinct:,} differ, as openings span several passes: {cure}"
    )


def attach(trainer: Any) -> None:
    """Attach always: on an unknown device the hook counts tokens alone."""

    def batch() -> Batch | None:
        chunks = trainer._buffered_inputs if trainer.shares_prefixes and trainer.args.micro_batch_tokens else None
        return None if chunks is None else chunks[trainer._position % len(chunks)]

    trainer.add_callback(UpdateMeter(trainer.model, trainer.accelerator.device, batch))
