"""The records of a run apart from its logs: evaluations, trajectory files, tables of completions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from agent_gym.errors import RolloutError
from agent_gym.evaluate import wilson_interval
from agent_gym.rollout import Episode, to_record, write_trajectories

TokenCredit = Mapping[str, Sequence[float]]
"""What is known of the sampled tokens of an episode, one number each: "advantages", and with a critic "values"."""


def eval_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Success over all processes with its 95% interval, mean reward, and counts."""
    done = [episode for episode in episodes if not episode.failure]
    mine = (sum(e.success for e in done), sum(e.reward for e in done), len(done), len(episodes))
    wins, reward, n, played = (sum(column) for column in zip(*gather_object([mine]), strict=True))
    low, high = wilson_interval(int(wins), int(n))
    return {
        "success": wins / max(1, n),
        "success_low": low,
        "success_high": high,
        "reward": reward / max(1, n),
        "episodes": n,
        "failed": played - n,
    }


def write_episodes(
    trainer: Any, kind: str, episodes: Sequence[Episode], credit: Sequence[TokenCredit | None] | None = None
) -> None:
    """Write episodes as the trajectory file `kind` of a trainer's present step; raises `RolloutError` if it cannot be.

    `credit` of each episode is None where it was not trained on; the viewer colours the policy's tokens by it.
    """
    step = trainer.state.global_step
    name = f"{kind}_{step:06d}_{trainer.accelerator.process_index}"
    if trainer._micro_step:  # a later rollout of the same step
        name += f"_{trainer._micro_step}"
    path = Path(str(trainer.args.output_dir), "trajectories", f"{name}.jsonl")
    records = []
    for i, episode in enumerate(episodes):
        record = to_record(episode, trainer._tokenizer, step=step)
        for column, per_token in ((credit[i] if credit else None) or {}).items():
            for row, numbers in zip(record["rows"], over_rows(episode, per_token), strict=True):
                row[column] = [round(number, 6) for number in numbers]
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
    columns = (list(column) for column in zip(*gather_object(rows), strict=True))
    return dict(zip(("prompt", "completion", "reward", "advantages"), columns, strict=True))


def show_on_tensorboard(
    callbacks: Iterable[TrainerCallback], table: Mapping[str, Any], *, step: int, limit: int
) -> None:
    """Give tensorboard, which has no tables, up to `limit` episodes of TRL's table of completions as texts.

    The columns of the table are "prompt" and "completion" (messages), "advantages", and "rewards" with "reward".
    """
    columns = (table["prompt"], table["completion"], table["rewards"]["reward"], table["advantages"])
    shown = list(zip(*columns, strict=True))[:limit]
    for callback in callbacks:
        if shown and isinstance(callback, TensorBoardCallback) and callback.tb_writer is not None:
            callback.tb_writer.add_text("episodes", "\n\n".join(_markdown(*row) for row in shown), step)
            callback.tb_writer.flush()


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
