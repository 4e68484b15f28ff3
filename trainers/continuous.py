"""Rollouts without rounds: batches of episodes begin as early as `max_staleness` allows, and are trained on in order.

    max_staleness 0     | play batch 0 | update 0 | play batch 1 | update 1 | ...

    one rollout         | play batches 0 and 1 ... 1 and 2 ... 2 and 3 ...
    of updates                          | update 0 | update 1 | update 2 | ...

Let m be the number of rollouts whose updates fit in `max_staleness`. Rollout k begins every batch up to k + m that has
not begun. It returns batch k when all episodes of that batch have ended. An episode thus has the time of m rollouts
before training waits for it, and no token is older than m rollouts when it is trained on.

A batch takes no group of a later batch, although some later groups may be finished first. The rollouts up to k train on
as many groups as the batches up to k hold, and all of these groups are due at rollout k. Each group taken from a later
batch would make one of them too old. So a run trains on the groups of a synchronous run, in their order.

New weights interrupt the pending episodes, in the middle of a turn if necessary. The episodes continue under the new
weights (Kimi k1.5, arXiv:2501.12599; AReaL, arXiv:2505.24298). Each token keeps the logprob and the version of the
weights that sampled it, and `losses.engine_ratio` corrects for the difference. No episode is dropped: the episodes that
end late are long, and a policy that is trained only on the others learns to be short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from agent_gym.rollout import Episode, EpisodeSpec, Stream


class ContinuousRollouts:
    """The batches that are being played; each call of `train` has one such object.

    It is not saved in checkpoints: a resumed run plays the pending episodes anew. A run that resumes from a checkpoint
    between two updates on the same rollout plays that rollout again, as a synchronous run does.
    """

    def __init__(self) -> None:
        self._in_play: dict[int, list[Episode]] = {}  # by the number of the batch
        self._missing = Counter[int]()  # episodes of a batch that have not ended

    def collect(
        self,
        stream: Stream,
        batches: Sequence[int],
        specs_of: Callable[[int], Sequence[EpisodeSpec]],
        temperature: float,
    ) -> list[Episode]:
        """Begin the batches that have not begun, and return the episodes of the first batch when all have ended."""
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
