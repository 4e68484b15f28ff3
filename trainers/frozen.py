"""What a forward pass need not compute: logits that nobody reads, and frozen layers a second time.

What the layers below the first trained one compute is the same in each pass over a rollout. The pass that scores the
rows before the first update catches the hidden states above these layers, and the updates begin there. With 18 of 30
layers frozen and four updates on a rollout this leaves 0.71 of the work of the layers. The states of a rollout take 4
bytes for each number, so that a rollout with too many of them keeps none. Which layers are frozen, and whether a pass
may leave them out, is for probes.py to find.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from agent_gym.trainers.batch import tokens_of

_MOST = 2**28
"""Numbers that are kept of a rollout: 1 GiB of float32."""


@contextlib.contextmanager
def reading_only(model: Any, places: torch.Tensor) -> Iterator[None]:
    """Let the output layer of a model read these places (M,) of its flattened hidden states and no others."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model

    def select(_module: Any, _inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state.flatten(0, 1)[places][None]
        return output

    hook = base.base_model.register_forward_hook(select)
    try:
        yield
    finally:
        hook.remove()


def fits(ids: torch.Tensor, model: Any) -> bool:
    """Whether the hidden states of rows (B, T) are few enough to be kept."""
    return ids.numel() * model.config.get_text_config().hidden_size <= _MOST


@contextlib.contextmanager
def caught(layers: Sequence[Any]) -> Iterator[list[torch.Tensor]]:
    """Yield a list that a forward pass appends the states (L, N, H) above the layers to."""
    states: list[torch.Tensor] = []
    hook = layers[-1].register_forward_hook(lambda _module, _inputs, output: states.append(output))
    try:
        yield states
    finally:
        hook.remove()


@contextlib.contextmanager
def given(layers: Sequence[Any], states: torch.Tensor) -> Iterator[None]:
    """Let a forward pass have these states (L, N, H) above the layers instead of computing them."""
    for layer in layers:
        layer.forward = lambda *_args, **_kwargs: states
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


@contextlib.contextmanager
def once(
    layers: Sequence[Any], kept: torch.Tensor | None, place: torch.Tensor, lines: torch.Size
) -> Iterator[list[torch.Tensor]]:
    """Let a forward pass over rows at these places (B, T) of the lines (L, N) begin with the states that were kept.

    Without any, (B, T, H), the pass computes all, and where it has no gradient, its states are in the list.
    """
    if kept is not None:
        read = kept.flatten(0, 1)[tokens_of(place, lines.numel())].view(*lines, -1)
        with given(layers, read):
            yield []
    elif torch.is_grad_enabled():
        yield []
    else:
        with caught(layers) as states:
            yield states
