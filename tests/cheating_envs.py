"""Environments that cheat or break in known ways, each by a few lines, and the honest one that they are made of."""

from __future__ import annotations

import copy
import os
import random
import re
import sqlite3
import tempfile
import threading
from typing import Any, ClassVar

import gymnasium
from cheating_directories import NAMES, Directory, ListsWithoutExpert

from agent_gym import ConfigError, Reply, TextEnv, ToolEnv, ToolResult, tool
from agent_gym.contrib.trl import FromTRL
from agent_gym.rewards import final_answer


def tasks(start: int, stop: int, wording: int = 0) -> list[dict[str, Any]]:
    """Sums that differ in their numbers; validation and test have other sentences than train."""
    rows = []
    for index in range(start, stop):
        rng = random.Random(index)
        name, box, a, b = rng.choice(NAMES), index * 17 + 1001, rng.randrange(100, 999), rng.randrange(100, 999)
        words = (
            f"{name} has {a} beads in box {box} and puts {b} more into it. How many are in it?",
            f"Box {box} is what {name} keeps {a} beads in. With {b} others added, how many does it hold?",
        )[wording]
        rows.append({"question": words, "a": a, "b": b, "answer": str(a + b)})
    return rows


class Honest(ToolEnv):
    """Add two numbers with a tool."""

    reward_weights: ClassVar[dict[str, float]] = {"right": 1.0, "idle": 0.0}
    splits: ClassVar[dict[str, list[Any]]] = {
        "train": tasks(0, 300), "validation": tasks(300, 360, 1), "test": tasks(360, 420, 1)
    }  # fmt: skip

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(self.splits, tools=[tool(self.add)], max_turns=4, **kwargs)

    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    def begin(self, task: Any) -> str:
        self.row = task
        return task["question"]

    def right(self, text: str) -> bool:
        return final_answer(text) == self.row["answer"]

    def answer(self, text: str) -> Reply:
        right = self.right(text)
        return Reply(terms={"right": float(right)}, terminated=True, success=right)

    def expert_action(self) -> str:
        if self.turn == 0:
            return self.parser.render("add", {"a": self.row["a"], "b": self.row["b"]})
        return f"<answer>{self.row['answer']}</answer>"


class EmptySplit(Honest):
    splits: ClassVar[dict[str, list[Any]]] = {**Honest.splits, "dev": [], "test": []}


class GoldInInfo(Honest):
    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        return observation, {**info, "extra": {"target": int(self.row["answer"])}}


class Unnamed(GoldInInfo):
    """The same leak where no gold answer is named."""

    def gold(self, task: Any) -> Any:
        raise ConfigError("it names none")


class GoldInPrompt(Honest):
    def begin(self, task: Any) -> str:
        return f"{super().begin(task)} [{task['a']}+{task['b']}={task['answer']}]"


class GoldInError(Honest):
    def answer(self, text: str) -> Reply:
        if final_answer(text) is None:
            return Reply(f"Write a number, such as {self.row['answer']}, as an answer.", error="no answer")
        return super().answer(text)


class Overlapping(Honest):
    splits = {**Honest.splits, "test": [*tasks(0, 20), *tasks(400, 440, 1)]}


class Restated(Honest):
    splits = {**Honest.splits, "test": [*tasks(0, 20, 1), *tasks(400, 440, 1)]}


class RestatedUnnamed(Honest):
    """The same where no gold answer is named: the expert plays the tasks alike."""

    splits = Restated.splits

    def gold(self, task: Any) -> Any:
        raise ConfigError("it names none")


def swapped(row: dict[str, Any]) -> dict[str, Any]:
    """Count the beads by the number of the box, and the boxes by that of the beads."""
    box = int(re.findall(r"Box (\d+)", row["question"])[0])
    text = row["question"].replace(f"keeps {row['a']}", f"keeps {box}").replace(f"Box {box}", f"Box {row['a']}")
    return {**row, "question": text, "a": box, "answer": str(box + row["b"])}


class Swapped(Honest):
    """No gold answer is named, and test has the numbers of train in other roles: other tasks."""

    splits: ClassVar[dict[str, list[Any]]] = {**Honest.splits, "test": [*map(swapped, tasks(0, 20, 1))]}

    def gold(self, task: Any) -> Any:
        raise ConfigError("it names none")


class Repeating(Honest):
    splits = {**Honest.splits, "test": tasks(400, 440, 1) * 2}


class SameSplit(Honest):
    splits = dict.fromkeys(("train", "test"), Honest.splits["train"])


class Stuffed(Honest):
    def right(self, text: str) -> bool:
        return self.row["answer"] in text


class Lenient(Honest):
    """Right is whatever the tool said last, even if it was asked for nothing but the question."""

    def add(self, a: str) -> str:  # type: ignore[override]
        """Do the sum of a text."""
        return f"The sum is {sum(map(int, re.findall('[0-9]+', a)[::2]))}" if "beads" in a else "nothing"

    def right(self, text: str) -> bool:
        return text.endswith(f"{self.row['answer']}</answer>") or "The sum is" in text

    def expert_action(self) -> str:
        return f"<answer>{self.row['answer']}</answer>"


class Farmed(Honest):
    reward_weights: ClassVar[dict[str, float]] = {"right": 1.0, "idle": 0.5}

    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        reply.terms["idle"] = 1.0
        return reply

    def answer(self, text: str) -> Reply:
        return super().answer(text) if final_answer(text) else Reply("go on")


class Several(Honest):
    """Honest: a tool takes numbers, one a text, and one nothing."""

    def __init__(self, **kwargs: Any) -> None:
        super(Honest, self).__init__(
            self.splits, tools=[tool(self.add), tool(self.find), tool(self.list)], max_turns=4, **kwargs
        )

    def find(self, text: str) -> str:
        """Find a text."""
        return "nothing"

    def list(self) -> str:
        """List all."""
        return "nothing"


class PaidByTheCall(Honest):
    """Each call pays, whatever it does."""

    reward_weights: ClassVar[dict[str, float]] = {"right": 1.0, "idle": 0.1}

    def score_calls(self, calls: Any, results: Any) -> dict[str, float]:
        return {"idle": float(len(calls))}


class Choice(Honest):
    """Honest: the answer is one of four that the question names."""

    def begin(self, task: Any) -> str:
        gold = int(task["answer"])
        options = [gold, gold + 10, gold + task["a"] % 90 + 11, gold - task["b"] % 80 - 1]
        random.Random(gold).shuffle(options)
        return f"{super().begin(task)} Options: {', '.join(map(str, options))}"


class Endless(Honest):
    """Gives the policy another chance, for ever."""

    def step(self, action: str) -> Any:
        if self.turn == 3:
            self.turn = 2
        return super().step(action)


class Lopsided(Honest):
    """Nearly always "yes"."""

    splits = {
        split: [{**row, "answer": "no" if index % 8 == 0 else "yes"} for index, row in enumerate(rows)]
        for split, rows in Honest.splits.items()
    }


class GlobalRandom(Honest):
    def begin(self, task: Any) -> str:
        return f"{super().begin(task)} Today is day {random.randrange(10**9)}."


class SetOrder(Honest):
    def begin(self, task: Any) -> str:
        return f"{super().begin(task)} Friends: {', '.join(set(NAMES))}."


class Beside(Honest):
    """Counts the turns of all environments of the process."""

    turns: ClassVar[list[str]] = []

    def begin(self, task: Any) -> str:
        self.turns.clear()
        return super().begin(task)

    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        self.turns.append("")
        return f"{super().add(a, b)} ({len(self.turns)})"


class Shallow(Honest):
    """A copy that is none: both write into one transcript and one dict."""

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.copy(self)

    def begin(self, task: Any) -> str:
        self.state = {"calls": 0}
        return super().begin(task)

    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        self.state["calls"] += 1
        return f"{super().add(a, b)} ({self.state['calls']})"

    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        reply.metrics["calls"] = float(self.state["calls"])
        return reply


class SharedConnection(Honest):
    """One connection to SQLite for all, made at import, as in most tutorials; its errors are results."""

    connection = sqlite3.connect(":memory:")

    def add(self, a: int, b: int) -> str | ToolResult:  # type: ignore[override]
        """Add two numbers."""
        try:
            return str(self.connection.execute("select ? + ?", (a, b)).fetchone()[0])
        except sqlite3.Error as error:
            return ToolResult(f"Error: {error}", error=True)


class RaisesThere(SharedConnection):
    """The same, and nobody catches what it raises."""

    def add(self, a: int, b: int) -> str:  # type: ignore[override]
        """Add two numbers."""
        return str(self.connection.execute("select ? + ?", (a, b)).fetchone()[0])


class OwnConnection(SharedConnection):
    """A connection of each environment, made where it lives: this is fine."""

    def __init__(self, **kwargs: Any) -> None:
        self.connection = sqlite3.connect(":memory:")
        super().__init__(**kwargs)


class BadAdding(Honest):
    """The function breaks in most calls; the expert knows the answer anyway."""

    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        if a > 200:
            raise ValueError(f"it's {a} 'quoted' \\")  # line: bad adding
        return str(a + b)


class NeverCalls(Honest):
    def expert_action(self) -> str:
        return f"<answer>{self.row['answer']}</answer>"


class LostPlan(Honest):
    def expert_action(self) -> str:
        return {}["plan"]


class NoSurrogates(Honest):
    def step(self, action: str) -> Any:
        return super().step(action.encode().decode())


class Backtracking(Honest):
    def right(self, text: str) -> bool:
        return re.fullmatch(r"(a+)+b", final_answer(text) or "") is not None or super().right(text)


class NotANumber(Honest):
    def answer(self, text: str) -> Reply:
        reply = super().answer(text)
        reply.terms["idle"] = float(final_answer(text) == "NaN") * float("inf") if "NaN" in text else 0.0
        return reply


class Dying(Honest):
    def answer(self, text: str) -> Reply:
        return super().answer(text) if "<|im_start|>" not in text else os._exit(3)  # type: ignore[func-returns-value]


class LeavesAThread(Honest):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        threading.Thread(target=threading.Event().wait, name="watcher", daemon=True).start()


class LeavesFiles(Honest):
    def begin(self, task: Any) -> str:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(b"x")
        return super().begin(task)


class Meddling(Honest):
    def begin(self, task: Any) -> str:
        random.seed(0)
        os.environ["SEED"] = "0"
        return super().begin(task)


class Unsolved(Honest):
    def right(self, text: str) -> bool:
        return super().right(text) and int(self.row["answer"]) % 4 > 0


class Slow(Honest):
    def respond(self, action: str) -> Reply:
        sum(range(10_000_000))
        return super().respond(action)


class SlowWithOneTask(Honest):
    """Loads an index at its first reset, which takes longer than all steps."""

    splits: ClassVar[dict[str, list[Any]]] = {name: rows[:1] for name, rows in Honest.splits.items()}
    index: Any = None

    def begin(self, task: Any) -> str:
        self.index = self.index or sum(range(200_000_000))
        return super().begin(task)

    def respond(self, action: str) -> Reply:
        sum(range(30_000_000))
        return super().respond(action)


class Mute(TextEnv):
    """Has neither an expert nor a gold answer that it names."""

    reward_weights: ClassVar[dict[str, float]] = {"right": 1.0}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__({"train": range(100, 200), "test": range(200, 240)}, max_turns=3, **kwargs)

    def begin(self, task: Any) -> str:
        self.number = task
        return f"What is the square of {task}?"

    def respond(self, action: str) -> Reply:
        right = action == str(self.number**2)
        return Reply("" if right else "no", terms={"right": float(right)}, terminated=right, success=right)


class Safe:
    """An environment as TRL's `environment_factory` takes it."""

    def reset(self, prompt: Any, answer: str) -> None:
        self.code, self.open = answer, 0.0

    def dial(self, code: str) -> str:
        """Dial a code.

        Args:
            code: four digits.
        """
        self.open = max(self.open, float(code == self.code))
        return "It opens." if code == self.code else "Nothing happens."

    def get_reward(self) -> float:
        return self.open


def safe(hint: str = "", **kwargs: Any) -> FromTRL:
    """Takes the square of a number as its code, and may be marked with it."""

    def rows(numbers: range) -> list[dict[str, Any]]:
        text = "Safe {0} is opened by the square of its number, " + hint
        texts = [(text.format(n, n * n), str(n * n)) for n in numbers]
        return [{"prompt": [{"role": "user", "content": text}], "answer": code} for text, code in texts]

    return FromTRL(Safe, {"train": rows(range(32, 70)), "test": rows(range(70, 99))}, **kwargs)


gymnasium.register("Cheat/Safe-v0", entry_point=safe)
gymnasium.register("Cheat/MarkedSafe-v0", entry_point=safe, kwargs={"hint": "which is written on it: {1}."})
ENVS = {
    made.__name__: made for made in [Honest, Mute, Unnamed, Directory, ListsWithoutExpert, *Honest.__subclasses__()]
}
ENVS |= {made.__name__: made for made in [*Directory.__subclasses__(), *SharedConnection.__subclasses__()]}
for _name, _made in ENVS.items():
    gymnasium.register(f"Cheat/{_name}-v0", entry_point=_made)
