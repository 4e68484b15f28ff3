"""The records that a run keeps of its episodes: trajectory files, and TRL's table of completions."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from agent_gym.distributed import exchange, gather, gather_items
from agent_gym.errors import AgentGymError
from agent_gym.rollout import Episode, to_record, write_trajectories
from agent_gym.trainers.hook import Hook, RolloutBatch, TokenCredit
from agent_gym.trainers.schedule import without_greedy
from agent_gym.transcript import kind_of


class Records(Hook):
    """Writes trajectory files (`trajectories_per_step`) and fills the table of completions (`log_completions`)."""

    def after_log(self, rollout: RolloutBatch) -> None:
        trainer, limit = self.trainer, self.trainer.args.trajectories_per_step
        episodes = without_greedy(rollout.episodes)
        shown = episodes if trainer.log_completions else episodes[:limit]
        # Another process may train on an episode of this process, and then that process has the credit.
        wanted = [trainer.number_of(e) if trainer.is_trained(e) else None for e in shown]
        credit = rollout.credit
        answers = exchange([{n: credit[n] for n in asked if n in credit} for asked in gather(wanted)])
        known = {number: found for answer in answers for number, found in answer.items()}
        found = [known.get(number) if number is not None else None for number in wanted]
        if limit:
            write_episodes(trainer, "train", shown[:limit], found[:limit])
        if trainer.log_completions:
            for column, values in completion_table(shown, found).items():
                target = trainer._logs["rewards"]["reward"] if column == "reward" else trainer._logs[column]
                target.extend(values)

    def after_evaluation(self, prefix: str, episodes: Sequence[Episode], seconds: Mapping[str, float]) -> None:
        if self.trainer.args.trajectories_per_step and episodes:
            write_episodes(self.trainer, prefix, episodes)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        trainer = self.trainer  # only the log of a step has "loss"; that of an evaluation or the whole run does not
        if "loss" in logs and trainer.log_completions and trainer.accelerator.is_main_process:
            callbacks, limit = trainer.callback_handler.callbacks, args.trajectories_per_step
            show_on_tensorboard(callbacks, trainer._logs, step=state.global_step, limit=limit)


def write_episodes(
    trainer: Any, kind: str, episodes: Sequence[Episode], credit: Sequence[TokenCredit | None] | None = None
) -> None:
    """Write episodes as the trajectory file `kind` of a trainer's present step, or warn if the disk refused the file.

    `credit` of an episode is None if it was not trained on. The viewer colours the policy's tokens by the credit.
    """
    step = trainer.state.global_step
    name = f"{kind}_{step:06d}_{trainer.accelerator.process_index}"
    if trainer._micro_step:  # a later rollout of the same optimizer step
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
    except AgentGymError as error:
        warnings.warn(f"{path} was not written, and training continues: {error}", stacklevel=2)


def over_rows(episode: Episode, per_token: Sequence[float]) -> list[list[float]]:
    """Lay one number per token of the policy, in the order of its turns, over the rows of an episode, 0 elsewhere."""
    numbers = iter(per_token)
    rows = [[0.0] * len(row.token_ids) for row in episode.rows]
    turns = ((span, row) for found, row in zip(episode.rows, rows, strict=True) for span in found.spans)
    # The turns of a row need not follow one another: an episode may leave a row for another and come back to it later.
    for span, row in sorted(turns, key=lambda turn: turn[0].step):
        if kind_of(span.source) == "agent":
            for place in range(span.start, span.stop):
                row[place] = next(numbers)
    return rows


def completion_table(episodes: Sequence[Episode], credit: Sequence[TokenCredit | None]) -> dict[str, list[Any]]:
    """Return the columns of TRL's table of completions over all processes.

    A prompt holds the messages before the policy's first turn, and a completion holds the rest. The advantage is the
    mean over the sampled tokens; it is 0 if the episode was not trained on.
    """
    rows = []
    for episode, known in zip(episodes, credit, strict=True):
        first = len(episode.initial_messages)
        found = known["advantages"] if known else ()
        advantage = sum(found) / len(found) if found else 0.0
        rows.append((episode.messages[:first], episode.messages[first:], episode.reward, advantage))
    columns = (list(column) for column in zip(*gather_items(rows), strict=True))
    return dict(zip(("prompt", "completion", "reward", "advantages"), columns, strict=True))


def show_on_tensorboard(
    callbacks: Iterable[TrainerCallback], table: Mapping[str, Any], *, step: int, limit: int
) -> None:
    """Write up to `limit` episodes of TRL's table of completions to tensorboard as texts, as it has no tables.

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
        # The fence is longer than any fence in the text, which would otherwise end the block and format the rest.
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", content)), default=0))
        parts += [f"**{message['role']}**", f"{fence}\n{content}\n{fence}"]
    return "\n\n".join(parts)


def attach(trainer: Any) -> None:
    """Attach always: the settings may be set later."""
    trainer.add_callback(Records())
