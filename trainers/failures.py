"""When a rollout that was divided among processes is worth going on with."""

from __future__ import annotations

from collections.abc import Sequence

from accelerate.utils import gather_object

from agent_gym.rollout import Episode, check_failures


def check_failures_everywhere(episodes: Sequence[Episode]) -> None:
    """Stop all processes if every episode of all of them failed; all of them come here, each with its episodes.

    One process whose few episodes all failed says little: those of the others are trained on, as one process would.

    Raises:
        RolloutError: in every process, with the failure of the first episode.
    """
    check_failures(gather_object([episode.failure for episode in episodes]))
