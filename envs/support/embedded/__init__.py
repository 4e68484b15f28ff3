"""Invented customers, orders and requests: the tasks of the support desk.

A row has the `person` (name, zip code, mood), the `goals` in the order in which they come up, the `content` of the
database, and in `writes` the calls that bring it into the state that it should have at the end. A goal has the words of
the customer (`request`, `slots`, `asks`, see customer.py), whether the rules allow it, and for the expert the data to
look up (`reads`), the `call` that does it, and the messages `done` and `refused`.

Names of people and numbers belong to one split, and every request names a number or follows one. The sum of a number's
digits decides its split. The last digit did so at first, and a model from random weights that had never seen an order
end in 9 could not copy one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_gym.data import SplitRows
from agent_gym.envs.names import Namer
from agent_gym.errors import whole_number

DAYS = {"standard": 30, "gold": 60}
"""How long after its delivery an item can be returned or exchanged, by membership."""
_WORLDS = {"train": range(80), "validation": range(80, 88), "test": range(88, 96)}
_SUMS = {"train": "01234567", "validation": "8", "test": "9"}
"""The last digit of a number's digit sum, by split."""
_FORBIDDEN = 0.4  # share of the goals that the rules do not allow
_PRODUCTS = (
    "mug", "lamp", "chair", "scarf", "kettle", "clock", "backpack", "blanket", "pillow", "umbrella", "vase", "watch",
    "helmet", "jacket", "teapot", "wallet",
)  # fmt: skip
_VARIANTS = ("red", "blue", "green", "black", "white", "yellow", "grey", "brown")
_REQUESTS: Mapping[str, tuple[str, ...]] = {
    "cancel": ("I want to cancel {what}.", "Please cancel {what}.", "I do not need {what} any more, cancel it."),
    "return": ("I want to return {what}.", "Please take back {what}.", "I do not like {what} and send it back."),
    "exchange": ("I want another colour of {what}: {new}.", "Please exchange {what} for the {new} one."),
    "address": ("Please send {what} to zip code {zip}.", "I moved, {what} has to go to zip code {zip}."),
}
_NOTHING = ("", "", "")  # where a customer asks nothing
_CALLS = {"cancel": "cancel_order", "return": "return_item", "exchange": "exchange_item", "address": "change_zip"}


@dataclass(frozen=True, slots=True)
class Level:
    """The settings of a difficulty."""

    goals: tuple[int, ...]  # how many
    kinds: tuple[str, ...] = ("cancel", "return", "exchange", "address")
    numbered: float = 0.0  # share of the customers who know the numbers of their orders
    asks: bool = True  # whether they ask for an amount, or why something is refused
    members: bool = True  # whether some are gold members, and items are older than 30 days
    orders: int = 3  # of a customer, one for each goal at least
    items: int = 2  # of an order, at most
    fallback: bool = False  # whether they want an item returned that cannot be exchanged
    moods: tuple[str, ...] = ("calm", "chatty", "hurried")


LADDER = (
    Level((1, 2), numbered=0.5),
    Level((1,), ("cancel", "return"), 1.0, asks=False, members=False, orders=1, items=1, moods=("calm",)),
    Level((1,), ("cancel", "return", "address"), 0.5, members=False, orders=2, items=1),
    Level((2,)),
    Level((3,), orders=4, fallback=True),
    Level((4,), orders=6, items=3, fallback=True, moods=("hurried",)),
)
"""The default, then by difficulty."""


class SupportTasks(SplitRows):
    """The tasks of one split, of a difficulty from 1 to 5, or None for a mixture; `ConfigError` for another."""

    SIZES = {"train": 20_000, "validation": 1_000, "test": 1_000}
    KEY = "task_key"

    def __init__(self, split: str, size: int | None = None, difficulty: int | None = None) -> None:
        super().__init__(split, size)
        self.difficulty = 0 if difficulty is None else whole_number("difficulty", difficulty, 1, len(LADDER) - 1)

    def draw(self, index: int, attempt: int) -> dict[str, Any]:
        rng = random.Random(f"support/{self.split}/{self.difficulty}/{index}/{attempt}")
        return _Draft(self.split, LADDER[self.difficulty], rng).row()


class _Draft:
    """One task while it is drawn."""

    def __init__(self, split: str, level: Level, rng: random.Random) -> None:
        self.level, self.rng, self._sums = level, rng, _SUMS[split]
        self._used: set[str] = set()
        namer = Namer(rng.choice(_WORLDS[split]), rng)
        self.person = {"name": namer.person(), "zip": self._number(5), "mood": rng.choice(level.moods)}
        self.member = rng.choice(("standard", "gold")) if level.members else "standard"
        self.numbered = rng.random() < level.numbered
        other = {"name": namer.person(), "zip": self._number(5), "member": "standard"}
        user = {"name": self.person["name"], "zip": self.person["zip"], "member": self.member}
        self.users = {"u1": user, "u2": other}
        # No two items of a task are alike, so that a customer's name for one fits no other.
        self._items = rng.sample([(p, v) for p in _PRODUCTS for v in _VARIANTS], 24)
        self.orders: dict[str, dict[str, Any]] = {}
        self.products: dict[str, dict[str, Any]] = {}
        self._needed: dict[tuple[str, str], bool] = {}  # product and variant of an exchange: the stock that it takes
        self.goals: list[dict[str, Any]] = []
        self.writes: list[tuple[str, dict[str, str]]] = []

    def row(self) -> dict[str, Any]:
        for _ in range(self.rng.choice(self.level.goals)):
            self._add_goal(self.rng.choice(self.level.kinds))
        while len(self.orders) < self.level.orders:
            self._order(*self.rng.choice((("pending", 0), ("shipped", 0), ("delivered", self.rng.randint(1, 90)))))
        self._order("pending", 0, user="u2")
        numbers = sorted(self.orders)  # as they are listed: not in the order of the goals
        return {
            # The policy's first prompt: a customer who knows the number gives no name, see `Customer.opening`.
            "task_key": f"{'' if self.numbered else self.person['name']} {self.goals[0]['request']}",
            "person": self.person,
            "numbered": self.numbered,
            "goals": self.goals,
            "content": {
                "users": self.users, "orders": {one: self.orders[one] for one in numbers}, "products": self.products,
            },
            "writes": self.writes,
            "type": self.goals[0]["kind"] if len(self.goals) == 1 else f"{len(self.goals)} goals",
        }  # fmt: skip

    def _add_goal(self, kind: str) -> None:
        rng, level = self.rng, self.level
        allowed, sent = rng.random() >= _FORBIDDEN, kind in ("return", "exchange")
        status, days = self._state(sent, allowed)
        number = self._order(status, days)
        items = self.orders[number]["items"]
        key = rng.choice(list(items))
        product, variant, price = items[key].values()
        new = rng.choice([one for one in self.products[product] if one != variant])
        what = f"the {variant} {product}" + (f" of order {number}" if self.numbered else "")
        if not sent:
            what = f"order {number}" if self.numbered else f"my order with {what}"
        if sent and status == "delivered":
            state, why = ("Why not? How many days ago did it come?", "number", str(days)), f"It came {days} days ago."
        else:
            state, why = ("Why not? What is its state?", "state", status), f"It is {status}."
        back = sum(one["price"] for one in items.values()) if kind == "cancel" else price
        amount, done = repaid = ("How much do I get back?", "number", str(back)), f"You get {back} dollars back."
        call = {"order": number} | ({"item": key} if sent else {})
        reads = [("get_order", {"order": number})]
        slots = {
            "order": f"It is order {number}." if self.numbered else "I do not have the number of the order.",
            "item": f"The {variant} {product}.",
        }
        falls_back, zip_code = False, ""
        if kind == "exchange":
            # All may be as it should be, but for the stock: the customer then wants the money.
            falls_back = allowed and level.fallback and rng.random() < 0.5
            new = self._stocked(items[key], new, allowed and not falls_back, needs=allowed)
            gap = abs(self.products[product][new]["price"] - price)
            amount, done = ("What is the difference in price?", "number", str(gap)), f"The difference is {gap} dollars."
            call["variant"], slots["variant"] = new, f"The {new} one."
            reads.append(("get_product", {"product": product}))
        elif kind == "address":
            zip_code = call["zip"] = self._number(5)
            amount, done, slots["new zip"] = _NOTHING, "", f"To {zip_code}."
        if falls_back:
            state, why = _NOTHING, "It is out of stock."
        goal = {
            "kind": kind,
            "allowed": allowed and not falls_back,
            "order": number,
            "request": rng.choice(_REQUESTS[kind]).format(what=what, new=new, zip=zip_code),
            "slots": slots,
            "asks": [amount, state] if level.asks else [_NOTHING, _NOTHING],
            "reads": reads,
            "call": (_CALLS[kind], call),
            "done": f"Done. {done if level.asks else ''}".strip(),
            "refused": f"Sorry, that is not possible. {why}",
        }
        self._take(goal)
        if falls_back:
            instead = {"kind": "return", "allowed": True, "request": "Then I return it.", "asks": [repaid[0], _NOTHING]}
            returned = ("return_item", {"order": number, "item": key})
            self._take({**goal, **instead, "reads": [], "call": returned, "done": f"Done. {repaid[1]}"})

    def _state(self, sent: bool, allowed: bool) -> tuple[str, int]:
        """Draw the state of an order, and its age, for which a goal is allowed or not."""
        rng, limit, members = self.rng, DAYS[self.member], self.level.members
        late = members and rng.random() < 0.7
        days = rng.randint(max(1, limit - 29) if members else 1, limit)
        if not sent:
            return ("pending" if allowed else "shipped" if rng.random() < 0.5 else "delivered"), days
        if allowed:
            return "delivered", days
        status = "pending" if rng.random() < 0.3 else "shipped"
        return ("delivered", rng.randint(limit + 1, limit + 30)) if late else (status, days)

    def _stocked(self, item: Mapping[str, Any], new: str, stock: bool, needs: bool) -> str:
        """Set whether a variant is in stock, and return it, or another one where a goal before needs the contrary.

        A request refused for the age or the state of its order needs no stock, and changes no stock that another needs.
        """
        product = item["product"]
        if needs and self._needed.get((product, new), stock) != stock:
            # Of all variants, since the ones of the product may all be taken; from a separate generator, so that
            # whatever is drawn after this stays as it is.
            rng = random.Random(f"{self.person['name']}/{product}/{new}")
            free = [one for one in _VARIANTS if one != item["variant"] and (product, one) not in self._needed]
            new = rng.choice(free)
            self.products[product].setdefault(new, {"price": rng.randint(5, 95)})
        self.products[product][new]["stock"] = self._needed.get((product, new), stock)
        if needs:
            self._needed[product, new] = stock
        return new

    def _take(self, goal: dict[str, Any]) -> None:
        self.goals.append(goal)
        if goal["allowed"]:
            self.writes.append(goal["call"])

    def _order(self, status: str, days: int, user: str = "u1") -> str:
        number = f"W{self._number(4)}"
        items = {}
        for place in range(self.rng.randint(1, self.level.items)):
            product, variant = self._items.pop()
            known = self.products.setdefault(product, {})
            for one in {variant: None, **dict.fromkeys(self.rng.sample(_VARIANTS, 3))}:
                known.setdefault(one, {"price": self.rng.randint(5, 95), "stock": self.rng.random() < 0.7})
            items[f"i{place + 1}"] = {"product": product, "variant": variant, "price": known[variant]["price"]}
        zip_code = self.users[user]["zip"]
        self.orders[number] = {
            "user": user, "status": status, "days": days if status == "delivered" else 0, "zip": zip_code,
            "items": items,
        }  # fmt: skip
        return number

    def _number(self, length: int) -> str:
        """Draw a new number of so many digits that belongs to the split."""
        while True:
            first = "".join(self.rng.choice("123456789") for _ in range(length - 1))
            number = f"{first}{(int(self.rng.choice(self._sums)) - sum(map(int, first))) % 10}"
            if number not in self._used:
                self._used.add(number)
                return number
