"""Means over the episodes of a rollout, and the metrics of an evaluation."""

from __future__ import annotations

import re
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from agent_gym.distributed import gather, gather_items
from agent_gym.evaluate.prompts import prompt_of
from agent_gym.evaluate.statistics import share
from agent_gym.reply import sum_by_name
from agent_gym.rollout import Episode
from agent_gym.rollout.episode import call_seconds, episode_values
from agent_gym.trainers.hook import Hook, RolloutBatch
from agent_gym.trainers.schedule import without_greedy


class MeanMetrics(Hook):
    """Logs the rewards of the sampler's tasks, and the means over all episodes of a rollout."""

    def after_select(self, rollout: RolloutBatch) -> None:
        size = self.trainer.num_generations
        self.trainer.record(reward_metrics(rollout.returns, rollout.source_of, rollout.played, size))

    def after_log(self, rollout: RolloutBatch) -> None:
        self.trainer.record({"rollout/groups_kept": len(rollout.groups) / len(rollout.returns)})
        self.trainer.record(mean_metrics(without_greedy(rollout.episodes)))


def eval_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Success over all ranks with its 95% interval over distinct prompts, mean reward, and counts."""
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


def reward_metrics(
    returns: Mapping[int, Sequence[float]], source_of: Mapping[int, int], played: int, group_size: int
) -> dict[str, float]:
    """Mean reward of the scored episodes, spread within groups, and the share of the `played` episodes that failed.

    `returns` holds the rewards of each group of `group_size` episodes, `source_of` its environment.
    """
    scored = [value for values in returns.values() for value in values]
    compared = {group: [*values] for group, values in returns.items()}
    if group_size == 1:
        # A group of one has no spread. The spread within its environment shows whether there is anything to learn.
        compared = {source: [] for source in source_of.values()}
        for group, values in returns.items():
            compared[source_of[group]] += values
    spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in compared.values()]
    return {
        "reward": sum(scored) / max(1, len(scored)),
        "reward_std": sum(spreads) / len(spreads),
        "frac_reward_zero_std": sum(spread < 1e-6 for spread in spreads) / len(spreads),
        "rollout/failed": 1 - len(scored) / played,
    }


def mean_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Average the numbers of the episodes of all ranks (`episode_values`); episodes with a failure are left out.

    `tool/<name>/latency` is a mean over calls, in seconds. If several environments were played, the means of each
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
        # A name that an episode lacks (no call of a tool, no term of a reward) counts as 0 and not as unknown.
        totals = sum_by_name(done)
        for name, total in totals.items():
            tool = re.fullmatch("(tool/.*/)latency", name)
            mean = total / (totals[tool[1] + "calls"] if tool else len(done))
            means[f"{env_id}/{name}" if env_id else name] = mean
    means.pop("reward", None)  # the trainer logs the reward of the sampler's tasks
    return means


def attach(trainer: Any) -> None:
    """Attach always, as the first hook: no other may have replaced a group before its rewards are logged."""
    trainer.callback_handler.callbacks.insert(0, MeanMetrics())
