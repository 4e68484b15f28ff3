"""Rollouts without rounds: batches of episodes begin as early as `max_staleness` allows, and are trained on in turn.

    max_staleness 0     | play batch 0 | update 0 | play batch 1 | update 1 | ...

    one rollout         | play batches 0 and 1 ... 1 and 2 ... 2 and 3 ...
    of updates                          | update 0 | update 1 | update 2 | ...

With m = rollouts of updates in `max_staleness`, rollout k begins what has not begun of the batches up to k + m, and its
own is batch k, once all of its episodes are over. So an episode has m rollouts of time before anything waits for it,
and no token is more than m rollouts old when it is trained on.

A batch takes nothing of a later one, though some of that may be done first. Rollouts up to k train on as many groups as
the batches up to k hold, and all of these are due at rollout k: for each group of a later batch one would become too
old. So a run trains on the groups of a synchronous run, in their order.

What is in play when weights are handed over is interrupted, in the middle of a turn if need be, and goes on under the
new ones (Kimi k1.5, arXiv:2501.12599; AReaL, arXiv:2505.24298). Each token keeps the logprob and the version of the
weights that sampled it, and `losses.engine_ratio` evens out the difference. Nothing is dropped: what is not done in
time is long, and a policy that is trained on the rest learns to be short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from agent_gym.rollout import Episode, EpisodeSpec, Stream


class ContinuousRollouts:
    """The batches that are in play; each call of `train` has one.

    Nothing of it is in checkpoints: a run that is resumed plays what was in play anew. A checkpoint made between two
    updates on the same rollout plays that rollout again, as a synchronous run does.
    """

    def __init__(self) -> None:
        self._in_play: dict[int, list[Episode]] = {}  # by number of the batch
        self._missing = Counter[int]()  # episodes of a batch that are not over

    def play(
        self,
        stream: Stream,
        batches: Sequence[int],
        specs_of: Callable[[int], Sequence[EpisodeSpec]],
        temperature: float,
    ) -> list[Episode]:
        """Begin those of the batches that have not begun, and return the episodes of the first when all are over."""
        for batch in batches:
            if batch not in self._in_play:
                self._begin(stream, batch, specs_of(batch), temperature)
        first = batches[0]
        stream.wait(lambda: not self._missing[first])
        del self._missing[first]
        return self._in_play.pop(first)

    def _begin(self, stream: Stream, batch: int, specs: Sequence[EpisodeSpec], temperature: float) -> None:
        self._missing[batch] = len(specs)

        def ended(_: Episode) -> None:
            self._missing[batch] -= 1

        self._in_play[batch] = stream.add(specs, temperature, ended)
