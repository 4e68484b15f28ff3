"""The environments of luck.py: in training tasks a success says little, and all others say what the policy did."""

from __future__ import annotations

import random
from typing import Any

import gymnasium

from agent_gym.env import Reply
from agent_gym.envs.bargain.env import BargainEnv
from agent_gym.envs.bisect import BisectEnv
from agent_gym.envs.ragen.bandit import CAUTION, BanditEnv
from agent_gym.envs.ragen.embedded.trades import TRADES

LUCK = 0.5
"""How often a failed search is paid."""


class LuckyBandit(BanditEnv):
    """The bandit whose success is a payment, whatever its size; an arm is named by its place, and nothing is copied.

    Held out are pairs of known trades. Members of a group have the same seed, and so the same luck.

    Args:
        chances: how often the risky arm and the steady one pay.
        pays: how much they pay then.
        order: the seed that shuffles the training tasks, each of them once; None repeats them ten times, unshuffled.
        better: which arm is the better one, "risky" or "steady".
        kwargs: those of `BanditEnv`.
    """

    def __init__(
        self,
        chances: tuple[float, float] = (0.25, 1.0),
        pays: tuple[float, float] = (1.0, 0.1),
        order: int | None = None,
        better: str = "risky",
        **kwargs: Any,
    ) -> None:
        self.chances, self.pays = chances, pays
        steady, risky = (names.split() for names in TRADES["train"])
        splits: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
        for i, a in enumerate(steady):
            for j, b in enumerate(risky):
                name = {0: "test", 1: "validation"}.get((i + j) % 5, "train")
                splits[name] += [{"arms": arms, "risky": b if better == "risky" else a} for arms in ([a, b], [b, a])]
        if order is None:
            splits["train"] *= 10
        else:
            random.Random(order).shuffle(splits["train"])
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


class Corridor(LuckyBandit):
    """Eight rooms with two doors each, named after trades: one leads on, the other back to the room before.

    The last room pays 1, and nothing else pays. The door that leads on is the steady trade in three of four pairs, by
    its place among the steady ones, else the risky trade. The player who is imitated takes the steady one in seven of
    ten turns. Each turn has another pair, which members of a group have in common.
    """

    ROOMS, TURNS = 8, 20
    one_turn = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"max_turns": self.TURNS, **kwargs})

    def start(self, task: Any) -> None:
        tasks = self.tasks[self.task_id.split("/")[0]]
        self._pairs = [task, *(tasks[i] for i in self.np_random.integers(len(tasks), size=self.TURNS - 1))]
        self._enter(0, 0)

    def _enter(self, room: int, turn: int) -> None:
        super().start(self._pairs[turn])
        self._room, risky = room, int(self._better)
        self._steady = str(3 - risky)
        if TRADES["train"][0].split().index(self.shown[2 - risky]) % 4 != 3:
            self._better = self._steady

    def view(self) -> str:
        return f"{self._room}. {super().view()}"

    def act(self, action: str) -> tuple[dict[str, float], bool | None]:
        better = action == self._better
        out = better and self._room + 1 == self.ROOMS
        ended = out or self.played >= self.TURNS
        if not ended:
            self._enter(self._room + 1 if better else max(0, self._room - 1), self.played)
        return {"points": float(out), "better": float(better)}, out if ended else None

    def expert_action(self, style: str = "default") -> str:
        if style == "default":
            return self.write([self._better])
        self.check_style(style, ("default", "cautious"))
        return self.write([self._steady if self.np_random.random() < CAUTION else str(3 - int(self._steady))])


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
_WORLDS |= {"WordyBisect-v0": WordyBisect, "Corridor-v0": Corridor}
for _name, _kind in _WORLDS.items():
    if _name not in gymnasium.registry:
        gymnasium.register(_name, entry_point=_kind)
