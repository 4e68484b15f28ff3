"""Episodes written down while training: trajectory files, and TRL's table of completions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from agent_gym.rollout import Episode, to_record, write_trajectories
from agent_gym.trainers.batching import episode_rows


def write_episodes(
    path: Path, episodes: Sequence[Episode], tokenizer: Any, advantages: Sequence[float] | None = None, **extra: Any
) -> None:
    """Write episodes as a trajectory file.

    Args:
        path: the file; its folder is made if needed.
        episodes: what to write.
        tokenizer: for the text of each token.
        advantages: one per episode; the viewer colours the policy's tokens by it.
        **extra: further entries of each record.
    """
    records = []
    for i, episode in enumerate(episodes):
        laid = None
        if advantages is not None:
            laid = [row.advantages for row in episode_rows(episode, [advantages[i]] * len(episode.steps))]
        records.append(to_record(episode, tokenizer, laid, **extra))
    write_trajectories(path, records)


def completion_table(episodes: Sequence[Episode], advantages: Sequence[float]) -> dict[str, list[Any]]:
    """Return the columns of TRL's table of completions over all processes.

    A prompt is everything before the policy's first word, a completion everything from there on.
    """
    rows = []
    for episode, advantage in zip(episodes, advantages, strict=True):
        roles = [message["role"] for message in episode.messages]
        first = roles.index("assistant") if "assistant" in roles else len(roles)
        rows.append((episode.messages[:first], episode.messages[first:], episode.reward, advantage))
    prompts, completions, rewards, values = zip(*gather_object(rows), strict=True)
    return {
        "prompt": list(prompts),
        "completion": list(completions),
        "reward": list(rewards),
        "advantages": list(values),
    }
