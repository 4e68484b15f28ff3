"""The tokens of an update, in rows and as computed, and the share of its device that it uses (MFU)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from agent_gym.distributed import gather
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

    def __init__(self, model: Any, device: torch.device) -> None:
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
        rows, computed = (float(sum(of_all)) for of_all in zip(*gather((in_rows, tokens)), strict=True))
        found = {"update/tokens": rows, "update/tokens_computed": computed}
        return found if self._peak is None else {**found, "perf/mfu": self._per_token * tokens / (seconds * self._peak)}


def attach(trainer: Any) -> None:
    """Attach always: on an unknown device the hook counts tokens alone."""
    trainer.add_callback(UpdateMeter(trainer.model, trainer.accelerator.device))
