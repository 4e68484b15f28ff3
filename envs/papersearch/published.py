"""The rewards of two papers on paper search as named terms, next to the clean default.

| `reward=` | formula | of |
|---|---|---|
| `"f1"` | F1 of the answered papers | this library |
| `"pasa"` | 1.5 * `found_count` + 0.1 * `calls` | PaSa's Crawler (arXiv:2501.10120, equation 1 and table 12) |
| `"paperscout"` | `best_found` + 0.5 * `wasted` | PaperScout (arXiv:2601.10029), as StepPO's recipe computes it |

Neither of the two scores an answer: both pay each turn for the papers that it was the first to find, and what the
policy says at the end is worth nothing. Both judge papers by a model, their selector. Here the gold papers stand in for
it: PaSa reports that as an ablation ("w/o Selector as RM"), and PaperScout's scores between 0 and 1 become 0 or 1.
PaperScout shows an expanded paper's surroundings all at once, so that any second expansion is wasted; here one is only
wasted after the last page.
"""

from __future__ import annotations

from collections.abc import Mapping

REWARDS: dict[str, Mapping[str, float]] = {
    "f1": {"f1": 1.0},
    "pasa": {"found_count": 1.5, "calls": 0.1},
    "paperscout": {"best_found": 1.0, "wasted": 0.5},
}
"""Name of a reward to the weights of its terms; all other terms weigh nothing."""

BEST = 3
"""For how many papers PaperScout pays per call, its `reward_top_k`."""
