"""Draw tokens so that each request owns its randomness.

Sampling a batch from one generator ties every request to its neighbours: one more row and everything after it
changes. Here each request brings its own generator and spends exactly one uniform number per token, which
inverts the cumulative distribution. So a request's tokens depend on its seed and its logits alone (up to the
rounding of the logits, which does depend a little on the batch), and both CPU engines, sharing this code,
draw the same tokens.

It is also the cheap way: vLLM's own seeded sampler on a CPU draws one random number per token *of the
vocabulary*.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def draw_uniforms(generators: Sequence[torch.Generator | None]) -> torch.Tensor:
    """Take the next uniform number of each generator.

    Args:
        generators: One CPU generator per row; None for rows that are not sampled.

    Returns:
        (N,) float64 in [0, 1), 0 where there is no generator.
    """
    uniforms = torch.zeros(len(generators), dtype=torch.float64)
    for row, generator in zip(uniforms, generators, strict=True):
        if generator is not None:
            row.uniform_(generator=generator)
    return uniforms


def sample_tokens(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution of each row.

    Args:
        probs: (N, V) probabilities.
        uniforms: (N,) float64 in [0, 1).

    Returns:
        (N,) int64 token ids.
    """
    # In float32 the running sum over a vocabulary of 150 000 tokens is off by more than many of its terms.
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    # Scaling by the last sum instead of 1 keeps the draw inside the row; with right=True the first entry
    # *above* the threshold is taken, and such an entry has a probability above 0.
    thresholds = uniforms.to(probs.device)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, thresholds, right=True).squeeze(-1)
    return tokens.clamp_(max=probs.shape[-1] - 1)
