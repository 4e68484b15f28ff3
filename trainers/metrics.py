"""What a run writes down of its episodes: numbers averaged over processes, trajectory files, tables of completions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from agent_gym.errors import RolloutError
from agent_gym.evaluate import episode_metrics, wilson_interval
from agent_gym.rollout import Episode, check_failures, to_record, write_trajectories

TokenCredit = Mapping[str, Sequence[float]]
"""What is known of the sampled tokens of an episode, one number each: "advantages", and with a critic "values"."""

_MIX = np.uint64(0x9E3779B97F4A7C15)  # an odd number without pattern: 2^64 / golden ratio (Knuth, TAOCP 6.4)


def check_failures_everywhere(episodes: Sequence[Episode]) -> None:
    """Stop all processes if every episode of all of them failed; all of them come here, each with its episodes.

    One process whose few episodes all failed says little: those of the others are trained on, as one process would.

    Raises:
        RolloutError: in every process, with the failure of the first episode.
    """
    failures = gather_object([episode.failure for episode in episodes])
    if all(failures):
        check_failures(failures)


def mean_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Average `episode_metrics` over the episodes of all processes; failed ones are left out.

    Where several environments were played, the means of each follow as `<environment id>/<name>`, with its reward.
    """
    done = [episode for episode in episodes if not episode.failure]
    mine = {"": (episode_metrics(done), len(done))}
    for env_id, part in by_env(done).items():
        reward = {"reward": sum(episode.reward for episode in part) / len(part)}
        mine[env_id] = (episode_metrics(part) | reward, len(part))
    everyone, played = gather_object([mine]), gather_object([list(by_env(episodes))])
    means = merge_means([part[""] for part in everyone])
    env_ids = sorted({env_id for ids in played for env_id in ids})
    for env_id in env_ids if len(env_ids) > 1 else ():
        parts = [part[env_id] for part in everyone if env_id in part]
        if parts:  # all of its episodes may have failed
            means |= {f"{env_id}/{name}": value for name, value in merge_means(parts).items()}
    return means


def merge_means(parts: Sequence[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """Combine the `episode_metrics` of several sets of episodes into those of all.

    Args:
        parts: the metrics of a set and its number of episodes.
    """
    episodes = sum(n for _, n in parts)
    totals: dict[str, float] = defaultdict(float)
    calls: dict[str, float] = defaultdict(float)
    for metrics, n in parts:
        for name, value in metrics.items():
            if name.endswith("/latency"):  # a mean over calls and not over episodes
                n_calls = metrics[name.removesuffix("latency") + "calls"] * n
                calls[name] += n_calls
                totals[name] += value * n_calls
            else:
                totals[name] += value * n
    # A set without a name has nothing of it (no call of a tool, no term of a reward), which is 0 and not unknown.
    return {name: total / (calls[name] if name in calls else episodes) for name, total in totals.items()}


def eval_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Success over all processes with its 95% interval, mean reward, counts, and `mean_metrics`."""
    done = [episode for episode in episodes if not episode.failure]
    mine = (sum(e.success for e in done), sum(e.reward for e in done), len(done), len(episodes))
    wins, reward, n, tried = (sum(column) for column in zip(*gather_object([mine]), strict=True))
    low, high = wilson_interval(int(wins), int(n))
    return {
        "success": wins / max(1, n),
        "success_low": low,
        "success_high": high,
        "reward": reward / max(1, n),
        "episodes": n,
        "failed": tried - n,
        **mean_metrics(episodes),
    }


def staleness(episodes: Sequence[Episode], step: int) -> dict[str, float]:
    """How old the weights were that sampled the tokens of all processes, in optimizer steps: mean over tokens and most.

    Args:
        episodes: this process's episodes, also failed ones.
        step: the optimizer steps made so far.
    """
    runs = [run for episode in episodes for made in episode.steps for run in made.versions]
    mine = [
        (
            sum((step - version) * count for version, count in runs),
            sum(count for _, count in runs),
            max((step - version for version, _ in runs), default=0),
        )
    ]
    ages, tokens, oldest = zip(*gather_object(mine), strict=True)
    return {"rollout/staleness": sum(ages) / max(1, sum(tokens)), "rollout/staleness_max": max(oldest)}


class RunningMeans:
    """Means and maxima over tokens that are collected piece by piece, and exchanged between processes once.

    A mean of the pieces' means would depend on how the batch was cut, and an exchange per piece costs more than the
    numbers are worth.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._most: dict[str, torch.Tensor] = {}

    def add(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Count the values where the mask is True; both have the same shape."""
        # Selected and not multiplied: what is infinite outside the mask is not 0 x infinity.
        part = torch.stack([torch.where(mask, values.detach(), 0).sum().float(), mask.sum().float()])
        self._sums[name] = self._sums[name] + part if name in self._sums else part

    def largest(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Keep the largest of the values where the mask is True, 0 if all are below; both have the same shape."""
        most = torch.where(mask, values.detach(), 0).max().float()
        self._most[name] = torch.maximum(self._most[name], most) if name in self._most else most

    def pop(self, accelerator: Any) -> dict[str, float]:
        """Return means and maxima over all processes, which must have given the same names, and start anew."""
        if not self._sums:
            return {}
        totals = accelerator.reduce(torch.stack(list(self._sums.values())), reduction="sum").tolist()
        found = {name: total / max(1.0, count) for name, (total, count) in zip(self._sums, totals, strict=True)}
        if self._most:
            parts = accelerator.gather(torch.stack(list(self._most.values()))[None])
            found |= dict(zip(self._most, parts.amax(0).tolist(), strict=True))
        self._sums.clear()
        self._most.clear()
        return found


def by_env(episodes: Iterable[Episode]) -> dict[str, list[Episode]]:
    """Sort episodes by their environment's id, ids in alphabetical order."""
    sorted_in: dict[str, list[Episode]] = {}
    for episode in episodes:
        sorted_in.setdefault(episode.spec.env_id, []).append(episode)
    return dict(sorted(sorted_in.items()))


def group_spreads(returns: Any, groups: Any) -> dict[int, float]:
    """Return the unbiased standard deviation of the returns of each group.

    Args:
        returns: (N,) total reward per episode.
        groups: (N,) number of each episode's group.

    Returns:
        By group number; exactly 0 for groups that agree and for those with fewer than two scored episodes.
    """
    spreads = {}
    for group, values in scored_by_group(returns, groups).items():
        # A mean of equal numbers may differ from them by rounding, and that is no spread.
        agree = len(values) < 2 or values[0] == values[-1]
        spreads[group] = 0.0 if agree else float(np.std(values, ddof=1))
    return spreads


def scored_by_group(returns: Any, groups: Any) -> dict[int, np.ndarray]:
    """Sort the scored returns of each group, so that nothing depends on the order of its members."""
    values = torch.as_tensor(returns, dtype=torch.float64, device="cpu").numpy()
    numbers = torch.as_tensor(groups, device="cpu").numpy()
    scored = ~np.isnan(values)
    return {int(group): np.sort(values[scored & (numbers == group)]) for group in np.unique(numbers)}


def repeated_share(sequences: Sequence[Sequence[int]], n: int = 4) -> float:
    """Return the share of n-grams that occurred before: 1 - distinct-n (Li et al., 2016, arXiv:1510.03055).

    It grows with the number of tokens even where the text does not change, so that only rollouts of the same size are
    comparable.

    Args:
        sequences: sampled token ids, one sequence per turn: n-grams must not reach over the world's words.
        n: length of the n-grams.

    Returns:
        In [0, 1); 0 where no sequence has n tokens.
    """
    # Hashes of 64 bits, because a rollout may have millions of n-grams, and a set of as many tuples takes a gigabyte.
    hashes = [np.zeros(0, dtype=np.uint64)]
    for tokens in sequences:
        ids = np.asarray(tokens, dtype=np.uint64) + np.uint64(1)
        found = np.zeros(max(0, len(ids) - n + 1), dtype=np.uint64)
        for i in range(n):
            found = (found + ids[i : i + len(found)]) * _MIX  # modulo 2^64
            found ^= found >> np.uint64(29)
        hashes.append(found)
    grams = np.concatenate(hashes)
    return 1 - len(np.unique(grams)) / len(grams) if len(grams) else 0.0


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
