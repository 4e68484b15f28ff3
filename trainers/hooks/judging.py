"""A judge whose score is added to the rewards: the checks of its settings, and the log of its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from agent_gym.distributed import gather
from agent_gym.errors import ConfigError
from agent_gym.judges import Judge
from agent_gym.judges.ledger import COUNTS
from agent_gym.rollout import Episode
from agent_gym.trainers.hook import Hook
from agent_gym.trainers.unread import check_judged


class JudgeCosts(Hook):
    """Logs the cost of judging since the last rollout over all processes, and adds this process's part to the costs."""

    def __init__(self, judge: Judge) -> None:
        self._judge, self._before = judge, Counter[str]()

    def after_episodes(self, episodes: Sequence[Episode]) -> None:
        total = self._judge.spent()
        mine, self._before = total - self._before, total
        self.trainer.spent.update({f"judge_{name}": mine[name] for name in COUNTS})
        spent = sum(gather(mine), Counter[str]())
        self.trainer.record({f"judge/{name}": spent[name] for name in COUNTS})


def check_judge(judge: Judge, args: Any) -> None:
    """Check the judge against the settings, and connect to its server.

    Raises `ConfigError` if the server does not answer, if the estimator would not read the scores, or if the judge
    compares episodes that no process has together.
    """
    check_judged(args)
    if judge.kind.compares:
        if args.num_generations < 2:
            raise ConfigError("the judge compares episodes of a task: num_generations must be 2 or more")
        # Above staleness 0 the rounds are absent, and each process plays whole groups.
        share, rest = divmod(args.generation_batch_size, args.world_size)
        if (
            args.world_size > 1
            and not args.max_staleness
            and (rest or share % args.num_generations or args.max_refills)
        ):
            raise ConfigError(
                f"the judge compares the {args.num_generations} episodes of a task in one process, and each of the "
                f"{args.world_size} processes plays {share}: let num_generations divide that, without max_refills"
            )
    judge.connect()


def check_given(args: Any, judge: Judge | None = None, **_: Any) -> None:
    """Check the judge that a trainer was given."""
    if judge is not None:
        check_judge(judge, args)


def attach(trainer: Any) -> None:
    """Attach with a `judge`."""
    if trainer.judge is not None:
        trainer.add_callback(JudgeCosts(trainer.judge))
