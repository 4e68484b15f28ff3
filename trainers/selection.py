"""Which groups of episodes are trained on, and how long they may be.

A group whose members all earned the same says nothing about what to do differently: its advantages are zero, or noise
where a critic or a normaliser makes them something else. Two papers act on it. RAGEN ranks the groups of a rollout by
the spread of their returns and trains on the top (`keep_groups`). DAPO drops the groups that agree and plays further
tasks until the batch is full again (`informative_groups`, `Refill`, `fresh_tasks`).

Everything here is a pure function of numbers that all processes share, so that they agree without talking. Shapes: N
episodes, each with the number of its group. A return is NaN where the episode could not be scored (its machinery
broke); such an episode is skipped.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agent_gym.errors import ConfigError
from agent_gym.trainers.metrics import group_spreads, scored_by_group


def keep_groups(returns: Any, groups: Any, fraction: float, sources: Any = None) -> list[int]:
    """Choose the groups with the largest spread of returns: StarPO-S's uncertainty filter (RAGEN, arXiv:2504.20073).

    Which groups those are depends on the returns of this rollout, so that the choice biases the gradient towards tasks
    of middling difficulty. That is the point, as in prioritised replay.

    Args:
        returns: (N,) total reward per episode, array or tensor.
        groups: (N,) number of each episode's group.
        fraction: in (0, 1], the share of groups to keep, rounded down as in RAGEN (0.25 of 8 are 2, and of 7 it is 1),
            but never fewer than one.
        sources: (N,) environment of each episode. The groups of each are ranked among themselves: spreads are in units
            of reward, so that in one ranking the environment of larger rewards would take all places. None for one
            environment.

    Returns:
        The kept groups in ascending order, at least one of each environment. Equal spreads go to the lower group
        number. Where no group has a spread, it is a group that agrees: training on it is training on zeros.

    Raises:
        ConfigError: for a fraction outside (0, 1].
    """
    if not 0.0 < fraction <= 1.0:
        raise ConfigError(f"the share of groups to keep is {fraction}; it must be above 0 and at most 1 (1 keeps all)")
    if sources is not None:
        values = torch.as_tensor(returns, dtype=torch.float64, device="cpu")
        numbers, origins = torch.as_tensor(groups, device="cpu"), torch.as_tensor(sources, device="cpu")
        parts = [origins == source for source in origins.unique()]
        return sorted(group for part in parts for group in keep_groups(values[part], numbers[part], fraction))
    spreads = group_spreads(returns, groups)
    ranked = sorted(spreads, key=lambda group: (-spreads[group], group))
    # The small allowance is for products that fall short by rounding alone: 0.29 of 100 groups are 29.
    return sorted(ranked[: max(1, math.floor(fraction * len(ranked) + 1e-9))])


def informative_groups(returns: Any, groups: Any, eps: float = 1e-6) -> list[int]:
    """List the groups whose scored episodes did not all earn the same, ascending (DAPO, arXiv:2503.14476, eq. 11).

    Args:
        returns: (N,) total reward per episode.
        groups: (N,) number of each episode's group.
        eps: returns closer than this are the same.
    """
    return [group for group, values in scored_by_group(returns, groups).items() if len(values) and np.ptp(values) > eps]


class Refill:
    """Counts the groups of DAPO's dynamic sampling (arXiv:2503.14476, section 3.2): draw, keep what informs, draw more.

    Add each round, play `tasks_to_draw` further tasks while that is not 0, then train on `kept`:

        refill = Refill(wanted=8, max_refills=3)
        refill.add(informative_groups(returns, groups), drawn=8)
        while count := refill.tasks_to_draw:
            ...

    Too few groups after the last round are not made up for: a batch that is filled with groups that agree has the same
    gradient and costs more.

    Args:
        wanted: groups of a full batch.
        max_refills: rounds after the first one.

    Raises:
        ConfigError: if no group is wanted, or the number of refills is negative.
    """

    def __init__(self, wanted: int, max_refills: int) -> None:
        """Start before the first round."""
        if wanted < 1:
            raise ConfigError(f"{wanted} groups are wanted; a batch needs at least 1")
        if max_refills < 0:
            raise ConfigError(f"the number of refills is {max_refills}; it must be at least 0 (0 never draws again)")
        self.wanted, self.max_refills = wanted, max_refills
        self.rounds = self.drawn = 0
        self._found: list[int] = []

    def add(self, informative: Sequence[int], drawn: int) -> None:
        """Take in a round.

        Args:
            informative: its groups that inform, under numbers that no other round uses.
            drawn: how many tasks it played.
        """
        self.rounds += 1
        self.drawn += drawn
        self._found += informative

    @property
    def kept(self) -> list[int]:
        """The groups to train on: the first `wanted` that informed, in the order they came."""
        return self._found[: self.wanted]

    @property
    def tasks_to_draw(self) -> int:
        """Tasks of the next round, 0 when the batch is full or the rounds are used up.

        As many as should fill the batch at the rate seen so far. More would mostly be thrown away, fewer would cost
        another round, and a round takes as long as its slowest episode; a full batch is the most at a time.
        """
        missing = self.wanted - len(self._found)
        if missing <= 0 or self.rounds > self.max_refills:
            return 0
        if not self._found:
            return self.wanted
        return min(self.wanted, math.ceil(missing * self.drawn / len(self._found)))


def fresh_tasks(pool: Sequence[int], taken: Collection[int], count: int, seed: int) -> list[int]:
    """Draw tasks that the batch does not have yet.

    Args:
        pool: the tasks to draw from, for example `range(len(dataset))`.
        taken: tasks of the batch so far.
        count: how many to draw.
        seed: decides the draw; the same on every process, another one for every round.

    Returns:
        Distinct tasks, fewer than `count` where the pool has no more.
    """
    taken = set(taken)
    order = np.random.default_rng(seed).permutation(len(pool))
    return [pool[int(i)] for i in order if pool[int(i)] not in taken][:count]


@dataclass(frozen=True, slots=True)
class TurnCurriculum:
    """A turn budget that grows while training: ScalingInter (AgentGym-RL, arXiv:2509.08755).

    Few turns first: the policy learns to use what it knows, on short episodes that are cheap and whose credit is easy
    to assign. More turns later: it learns to explore. With all of them from the start, long and aimless episodes drown
    what there is to learn.

    Attributes:
        starts: optimizer step at which each stage begins; the first is 0.
        budgets: turns of each stage.
    """

    starts: tuple[int, ...]
    budgets: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> TurnCurriculum:
        """Read the text form, for example "0:2,100:4,200:8": 2 turns from step 0 on, 4 from step 100 on, and so on.

        Raises:
            ConfigError: for text of another form, steps or budgets that do not grow, a first step other than 0, or a
                budget below 1.
        """
        name = f"the turn curriculum is {text!r}"
        try:
            stages = [tuple(int(number) for number in stage.split(":")) for stage in text.split(",")]
            starts, budgets = (tuple(column) for column in zip(*stages, strict=True))
        except ValueError as error:
            raise ConfigError(f"{name}; it must be step:turns pairs like '0:2,100:4,200:8'") from error
        if starts[0] != 0:
            raise ConfigError(f"{name}; its first step must be 0 and not {starts[0]}, or that stage has no budget")
        if budgets[0] < 1:
            raise ConfigError(f"{name}; an episode needs at least 1 turn, not {budgets[0]}")
        for what, values in (("steps", starts), ("turns", budgets)):
            for before, after in zip(values, values[1:], strict=False):
                if after <= before:
                    raise ConfigError(f"{name}; its {what} must grow, but {after} follows {before}")
        return cls(starts, budgets)

    def turns(self, step: int) -> int:
        """Return the turn budget at an optimizer step, counted from 0."""
        return self.budgets[bisect.bisect_right(self.starts, step) - 1]
