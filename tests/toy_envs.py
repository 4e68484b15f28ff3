"""Small environments with known behaviour, and a policy that is as slow as an engine: doubles for the tests.

`register()` gives them ids under `Toy/`, so that everything which takes an id can be tested without a real task.
"""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

import gymnasium
import pytest

from agent_gym import ConfigError, EnvFailure, Reply, TextEnv, Tool, ToolEnv, ToolResult, tool
from agent_gym.images import images_of
from agent_gym.policies import Generation, Request
from agent_gym.registry import ENVS


class CountingEnv(TextEnv):
    """Echoes each action with its number and a random word; "stop" ends the task, well done after three turns."""

    reward_weights: ClassVar[dict[str, float]] = {"turn": 0.25, "end": 1.0, "unpaid": 0.0}
    default_system_prompt: ClassVar[str] = "Count to three, then stop."
    words: ClassVar[tuple[str, ...]] = ("café", "π ✓", "日本", "😀", "e\u0301", "שלום", "naïve\n", "\t")

    def __init__(self, n_tasks: int = 50, **kwargs: Any) -> None:
        super().__init__(dict.fromkeys(("train", "test"), range(n_tasks)), **kwargs)

    def begin(self, task: Any) -> str:
        return f"Task {task}: {self._word()}"

    def respond(self, action: str) -> Reply:
        n = self.turn + 1
        if action == "stop":
            return Reply(terms={"end": float(n == 4)}, terminated=True, success=n == 4)
        return Reply(f"{n} {self._word()} {action}", terms={"turn": 1.0, "unpaid": 1.0}, metrics={"turns": float(n)})

    def expert_action(self) -> str:
        return "stop" if self.turn == 3 else "on"

    def _word(self) -> str:
        return self.words[int(self.np_random.integers(len(self.words)))]


class InlineEnv(CountingEnv):
    """The same, answering inside the policy's own turn."""

    inline = True
    stop = ("</go>",)


class BrokenEnv(CountingEnv):
    """Fails on purpose: `how` says in which way, `when` in which turn (-1 is `reset`), `tasks` for which tasks.

    One that hangs goes on after `seconds`.
    """

    def __init__(
        self, how: str = "crash", when: int = 1, tasks: tuple[int, ...] = (), seconds: float = 30.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.how, self.when, self.broken, self.seconds = how, when, tasks, seconds

    def begin(self, task: Any) -> str:
        self.task = task
        self._break(-1)
        return super().begin(task)

    def respond(self, action: str) -> Reply:
        self._break(self.turn)
        return super().respond(action)

    def _break(self, turn: int) -> None:
        if turn != self.when or (self.broken and self.task not in self.broken):
            return
        if self.how == "config":
            raise ConfigError("the setting 'colour' is 'loud'; allowed: 'red', 'blue'")
        if self.how == "failure":
            raise EnvFailure("the index is gone")
        if self.how == "hang":
            return time.sleep(self.seconds)
        if self.how == "exit":
            raise SystemExit(3)
        raise RuntimeError("a bug in the environment")


class WordyEnv(CountingEnv):
    """Answers action k with `lengths[k]` letters, each of which is a token; the last length holds from then on."""

    def __init__(self, lengths: tuple[int, ...] = (10,), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lengths = lengths

    def respond(self, action: str) -> Reply:
        return Reply("z" * self.lengths[min(self.turn, len(self.lengths) - 1)], terms={"turn": 1.0})


class GatedEnv(CountingEnv):
    """Task 0 does not answer before `needed` turns of other tasks are done; its reward says whether it had to give up.

    So a loop in which a slow environment holds up the others gets a reward of 0 from task 0, whatever the clock says.
    """

    reward_weights: ClassVar[dict[str, float]] = {"turn": 0.0, "end": 0.0, "unpaid": 0.0, "opened": 1.0}
    gate: ClassVar[threading.Event] = threading.Event()
    turns: ClassVar[list[int]] = []
    needed: ClassVar[int] = 0
    patience_s: ClassVar[float] = 10.0

    def begin(self, task: Any) -> str:
        self.task = task
        return super().begin(task)

    def respond(self, action: str) -> Reply:
        if self.task == 0:
            opened = self.gate.wait(self.patience_s)
            return Reply(terms={"opened": float(opened)}, terminated=True, success=opened)
        self.turns.append(self.task)
        if len(self.turns) >= self.needed:
            self.gate.set()
        return super().respond(action)


class WorldEnv(TextEnv):
    """Answers with the replies it was handed: `options={"task": {"question": ..., "replies": [Reply, ...]}}`."""

    reward_weights: ClassVar[dict[str, float]] = {"a": 1.0}

    def __init__(self, inline: bool = False, tools: bool = False, **kwargs: Any) -> None:
        super().__init__({"train": [{"question": "q", "replies": [Reply("r")]}]}, max_turns=99, **kwargs)
        self.inline = inline
        self.tool_schemas = [add.schema] if tools else []

    def begin(self, task: Any) -> Any:
        self._replies = list(task["replies"])
        return task["question"]

    def respond(self, action: str) -> Reply:
        return self._replies.pop(0)


@tool
def add(a: int, b: int = 1) -> str:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return str(a + b)


class Recorder(Tool):
    """Has only a batch form and keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__("record", "Record a word.", {"type": "object", "properties": {"word": {"type": "string"}}})
        self.batches: list[list[Any]] = []

    def run_batch(self, batch: Any) -> list[ToolResult]:
        self.batches.append([arguments.get("word") for arguments in batch])
        if any(arguments.get("word") == "crash" for arguments in batch):
            raise OSError("the disk is full")
        if any(arguments.get("word") == "lose" for arguments in batch):
            return []
        return [ToolResult(f"recorded {arguments.get('word')}") for arguments in batch]


class TwoToolEnv(ToolEnv):
    """`add` and `record`; a turn without a call ends the task, and saying "right" is right."""

    reward_weights: ClassVar[dict[str, float]] = {"answer": 1.0, "errors": -0.5}
    default_system_prompt: ClassVar[str] = "Be brief."

    def __init__(self, **kwargs: Any) -> None:
        self.recorder = Recorder()
        super().__init__({"train": ["What now?"]}, tools=[add, self.recorder], **kwargs)

    def begin(self, task: Any) -> str:
        return str(task)

    def answer(self, text: str) -> Reply:
        return Reply(terms={"answer": float(text == "right")}, terminated=True, success=text == "right")

    def score_calls(self, calls: Any, results: Any) -> dict[str, float]:
        return {"errors": float(sum(result.error for result in results))}


class SlowWriter:
    """A policy that writes one token per poll for every pending request, as a continuously batching engine does.

    `text(episode)` says what to write. It counts polls, and `seen` keeps what was submitted.
    """

    continuous = True

    def __init__(self, text: Any, encode: Any) -> None:
        self.text, self.encode = text, encode
        self.running: dict[int, tuple[Request, list[int], list[int]]] = {}
        self.seen: list[Request] = []
        self.aborted: list[int] = []
        self.polls = 0

    @property
    def pending(self) -> int:
        return len(self.running)

    def submit(self, request: Request) -> None:
        self.seen.append(request)
        self.running[request.id] = (request, list(self.encode(self.text(request.episode))), [])

    def poll(self) -> list[Generation]:
        self.polls += 1
        done = []
        for key, (request, left, written) in list(self.running.items()):
            written.append(left.pop(0))
            if not left or len(written) == request.params.max_tokens:
                reason = "length" if left else "stop"
                done.append(Generation(key, written, [-0.5] * len(written), reason))
                del self.running[key]
        return done

    def abort(self, request_id: int) -> None:
        self.aborted.append(request_id)
        self.running.pop(request_id, None)

    def close(self) -> None:
        self.running.clear()


TOYS = {
    "Toy/Counting-v0": CountingEnv,
    "Toy/Inline-v0": InlineEnv,
    "Toy/Broken-v0": BrokenEnv,
    "Toy/Gated-v0": GatedEnv,
    "Toy/Wordy-v0": WordyEnv,
    "Toy/World-v0": WorldEnv,
    "Toy/TwoTools-v0": TwoToolEnv,
}


def register() -> None:
    """Give every toy an id; calling it again changes nothing."""
    for env_id, cls in TOYS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=cls)


IDS = [entry.id for entry in ENVS if entry.needs is None]
"""The ids that can be made without arguments."""
every_id = pytest.mark.parametrize("env_id", IDS)
_FIRST = {entry.entry_point: entry.id for entry in reversed(ENVS)}
WORLDS = [one for one in IDS if one in _FIRST.values()]
every_world = pytest.mark.parametrize(
    "env_id", [pytest.param(one, marks=[] if one in WORLDS else pytest.mark.slow) for one in IDS]
)
"""The same; of several ids of one class all but the first are slow."""


def encoder_of(env_id: str, tokenizer: Any) -> Any:
    """A tokenizer, or a processor for an environment that shows images."""
    if not images_of(gymnasium.make(env_id).reset(seed=0)[1]["messages"]):
        return tokenizer
    from vision_tools import tiny_processor

    return tiny_processor()
