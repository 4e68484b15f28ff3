"""Deal or no deal: a pool of items to divide, values that the other does not know, offers in turns.

The rules, the tasks, and strategies that are known. The shape is that of Lewis et al., Deal or No Deal
(arXiv:1706.05125): some items of each kind, values for each role that make the pool worth 10, nothing without a deal.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, ClassVar

from agent_gym.data import SplitRows
from agent_gym.players import Game
from agent_gym.rewards import after_thought

KINDS = ("book", "hat", "ball", "pen")
TOTAL = 10
"""The value of the whole pool to each role."""
_FIFTHS = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}  # of all pools, by split
_MOST_ITEMS = 10
_TALK = 300  # characters of an action that the other gets to read
_LINE = 200  # characters of a line that may be an action
_ACTION = re.compile(r"(offer)\W{1,3}\d{1,9}(?:\D{1,3}\d{1,9})*|(accept|quit)", re.IGNORECASE)
# A minus belongs to its number; a hyphen after a word or a number, as in 1-0-2, only separates.
_COUNT = re.compile(r"(?:(?<!\w)[-−])?\d+")

Counts = tuple[int, ...]


class Bargain(Game):
    """Two roles make offers in turns until one accepts, one quits, or the turns are used up.

    Args:
        pool: how many items there are of each kind.
        values: of one item of each kind, by role; `TOTAL` for the whole pool.
        rounds: turns of each role. The last one is the second role's, and an offer in it leads nowhere.
    """

    roles: ClassVar[tuple[str, ...]] = ("first", "second")

    def __init__(self, pool: Sequence[int], values: Mapping[str, Sequence[int]], rounds: int) -> None:
        super().__init__()
        self.pool, self.values, self.rounds = tuple(pool), {role: tuple(values[role]) for role in self.roles}, rounds
        self.turn = 0
        self.offer: Counts | None = None  # the take of the role that made it; the other gets the rest
        self.deal: dict[str, Counts] = {}

    def opening(self, role: str) -> str:
        kinds = ", ".join(f"{n} {kind}" for n, kind in zip(self.pool, KINDS, strict=False))
        worth = ", ".join(f"{kind} {value}" for value, kind in zip(self.values[role], KINDS, strict=False))
        return f"The pool: {kinds}.\nOne is worth to you: {worth}.\nYou have {self.rounds} turns and act {role}."

    def act(self, text: str) -> str | None:
        me, complaint = self.role, None
        talk, last = _last_action(after_thought(text))  # nobody hears a thought
        word = (last[1] or last[2]).lower() if last else ""
        self.turn += 1
        if word == "offer" and last is not None:
            complaint = self._propose(tuple(int(one.replace("−", "-")) for one in _COUNT.findall(last[0])), talk)
        elif word == "accept" and self.offer is not None:
            self.deal = {self.other(me): self.offer, me: self.rest(self.offer)}
            self.spoken.append((me, "The other accepts."))
        elif word == "quit":
            self.spoken.append((me, "The other quits."))
        else:
            complaint = "There is no offer to accept." if word else 'End with a line "offer: ...", "accept" or "quit".'
        if not complaint:
            self.role = self.other(me)
        if self.deal or word == "quit" or self.turn >= 2 * self.rounds:
            self.role = ""
            self.success = bool(self.deal) and all(
                self.worth(one, self.deal[one]) >= self.fair[one] for one in self.roles
            )
            self.metrics = {"deal": float(bool(self.deal)), "turns": float(self.turn)}
            self.metrics["welfare"] = sum(self.worth(one, taken) for one, taken in self.deal.items()) / TOTAL
        return complaint

    def _propose(self, wanted: Counts, talk: str) -> str | None:
        if len(wanted) != len(self.pool) or any(not 0 <= n <= most for n, most in zip(wanted, self.pool, strict=True)):
            return f"An offer has {len(self.pool)} numbers, 0 or more and at most {written(self.pool)}."
        self.offer, rest = wanted, self.rest(wanted)
        other = self.other(self.role)
        split = f"The other takes {written(wanted)}. You get {written(rest)}, worth {self.worth(other, rest)}."
        self.spoken.append((self.role, "\n".join(filter(None, [talk.strip()[:_TALK], split]))))
        return None

    def terms(self, role: str) -> dict[str, float]:
        return {"share": self.worth(role, self.deal[role]) / TOTAL if self.deal else 0.0}

    def other(self, role: str) -> str:
        """Return the role that is not this one."""
        return self.roles[1 - self.roles.index(role)]

    def rest(self, taken: Counts) -> Counts:
        """Return the rest of the pool."""
        return tuple(n - m for n, m in zip(self.pool, taken, strict=True))

    def worth(self, role: str, items: Counts) -> int:
        """Return the value of some items to a role."""
        return sum(n * value for n, value in zip(items, self.values[role], strict=True))

    def splits(self) -> Iterator[Counts]:
        """Yield the possible takes of the first role."""
        return itertools.product(*(range(n + 1) for n in self.pool))

    @cached_property
    def nash(self) -> Counts:
        """The first role's take in the division with the largest product of both shares (Nash, 1950)."""
        return max(
            self.splits(),
            key=lambda one: (
                self.worth("first", one) * self.worth("second", self.rest(one)),
                -abs(self.worth("first", one) - self.worth("second", self.rest(one))),
                one,
            ),
        )

    @property
    def fair(self) -> dict[str, int]:
        """Each role's value in the `nash` division."""
        return {"first": self.worth("first", self.nash), "second": self.worth("second", self.rest(self.nash))}

    @property
    def left(self) -> int:
        """How many turns the role that acts has, this one included."""
        return (2 * self.rounds - self.turn + 1) // 2

    @property
    def offered(self) -> int:
        """The value of the current offer to the role that acts, 0 without an offer."""
        return self.worth(self.role, self.rest(self.offer)) if self.offer else 0

    def best(self, role: str, leave: int) -> Counts:
        """Return the largest take of a role that leaves the other a value of `leave` at least."""
        other = self.other(role)
        able = [one for one in self.splits() if self.worth(other, self.rest(one)) >= leave]
        return max(able, key=lambda one: (self.worth(role, one), self.worth(other, self.rest(one)), one))


def _last_action(text: str) -> tuple[str, re.Match[str] | None]:
    """Return the last line that is an action, and the text before it."""
    lines = text.splitlines()
    for n in reversed(range(len(lines))):
        if len(lines[n]) <= _LINE and (found := _ACTION.fullmatch(lines[n].strip(" \t*_`'\".!<>"))):
            return "\n".join(lines[:n]), found
    return text, None


def written(items: Counts) -> str:
    """Write how many of each kind."""
    return " ".join(map(str, items))


# Strategies. They know the values of both.


def greedy(game: Bargain, role: str) -> str:
    """Leave as little as the other would rather have than nothing; take an offer only in the last turn.

    With one round this is the equilibrium of the ultimatum game: the first leaves the least that is worth anything, the
    second accepts whatever is.
    """
    mine = game.best(role, 1)
    last = game.left == 1 and role == "second"
    if game.offer and game.offered >= (1 if last else game.worth(role, mine)):
        return "accept"
    return f"offer: {written(mine)}"


def fair(game: Bargain, role: str) -> str:
    """Ask for all at first and concede, turn by turn, down to the share of Nash's solution.

    A time-dependent tactic of the linear kind (Faratin, Sierra, Jennings, 1998): aims at TOTAL - (TOTAL - fair) k / n
    in turn k = 1..n, takes an offer of that value, and offers the other as much as it leaves.
    """
    aim = TOTAL - (TOTAL - game.fair[role]) * (game.rounds - game.left + 1) / game.rounds
    if game.offer and game.offered >= aim:
        return "accept"
    able = [one for one in game.splits() if game.worth(role, one) >= aim]
    other = game.other(role)
    mine = max(able, key=lambda one: (game.worth(other, game.rest(one)), game.worth(role, one), one))
    return f"offer: {written(mine)}"


def expert(game: Bargain, role: str) -> str:
    """Take an offer worth Nash's share, else offer Nash's division."""
    if game.offer and game.offered >= game.fair[role]:
        return "accept"
    mine = game.nash if role == "first" else game.rest(game.nash)
    return f"offer: {written(mine)}"


class GeneratedDeals(SplitRows):
    """The pools and values of one split, of 2 to 4 `kinds` of items.

    A pool belongs to one split, and with it all that a role reads.
    """

    SIZES = {"train": 20_000, "validation": 500, "test": 500}
    KEY = "deal_key"

    def __init__(self, split: str, kinds: int, size: int | None = None) -> None:
        super().__init__(split, size)
        self.kinds = kinds
        pools = [one for one in itertools.product(range(1, 7), repeat=kinds) if 4 <= sum(one) <= _MOST_ITEMS]
        self._pools = [one for i, one in enumerate(pools) if i % 5 in _FIFTHS[split]]

    def draw(self, index: int, attempt: int) -> dict[str, Any]:
        rng = random.Random(f"bargain/{self.split}/{self.kinds}/{index}/{attempt}")
        while True:
            pool = rng.choice(self._pools)
            ways = _values(pool)
            if len(ways) < 2:
                continue
            first, second = rng.choice(ways), rng.choice(ways)
            # Each kind is worth something to somebody, and something to both (Lewis et al.).
            both = [(a > 0) + (b > 0) for a, b in zip(first, second, strict=True)]
            if min(both) > 0 and max(both) > 1 and first != second:
                break
        values = {"first": list(first), "second": list(second)}
        role = ("first", "second")[index % 2]
        # By the policy's view: tasks that differ in hidden values alone would be one task with two answers.
        return {"deal_key": repr((pool, role, values[role])), "pool": list(pool), "values": values, "role": role}


@cache
def _values(pool: Counts) -> list[Counts]:
    """Return the possible values of one item of each kind, for a pool that is worth `TOTAL`."""
    able = itertools.product(*(range(TOTAL // n + 1) for n in pool))
    return [one for one in able if sum(n * value for n, value in zip(pool, one, strict=True)) == TOTAL]
