"""Which rows share a forward and backward pass.

The loss is a weighted sum over tokens, so that rows may be cut into passes anywhere. What decides is memory and time,
and both follow tokens: eight rows of 100 tokens cost less than eight of 4,000. A pass therefore takes rows of about
equal length, as many as a budget of tokens holds, padding included.
"""

from __future__ import annotations

from collections.abc import Sequence


def micro_batches(
    lengths: Sequence[int], *, max_rows: int | None = None, max_tokens: int | None = None, packed: bool = False
) -> list[list[int]]:
    """Divide rows into passes.

    Args:
        lengths: tokens of each row.
        max_rows: most rows of a pass.
        max_tokens: most tokens of a pass. A row that is longer has a pass of its own: rows are not cut.
        packed: whether rows stand one behind the other, so that a pass has no padding. Then a short row may fill the
            gap that long ones leave.

    Returns:
        The positions of the rows of each pass, each row once, the longest rows first.
    """
    passes: list[list[int]] = []
    tokens: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        # Packed: the first pass with room ("first fit decreasing", at most 11/9 of the best, D. S. Johnson, 1973).
        # Padded: the latest pass, whose rows are the closest in length; its longest row came first.
        open_passes = range(len(passes)) if packed else range(max(0, len(passes) - 1), len(passes))
        for i in open_passes:
            cost = lengths[row] if packed else lengths[passes[i][0]]
            full = max_rows is not None and len(passes[i]) >= max_rows
            if not full and (max_tokens is None or tokens[i] + cost <= max_tokens):
                passes[i].append(row)
                tokens[i] += cost
                break
        else:
            passes.append([row])
            tokens.append(lengths[row])
    return passes
