"""Whether the policy repeats itself: the share of n-grams in its turns that occurred before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from agent_gym.distributed import gather
from agent_gym.rollout import Episode
from agent_gym.trainers.hook import Hook, RolloutBatch
from agent_gym.trainers.schedule import without_greedy
from agent_gym.transcript import kind_of

REPEATED_TOKENS = 1 << 18
"""The limit of sampled tokens, per process, for the search; millions would delay the update by seconds."""


class Repetition(Hook):
    """Logs the share of repeated n-grams, as a mean over the processes."""

    def after_log(self, rollout: RolloutBatch) -> None:
        shares = gather(repeated_share(first_turns(without_greedy(rollout.episodes))))
        self.trainer.record({"rollout/repeated": sum(shares) / len(shares)})


def first_turns(episodes: Sequence[Episode]) -> Iterator[list[int]]:
    """Yield the sampled ids of the turns, in order, until `REPEATED_TOKENS` tokens were given."""
    left = REPEATED_TOKENS
    for episode in episodes:
        for row in episode.rows:
            for start, stop, source, _ in row.spans:
                if kind_of(source) == "agent" and left > 0:
                    yield row.token_ids[start:stop]
                    left -= stop - start


def repeated_share(sequences: Iterable[Sequence[int]], n: int = 4) -> float:
    """Return the share of n-grams that occurred before: 1 - distinct-n (Li et al., 2016, arXiv:1510.03055).

    An n-gram does not reach across an observation: there is one sequence of sampled ids per turn. The share grows with
    the number of tokens, so that only rollouts of the same size are comparable. The share is 0 if no sequence has n
    tokens.
    """
    # The n-grams are hashed to 64 bits: a rollout may have millions of them, and a set of as many tuples takes a
    # gigabyte.
    factors = np.random.default_rng(0).integers(2**63, size=n, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    windows = [sliding_window_view(np.array(ids, dtype=np.uint64), n) for ids in sequences if len(ids) >= n]
    grams = np.concatenate([window @ factors for window in windows]) if windows else ()  # modulo 2^64
    return 1 - len(np.unique(grams)) / len(grams) if len(grams) else 0.0


def attach(trainer: Any) -> None:
    """Attach always."""
    trainer.add_callback(Repetition())
