"""Episodes written down while training: trajectory files, TRL's table of completions, and texts for tensorboard."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from agent_gym.errors import RolloutError
from agent_gym.rollout import Episode, to_record, write_trajectories

TokenCredit = Mapping[str, Sequence[float]]
"""What is known of the sampled tokens of an episode, one number each: "advantages", and with a critic "values"."""


def write_episodes(
    path: Path,
    episodes: Sequence[Episode],
    tokenizer: Any,
    credit: Sequence[TokenCredit | None] | None = None,
    **extra: Any,
) -> None:
    """Write episodes as a trajectory file.

    Args:
        path: the file; its folder is made if needed.
        episodes: what to write.
        tokenizer: for the text of each token.
        credit: of each episode, None where it was not trained on; the viewer colours the policy's tokens by it.
        **extra: further entries of each record.

    Raises:
        RolloutError: if the file cannot be written, for example because the disk is full.
    """
    records = []
    for i, episode in enumerate(episodes):
        record = to_record(episode, tokenizer, **extra)
        for name, per_token in ((credit[i] if credit else None) or {}).items():
            for row, numbers in zip(record["rows"], over_rows(episode, per_token), strict=True):
                row[name] = [round(number, 6) for number in numbers]
        records.append(record)
    try:
        write_trajectories(path, records)
    except OSError as error:
        raise RolloutError(
            f"{path} could not be written: {error}. Make room and resume the run, or set trajectories_per_step to 0"
        ) from error


def over_rows(episode: Episode, per_token: Sequence[float]) -> list[list[float]]:
    """Lay one number per token of the policy over the rows of an episode, 0 on all other tokens."""
    numbers = iter(per_token)
    return [[next(numbers) if mine else 0.0 for mine in row.action_mask] for row in episode.rows]


def completion_table(episodes: Sequence[Episode], credit: Sequence[TokenCredit | None]) -> dict[str, list[Any]]:
    """Return the columns of TRL's table of completions over all processes.

    A prompt is everything before the policy's first word, a completion everything from there on, and the advantage is
    the mean over the sampled tokens, 0 where the episode was not trained on.
    """
    rows = []
    for episode, known in zip(episodes, credit, strict=True):
        first = len(episode.opening)
        found = known["advantages"] if known else ()
        advantage = sum(found) / len(found) if found else 0.0
        rows.append((episode.messages[:first], episode.messages[first:], episode.reward, advantage))
    prompts, completions, rewards, values = zip(*gather_object(rows), strict=True)
    return {
        "prompt": list(prompts),
        "completion": list(completions),
        "reward": list(rewards),
        "advantages": list(values),
    }


def show_on_tensorboard(
    callbacks: Iterable[TrainerCallback], table: Mapping[str, Any], *, step: int, limit: int
) -> None:
    """Give tensorboard, which has no tables, the episodes of TRL's table of completions as texts.

    Args:
        callbacks: of the trainer; without one of tensorboard's nothing happens.
        table: the columns "prompt" and "completion" (messages), "advantages", and "rewards" with "reward".
        step: the training step.
        limit: most episodes.
    """
    writers = [one.tb_writer for one in callbacks if isinstance(one, TensorBoardCallback) and one.tb_writer is not None]
    columns = (table["prompt"], table["completion"], table["rewards"]["reward"], table["advantages"])
    texts = [_markdown(*row) for row in list(zip(*columns, strict=True))[:limit]] if writers else []
    for writer in writers if texts else ():
        writer.add_text("episodes", "\n\n".join(texts), step)
        writer.flush()


def _markdown(
    prompt: Sequence[Mapping[str, Any]], completion: Sequence[Mapping[str, Any]], reward: float, advantage: float
) -> str:
    parts = [f"## reward {reward:+.3f}, mean advantage {advantage:+.3f}"]
    for message in (*prompt, *completion):
        content = message["content"]
        if not isinstance(content, str):
            content = "\n".join(part.get("text", f"[{part['type']}]") for part in content)
        # Longer than any fence of the text's own, which would end the block and format the rest.
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", content)), default=0))
        parts += [f"**{message['role']}**", f"{fence}\n{content}\n{fence}"]
    return "\n\n".join(parts)
