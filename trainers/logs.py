"""Episodes written down while training: trajectory files, and TRL's table of completions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from agent_gym.rollout import Episode, to_record, write_trajectories


def write_episodes(
    path: Path,
    episodes: Sequence[Episode],
    tokenizer: Any,
    advantages: Sequence[Sequence[float] | None] | None = None,
    **extra: Any,
) -> None:
    """Write episodes as a trajectory file.

    Args:
        path: the file; its folder is made if needed.
        episodes: what to write.
        tokenizer: for the text of each token.
        advantages: of each episode, one per sampled token, None where it was not trained on; the viewer colours the
            policy's tokens by them.
        **extra: further entries of each record.
    """
    records = []
    for i, episode in enumerate(episodes):
        found = None if advantages is None else advantages[i]
        laid = None if found is None else over_rows(episode, found)
        records.append(to_record(episode, tokenizer, laid, **extra))
    write_trajectories(path, records)


def over_rows(episode: Episode, per_token: Sequence[float]) -> list[list[float]]:
    """Lay one number per sampled token over the rows of an episode, 0 on all other tokens."""
    rows = [[0.0] * len(row.token_ids) for row in episode.rows]
    used = 0
    for step in episode.steps:
        length = step.stop - step.start
        rows[step.row][step.start : step.stop] = per_token[used : used + length]
        used += length
    return rows


def completion_table(episodes: Sequence[Episode], advantages: Sequence[Sequence[float] | None]) -> dict[str, list[Any]]:
    """Return the columns of TRL's table of completions over all processes.

    A prompt is everything before the policy's first word, a completion everything from there on, and the advantage is
    the mean over the sampled tokens, 0 where the episode was not trained on.
    """
    rows = []
    for episode, found in zip(episodes, advantages, strict=True):
        first = len(episode.opening)
        advantage = sum(found) / len(found) if found else 0.0
        rows.append((episode.messages[:first], episode.messages[first:], episode.reward, advantage))
    prompts, completions, rewards, values = zip(*gather_object(rows), strict=True)
    return {
        "prompt": list(prompts),
        "completion": list(completions),
        "reward": list(rewards),
        "advantages": list(values),
    }
