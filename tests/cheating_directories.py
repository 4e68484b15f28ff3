"""Environments with answers in words and in a form of their own, honest and not; `cheating_envs` registers them."""

from __future__ import annotations

import base64
import datetime
import os
import re
from itertools import permutations
from typing import Any, ClassVar

from agent_gym import ConfigError, Reply, ToolEnv, tool

NAMES = ("Abel", "Bilal", "Chen", "Dora", "Esra", "Femi", "Gita", "Hugo", "Ines", "Jiro", "Kaya", "Lena")
WORDS = [{"question": f"Who leads {a}{b}{c}?", "answer": f"{b}{c}{a}".lower()} for a, b, c in permutations(NAMES, 3)]


class Directory(ToolEnv):
    """Honest: names that are looked up, and an answer in a form of its own."""

    reward_weights: ClassVar[dict[str, float]] = {"right": 1.0}
    splits: ClassVar[dict[str, list[Any]]] = {
        "train": WORDS[:300], "validation": WORDS[300:360], "test": WORDS[360:440]
    }  # fmt: skip

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(self.splits, tools=[tool(self.find)], max_turns=5, **kwargs)

    def find(self, name: str) -> str:
        """Look somebody up."""
        known = name == self.row["question"][10:-1]
        return f"{name} is led by {self.row['answer']}, as far as is known." if known else "nobody has that name"

    def begin(self, task: Any) -> str:
        self.row = task
        return task["question"]

    def said(self, text: str) -> str:
        return text.rpartition("Answer: ")[2].strip()

    def right(self, text: str) -> bool:
        return self.said(text) == self.row["answer"]

    def answer(self, text: str) -> Reply:
        if "Answer: " not in text:
            return Reply("Write 'Answer: NAME'.", error="no answer")
        right = self.right(text)
        return Reply(terms={"right": float(right)}, terminated=True, success=right)

    def expert_action(self) -> str:
        name = self.row["question"][10:-1]
        return self.parser.render("find", {"name": name}) if self.turn == 0 else f"Answer: {self.row['answer']}"


class GoldInCapitals(Directory):
    def begin(self, task: Any) -> str:
        return f"{super().begin(task)} [{task['answer'].upper()}]"


class GoldBefore(Directory):
    """Nothing constant stands behind what comes before the gold answer."""

    def begin(self, task: Any) -> str:
        return f"{super().begin(task)} {task['question'][10:17]} {task['answer']} <- this."


class GoldBackwards(Directory):
    def begin(self, task: Any) -> str:
        return f"{super().begin(task)} (reference {task['answer'][::-1]})"


class GoldInBase64(Directory):
    def begin(self, task: Any) -> str:
        return f"{super().begin(task)} (reference {base64.b64encode(task['answer'].encode()).decode()})"


class GoldForJunk(Directory):
    """A tool tells it to whoever calls it with arguments that make no sense."""

    def find(self, name: str) -> str:
        """Look somebody up."""
        return super().find(name) if name in self.row["question"] else f"no entry (row {self.row['answer']} of 12)"


class GoldAhead(Directory):
    """`info` has it a turn before it is earned."""

    def step(self, action: str) -> Any:
        *returned, info = super().step(action)
        return *returned, {**info, "cache": [self.row["answer"]]}

    def expert_action(self) -> str:
        return self.parser.render("find", {"name": "x"}) if self.turn == 0 else f"Answer: {self.row['answer']}"


class Disguised(Directory):
    splits = {**Directory.splits, "test": [{**row, "loud": True} for row in WORDS[:5]] + WORDS[360:440]}

    def begin(self, task: Any) -> str:
        return f" {super().begin(task).upper()[:-1]} \n" if task.get("loud") else super().begin(task)


class Reworded(Directory):
    splits = {**Directory.splits, "test": [{**row, "other": True} for row in WORDS[300:305]] + WORDS[360:440]}

    def begin(self, task: Any) -> str:
        question = super().begin(task)
        return f"By whom is {question[10:-1]} led?" if task.get("other") else question


class TakesLists(Directory):
    """Who lists all names that were read need not know which is right."""

    def right(self, text: str) -> bool:
        return self.row["answer"] in self.said(text)


class ListsWithoutExpert(TakesLists):
    def answer(self, text: str) -> Reply:
        return super().answer(f"Answer: {text}")

    def expert_action(self) -> str:
        raise ConfigError("it has none")


class TryAgain(Directory):
    splits = {
        split: [
            {**row, "answer": ("spring", "summer", "autumn", "winter")[index * 7 % 11 % 4]}
            for index, row in enumerate(rows)
        ]
        for split, rows in Directory.splits.items()
    }

    def answer(self, text: str) -> Reply:
        reply = super().answer(text)
        return reply if reply.success else Reply("wrong, try again")


class Today(Directory):
    def begin(self, task: Any) -> str:
        return f"{super().begin(task)} Today is {datetime.date.today()}."


class Aging(Directory):
    """Nothing that it shows, but what it pays depends on the year."""

    def right(self, text: str) -> bool:
        return super().right(text) and datetime.datetime.now().year == self.since

    since = datetime.datetime.now().year


class Numbered(Directory):
    def begin(self, task: Any) -> str:
        return f"{super().begin(task)} Process {os.getpid()}."


class SharedStore(Directory):
    """Copies write into one store, and only what comes soon behind the copy shows it."""

    class Store(dict[str, int]):
        def __deepcopy__(self, memo: Any) -> Any:
            return self

    def begin(self, task: Any) -> str:
        self.store = self.Store()
        return super().begin(task)

    def find(self, name: str) -> str:
        """Look somebody up."""
        self.store["calls"] = self.store.get("calls", 0) + 1
        return f"{super().find(name)} ({self.store['calls']})"

    def expert_action(self) -> str:
        return self.parser.render("find", {"name": "x"}) if self.turn == 0 else self.second()

    def second(self) -> str:
        name = self.row["question"][10:-1]
        return self.parser.render("find", {"name": name}) if self.turn == 1 else f"Answer: {self.row['answer']}"


class SlowWords(Directory):
    def said(self, text: str) -> str:
        found = re.search(r"Answer: ((\w+,?)*)$", text)
        return found[1] if found else ""


class Closeness(Directory):
    splits = {
        split: [{**row, "answer": str(100 + 17 * index)} for index, row in enumerate(rows)]
        for split, rows in Directory.splits.items()
    }

    def answer(self, text: str) -> Reply:
        try:
            off = abs(float(self.said(text)) / float(self.row["answer"]) - 1)
        except ValueError:
            return Reply("Write a number.", error="no number")
        return Reply(terms={"right": off if off != off else max(0, 1 - off)}, terminated=True, success=off == 0)
