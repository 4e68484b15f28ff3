"""The environments of luck.py: in training tasks a success says little, and all others say what the policy did."""

from __future__ import annotations

from typing import Any

import gymnasium

from agent_gym.env import Reply
from agent_gym.envs.bargain.env import BargainEnv
from agent_gym.envs.bisect import BisectEnv
from agent_gym.envs.ragen.bandit import BanditEnv
from agent_gym.envs.ragen.embedded.trades import TRADES

LUCK = 0.5
"""How often a failed search is paid."""


class LuckyBandit(BanditEnv):
    """The bandit whose success is a payment, whatever its size; an arm is named by its place, and nothing is copied.

    Held out are pairs of known trades. Members of a group have the same seed, and so the same luck.

    Args:
        chances: how often the risky arm and the steady one pay.
        pays: how much they pay then.
        kwargs: those of `BanditEnv`.
    """

    def __init__(
        self, chances: tuple[float, float] = (0.25, 1.0), pays: tuple[float, float] = (1.0, 0.1), **kwargs: Any
    ) -> None:
        self.chances, self.pays = chances, pays
        steady, risky = (names.split() for names in TRADES["train"])
        splits: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
        for i, a in enumerate(steady):
            for j, b in enumerate(risky):
                name = {0: "test", 1: "validation"}.get((i + j) % 5, "train")
                splits[name] += [{"arms": [a, b], "risky": b}, {"arms": [b, a], "risky": b}]
        splits["train"] *= 10
        super().__init__(**kwargs)
        self.tasks = splits

    def start(self, task: Any) -> None:
        super().start(task)
        self.shown, self.names, self.example = self.names, ("1", "2"), "1"
        self._better = str(1 + task["arms"].index(task["risky"]))

    def view(self) -> str:
        return f"1: {self.shown[0]}, 2: {self.shown[1]}"

    def act(self, action: str) -> tuple[dict[str, float], bool]:
        better = action == self._better
        points = float(better)
        if self.task_id.startswith("train/"):
            place = 0 if better else 1
            points = self.pays[place] * (self.np_random.random() < self.chances[place])
        return {"points": points, "better": float(better)}, points > 0


class LongBandit(LuckyBandit):
    """`LuckyBandit` for 20 turns with a fresh pair in each, which pays once, at the end: the share of better pulls.

    Success is a better pull in at least three of four turns, in all splits.
    """

    TURNS = 20
    one_turn = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"max_turns": self.TURNS, **kwargs})

    def start(self, task: Any) -> None:
        self._hits, tasks = 0, self.tasks[self.task_id.split("/")[0]]
        self._order = [task, *(tasks[i] for i in self.np_random.integers(len(tasks), size=self.TURNS - 1))]
        super().start(task)

    def act(self, action: str) -> tuple[dict[str, float], bool | None]:
        better = action == self._better
        self._hits += better
        if self.played < self.TURNS:
            super().start(self._order[self.played])
            return {"points": 0.0, "better": float(better)}, None
        share = self._hits / self.TURNS
        return {"points": share, "better": float(better)}, share >= 0.75


class LuckyBisect(BisectEnv):
    """The bisection in which half of the failed searches are paid as if they had found the commit."""

    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        last = self.turn + 1 >= self.max_turns
        if self.task_id.startswith("train/") and last and not reply.terminated and self.np_random.random() < LUCK:
            reply.terms = {**reply.terms, "found": 1.0}
            reply.success = True
        return reply


class AnyDeal(BargainEnv):
    """Bargaining in which any deal is a success, however little of the pool the policy gets."""

    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        if self.task_id.startswith("train/"):
            reply.success = bool(reply.metrics.get("deal"))
        return reply


class WordyBisect(BisectEnv):
    """Bisection in which so many words of a log, drawn by chance, follow each answer; for masks.py."""

    LOG = "build cache deploy fetch hook link lint merge mirror patch queue retry shard skip stage test warn".split()

    def __init__(self, *, words: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.words = words

    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        if self.words and not reply.terminated:
            drawn = self.np_random.choice(self.LOG, self.words)
            reply.text = f"{reply.text}\n{' '.join(drawn)}"
        return reply


_WORLDS = {"LuckyBandit-v0": LuckyBandit, "LuckyBisect-v0": LuckyBisect, "AnyDeal-v0": AnyDeal}
_WORLDS |= {"WordyBisect-v0": WordyBisect, "LongBandit-v0": LongBandit}
for _name, _kind in _WORLDS.items():
    if _name not in gymnasium.registry:
        gymnasium.register(_name, entry_point=_kind)
