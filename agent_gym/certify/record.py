"""The input of a check, its result, and the fixed thresholds by which it judges."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agent_gym.env import TextEnv
from agent_gym.errors import ConfigError
from agent_gym.registry import make
from agent_gym.rollout.env_threads import Worker
from agent_gym.testing import Log, expert_turns, play, policy_texts, require
from agent_gym.tool_env import random_words, words_of

Attack = Callable[..., Generator[str, str, None]]
"""From the user's message to turns; it is sent the observation of each."""

STEP_CPU_S = 5
"""CPU seconds in which a step answers, whatever it is given. The slowest of 280,000 hostile steps of the environments
here took 0.9; at 5, one policy that writes such turns already stops a rollout of hundreds."""
RESET_CPU_S = 60
"""The same of a reset. The first one may draw a split or build an index."""
STILL_S = 300
"""Seconds of silence after which a check is ended: an environment that waits for ever uses no CPU."""
TASKS_S, LEAST_TASKS = 600, 5
"""Seconds after which the attacks begin no further task, and the tasks that they play in any case: with fewer, an
attack that solves all of them does not fail."""
SOLVED = 0.95
"""Share of tasks that the expert solves. Generated tasks have 1; of official data some rows cannot be solved."""
LEAK = 0.1
"""Share of tasks whose gold answer is at one place. The environments here stay below 0.02."""
OVERLAP = 0.01
"""Share of evaluation tasks that occur twice or in training. Official data have a few: one in 500 of WebShop's test."""
ATTACK_SUCCESS = 0.5
"""An attack's success over the expert's. RL finds a behaviour that pays half as often and costs nothing before it
learns the task; an honest rule, such as buying the first hit in WebShop, reaches 0.28."""
ATTACK_REWARD = 0.9
"""An attack's mean reward over the expert's: the reward without success must be far from the reward of success.
WebShop's graded reward pays 0.75 for the first hit."""
GROWTH = 2
"""Threads, processes, open or temporary files that three lives of an environment add: one may be a cache."""
STEPS_PER_S = 20
"""Steps per CPU second. A model on one GPU takes hundreds of turns a second in a batch, which 16 cores must answer."""
LONGEST = 2_000
"""Turns of an episode: an episode that is longer has no end."""
LEARNED = 0.1
"""Gain in success by RL, or distance from all tasks solved; 500 tasks of the speedrun have an interval of 0.04."""


@dataclass(frozen=True, slots=True)
class Record:
    """The outcome of one check: `verdict` is "pass", "fail" or "skipped", `evidence` names tasks, actions and texts."""

    name: str
    verdict: str
    text: str
    numbers: dict[str, float] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)


class SkippedCheck(Exception):
    """A check has nothing to look at, for the reason given."""


_RUN = re.compile(r"(.)\1{60,}", re.DOTALL)


def judged(name: str, text: str, problems: Sequence[str], numbers: Mapping[str, float] | None = None) -> Record:
    """Return a pass with `text`, or a fail with the first of the problems and all of them as evidence."""
    evidence = [cut(problem, 400) for problem in problems[:10]]
    verdict, text = ("fail", evidence[0]) if evidence else ("pass", text)
    return Record(name, verdict, text, dict(numbers or {}), evidence)


def cut(text: str, length: int = 300) -> str:
    """Return a text as one line of bounded length that every encoding can hold; a line that is cut stays as it is.

    Characters that cannot be printed are escaped, and nothing else. Of a repeated character the first forty are shown.
    """
    text = _RUN.sub(lambda run: f"{run[1] * 40}...", text[: 100 * length])
    line = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[: length + 4])
    return line if len(text) <= length or line.endswith(" ...") else line[:length] + " ..."


@dataclass
class Subject:
    """An environment under test, and how much of it is tried.

    `tell` is called before each action that may hang or crash, with its limit of CPU seconds; 0 means none.
    """

    env_id: str
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    quick: bool = False
    script: str | None = None  # the file of an attack that knows the environment
    model: str | None = None
    learn: bool = False
    env_processes: int = 0  # processes in which rollouts run the environments, 0 for threads
    tell: Callable[[str, float], None] = lambda doing, seconds: None
    doing: str = ""

    def beat(self, doing: str, seconds: float = 0) -> None:
        self.doing = cut(doing)
        self.tell(self.doing, seconds)

    def make(self) -> TextEnv:
        return make(self.env_id, **self.env_kwargs)

    @functools.cached_property
    def thread(self) -> Worker:
        """The one thread in which checks make and play environments: as in rollouts, not the one that imported them."""
        return Worker("agent-gym-certify")

    @functools.cached_property
    def env(self) -> TextEnv:
        """One environment for all checks that only look at tasks."""
        return self.make()

    @functools.cached_property
    def has_expert(self) -> bool:
        env = self.make()
        self.beat("reset with seed 0, then expert_action()", RESET_CPU_S)
        env.reset(seed=0)
        try:
            env.expert_action()
        except ConfigError:
            return False
        return True

    @functools.cached_property
    def splits(self) -> list[str]:
        """The splits that have tasks: data may leave one empty."""
        return [name for name, tasks in self.env.tasks.items() if len(tasks)]

    @functools.cached_property
    def held_out(self) -> str:
        """The split that numbers are about: test, or what comes nearest to it."""
        return next(name for name in ("test", "validation", "dev", "valid", *self.splits) if name in self.splits)

    @functools.cached_property
    def answer_pattern(self) -> tuple[str, str, list[str]]:
        """What stands before and behind the answer in the expert's last turns, and the answers, most frequent first.

        Without an expert the answers are the gold ones of training.
        """
        split = self.splits[0]
        if not self.has_expert:
            golds = [self.gold(split, index) for index in self.some(split, 60, 60)]
            named = Counter(str(gold) for gold in golds if isinstance(gold, str | int | float))
            return "<answer>", "</answer>", [text for text, _ in named.most_common()] or ["no", "1"]

        def lasts(split: str, count: int) -> list[str]:
            tasks = self.in_time(self.some(split, count, count), TASKS_S / 5)
            return [policy_texts(self.trace(self.env, expert_turns(self.env), (split, one)))[-1] for one in tasks]

        # Answers are the answers of training; the text around them is recognised better with other tasks.
        own, others = lasts(split, 60), lasts(self.held_out, 10)
        start, end = _affixes([*own, *others])
        answers = Counter(one[len(start) : len(one) - len(end)] for one in own)
        return start, end, [text for text, _ in answers.most_common()]

    @property
    def answer_frames(self) -> list[tuple[str, str]]:
        """The texts before and after an answer: the expert's; without an expert a tag, and nothing."""
        start, end, _ = self.answer_pattern
        return [(start, end)] if self.has_expert else [(start, end), ("", "")]

    def number(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def some(self, split: str, full: int, quick: int) -> range:
        return range(min(self.number(full, quick), len(self.env.tasks[split])))

    def in_time(self, tasks: range, seconds: float = TASKS_S) -> Iterator[int]:
        """Yield the first tasks in any case, and others as long as there is time for them; a tenth of it if quick."""
        end = time.monotonic() + self.number(10, 1) * seconds / 10
        return itertools.takewhile(lambda one: one < LEAST_TASKS or time.monotonic() < end, tasks)

    def gold(self, split: str, index: int) -> Any:
        """Return the gold answer of a task, None where the environment names none."""
        try:
            return self.env.gold(self.env.tasks[split][index])
        except ConfigError:
            return None

    def trace(self, env: TextEnv, actions: Iterable[str], task: tuple[str, int] | None = None, seed: int = 0) -> Log:
        """Play actions until they or the episode end; see `testing.play`."""
        options = dict(zip(("split", "index"), task, strict=True)) if task else {}

        def announced() -> Iterator[str]:
            # Counted here: an environment of somebody else may count its turns wrongly.
            for turn, action in enumerate(actions):
                require(turn < LONGEST, f"the episode has no end after {LONGEST:,} turns")
                self.beat(f"{env.place}, turn {turn}: {action[:2000]}", STEP_CPU_S)
                yield action

        self.beat(f"reset with seed {seed} and {options}", RESET_CPU_S)
        log = play(env, announced(), seed=seed, options=options)
        self.tell(self.doing, 0)
        return log

    def turns(self, env: TextEnv) -> Iterator[str]:
        """Yield the expert's turns, or random ones where there is none."""
        return expert_turns(env) if self.has_expert else random_turns(env)


def _affixes(texts: Sequence[str]) -> tuple[str, str]:
    """Return the common beginning and end of texts, in whole words."""
    start = os.path.commonprefix(list(texts))
    end = os.path.commonprefix([one[len(start) :][::-1] for one in texts])[::-1]
    if len(set(texts)) == 1:
        return start, end
    return re.sub(r"\w+\Z", "", start), re.sub(r"\A\w+", "", end)


def random_turns(env: TextEnv, seed: int | tuple[int, ...] = 0) -> Iterator[str]:
    """Yield the turns of a policy that knows the form of actions at most."""
    act, rng = getattr(env, "random_action", None), np.random.default_rng(seed)
    while True:
        words = words_of("\n".join(one.text for one in env.transcript.segments if one.source != "system"))
        yield act(rng) if act else random_words(words, rng)


def tool_calls(env: TextEnv, fill: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, str]:
    """Return a call of each tool by its name; `fill` makes the arguments from the schemas of the parameters."""
    calls = {}
    for schema in env.tool_schemas:
        name, parameters = schema["function"]["name"], schema["function"]["parameters"]
        with suppress(Exception):  # a parser of one's own may write no such call
            arguments = fill(parameters.get("properties", {}))
            calls[name] = env.parser.render(name, arguments)  # type: ignore[attr-defined]
    return calls


def script_turns(env: TextEnv, attack: Attack) -> Iterator[str]:
    """Yield the turns of an attack; one with a second parameter is also given the schemas of the tools."""
    seen = [next(one.text for one in env.transcript.segments if one.source == "user"), env.tool_schemas]
    player = attack(*seen[: len(inspect.signature(attack).parameters)])
    action = next(player, None)
    while action is not None:
        yield action
        try:
            action = player.send(env.transcript.segments[-1].text)
        except StopIteration:
            return


def outcome(log: Log) -> tuple[float, bool]:
    """Return the reward of an episode, and whether the task was solved."""
    return sum(one[1] for one in log[1:]), bool(log[-1][-1].get("is_success", False))
