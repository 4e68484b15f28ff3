"""How much of small updates bfloat16 weights take: AdamW on weights of one precision beside the other.

    python benchmarks/weight_rounding.py            # some seconds

The same weights (normal, deviation 0.02, as in language models) and the same gradient, which stays as it is for all
steps, so that every weight should move by about rate x steps. No weight decay. bfloat16 has 8 bits of precision: a
weight moves only if the update is at least half of the distance to its neighbour, for 0.02 that is 6e-5. AdamW rounds
anew at every step, so that what is lost does not add up.

    moved       share of the weights that differ from their start
    way         mean distance from the start
    of float32  the same as a share of the way in float32
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _common

STEPS, SIZE = 100, 0.02


def main() -> None:
    parser = _common.parser(__doc__)
    options = parser.parse_args()
    facts = _common.provenance(("torch",))
    _common.print_provenance(facts)
    count = 10_000 if options.quick else 1_000_000
    rows = []
    for rate in (1e-6, 1e-5, 1e-4):
        _, full = move("float32", rate, count)
        for kind in ("float32", "bfloat16"):
            moved, way = move(kind, rate, count)
            rows.append([f"{kind}, rate {rate:g}", moved, way, way / full])
    head = ["weights", "moved", "way", "of float32"]
    _common.print_table(head, rows)
    _common.write_json(options.json, facts=facts, head=head, rows=rows)


def move(kind: str, rate: float, count: int) -> tuple[float, float]:
    """Train weights of a type and return the share of those that moved, and their mean distance from the start."""
    import torch

    generator = torch.Generator().manual_seed(0)
    start = (torch.randn(count, generator=generator) * SIZE).bfloat16()
    weights = start.to(getattr(torch, kind), copy=True).requires_grad_()
    weights.grad = torch.randn(count, generator=generator).to(weights.dtype)
    optimizer = torch.optim.AdamW([weights], lr=rate, weight_decay=0.0)
    for _ in range(STEPS):
        optimizer.step()
    way = (weights.detach().double() - start.double()).abs()
    return (way > 0).double().mean().item(), way.mean().item()


if __name__ == "__main__":
    main()
