"""What a run records: means of its episodes, evaluations, trajectory files, completions as tables, the device's use."""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from agent_gym.evaluate.prompts import prompt_of
from agent_gym.evaluate.statistics import share
from agent_gym.policies.ranks import gather, gather_items
from agent_gym.rollout import Episode, to_record, write_trajectories
from agent_gym.rollout.episode import call_seconds, episode_values, sum_by_name
from agent_gym.transcript import kind_of

TokenCredit = Mapping[str, Sequence[float]]
"""What is known of the sampled tokens of an episode, one number each: "advantages", and with a critic "values"."""

REPEATED_TOKENS = 1 << 18
"""Sampled tokens of a process in which repetition is looked for: millions would hold up the update by seconds."""

PEAK = {
    "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "GH200": 989e12, "B200": 2250e12,
    "A100": 312e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "RTX 4090": 165e12,
}  # fmt: skip
"""Operations per second in bf16 without sparsity, from NVIDIA's data sheets; the first that a GPU's name contains."""


def eval_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Success over all processes with its 95% interval over distinct prompts, mean reward, and counts."""
    done = [episode for episode in episodes if not episode.failure]
    mine = (sum(e.success for e in done), sum(e.reward for e in done), len(done), len(episodes))
    wins, reward, n, played = (sum(column) for column in zip(*gather(mine), strict=True))
    prompts: dict[Hashable, list[bool]] = {}
    for prompt, won in gather_items([(prompt_of(episode), episode.success) for episode in done]):
        prompts.setdefault(prompt, []).append(won)
    found = share([sum(won) for won in prompts.values()], [*map(len, prompts.values())], n) if n else None
    return {
        "success": wins / max(1, n),
        "success_low": found.low or 0.0 if found else 0.0,
        "success_high": found.high or 0.0 if found else 1.0,
        "reward": reward / max(1, n),
        "episodes": n,
        "failed": played - n,
    }


def mean_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Average the numbers of the episodes of all processes (`episode_values`); failed ones are left out.

    `tool/<name>/latency` is a mean over calls, in seconds. Where several environments were played, the means of each
    follow as `<environment id>/<name>`, with its reward.
    """
    mine: list[tuple[str, dict[str, float] | None]] = []
    for episode in episodes:
        latency = {f"tool/{name}/latency": seconds for name, seconds in call_seconds(episode).items()}
        values = {"reward": episode.reward, **episode_values(episode), **latency}
        mine.append((episode.spec.env_id, None if episode.failure else values))
    played = gather_items(mine)
    env_ids = sorted({env_id for env_id, _ in played})
    means = {}
    for env_id in ["", *(env_ids if len(env_ids) > 1 else ())]:
        done = [values for of, values in played if values is not None and env_id in ("", of)]
        # A name that an episode lacks (no call of a tool, no term of a reward) is 0 there and not unknown.
        totals = sum_by_name(done)
        for name, total in totals.items():
            tool = re.fullmatch("(tool/.*/)latency", name)
            mean = total / (totals[tool[1] + "calls"] if tool else len(done))
            means[f"{env_id}/{name}" if env_id else name] = mean
    means.pop("reward", None)  # the trainer logs that of the sampler's tasks
    return means


def first_turns(episodes: Sequence[Episode]) -> Iterator[list[int]]:
    """Yield the sampled ids of the first turns, as many as show whether the policy repeats itself."""
    left = REPEATED_TOKENS
    for episode in episodes:
        for row in episode.rows:
            for start, stop, source, _ in row.spans:
                if kind_of(source) == "agent" and left > 0:
                    yield row.token_ids[start:stop]
                    left -= stop - start


def repeated_share(sequences: Iterable[Sequence[int]], n: int = 4) -> float:
    """Return the share of n-grams that occurred before: 1 - distinct-n (Li et al., 2016, arXiv:1510.03055).

    N-grams do not reach over the environment's words: there is one sequence of sampled ids per turn. The share grows
    with the number of tokens, so that only rollouts of the same size are comparable; 0 where no sequence has n tokens.
    """
    # Hashes of 64 bits, because a rollout may have millions of n-grams, and a set of as many tuples takes a gigabyte.
    factors = np.random.default_rng(0).integers(2**63, size=n, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    windows = [sliding_window_view(np.array(ids, dtype=np.uint64), n) for ids in sequences if len(ids) >= n]
    grams = np.concatenate([window @ factors for window in windows]) if windows else ()  # modulo 2^64
    return 1 - len(np.unique(grams)) / len(grams) if len(grams) else 0.0


def write_episodes(
    trainer: Any, kind: str, episodes: Sequence[Episode], credit: Sequence[TokenCredit | None] | None = None
) -> None:
    """Write episodes as the trajectory file `kind` of a trainer's present step, or warn that the disk took none.

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
        warnings.warn(f"{path} was not written, and training continues: {error}. Make room", stacklevel=2)


def over_rows(episode: Episode, per_token: Sequence[float]) -> list[list[float]]:
    """Lay one number per token of the policy, in the order of its turns, over the rows of an episode, 0 elsewhere."""
    numbers = iter(per_token)
    rows = [[0.0] * len(row.token_ids) for row in episode.rows]
    turns = ((span, row) for found, row in zip(episode.rows, rows, strict=True) for span in found.spans)
    # A row that was left for another may go on later, so that its turns are not one behind the other.
    for span, row in sorted(turns, key=lambda turn: turn[0].step):
        if kind_of(span.source) == "agent":
            for place in range(span.start, span.stop):
                row[place] = next(numbers)
    return rows


def completion_table(episodes: Sequence[Episode], credit: Sequence[TokenCredit | None]) -> dict[str, list[Any]]:
    """Return the columns of TRL's table of completions over all processes.

    A prompt is everything before the policy's first word, a completion everything from there on, and the advantage is
    the mean over the sampled tokens, 0 where the episode was not trained on.
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


def peak_of(device: torch.device) -> float | None:
    """Return how many operations per second a device promises in bf16; None where that is not known."""
    if device.type != "cuda":
        return None
    found = torch.cuda.get_device_name(device)
    return next((value for name, value in PEAK.items() if re.search(rf"\b{name}\b", found)), None)


class UpdateMeter:
    """Counts the tokens that this process computes with a gradient, for the share of its device that it uses (MFU).

        operations that the model needs / (seconds of the update * operations per second of the device)

    It needs 6 operations per parameter and token (Kaplan et al., arXiv:2001.08361, section 2.1): 2 in the forward pass,
    2 for the gradient of what a layer was given, and 2 for that of its weights, which frozen ones do not have. What is
    computed twice (checkpointed activations) counts once, and attention to other tokens not at all (PaLM,
    arXiv:2204.02311, appendix B, has it on top): for long rows the true share is higher.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self._peak, self._tokens = peak_of(device), 0
        self._per_token = 0  # operations
        for parameter in model.parameters():
            # ZeRO-3 leaves an empty tensor where a parameter was.
            size = getattr(parameter, "ds_numel", parameter.numel())
            self._per_token += size * (6 if parameter.requires_grad else 4)

    def count(self, places: torch.Tensor) -> None:
        """Add the tokens of a pass, by where they stand: rows that share a place share its token."""
        if self._peak and torch.is_grad_enabled():
            self._tokens += len(places.unique())

    def take(self, seconds: float) -> dict[str, float]:
        """Return the metrics of an update that took so long, and begin the next; without a known device no MFU."""
        tokens, self._tokens = self._tokens, 0
        mfu = {} if self._peak is None else {"perf/mfu": self._per_token * tokens / (seconds * self._peak)}
        return {"time/update": seconds, **mfu}
