"""Does it keep its promises: the contract, the same episode for the same seed, copies, leftovers, speed."""

from __future__ import annotations

import copy
import gc
import hashlib
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from agent_gym.certify.clock import datetime_later, later
from agent_gym.certify.record import GROWTH, STEPS_PER_S, Record, SkippedCheck, Subject, cut, judged, random_turns
from agent_gym.env import TextEnv
from agent_gym.errors import described, quoted
from agent_gym.testing import HOSTILE, Log, check_returned, check_text_env, policy_texts, require, without_times
from agent_gym.tools import failed_calls

_SEEDS = range(6)
_IN_ANOTHER_PROCESS = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from agent_gym.certify.contract import show_digest; show_digest(json.loads(sys.argv[2]), float(sys.argv[3]))"
)
_LATER_S = 400 * 86_400.0  # another year, day of the week and month


def contract(subject: Subject) -> Record:
    """Gymnasium's `check_env` and the tests of `agent_gym.testing` for every environment."""
    subject.beat("agent_gym.testing.check_text_env")
    try:
        check_text_env(subject.make, episodes=3, expert=False)
        env, turns = subject.make(), list[tuple[Any, Any]]()
        for seed in range(3):
            log = subject.trace(env, subject.turns(env), seed=seed)
            check_returned(env, log)
            turns += [(info["tool_calls"], info["error"]) for *_, info in log[1:]]
        complaint = failed_calls(turns) if subject.has_expert else None
        require(complaint is None, str(complaint))
    except AssertionError as error:
        return judged("contract", "", [str(error)])
    return judged("contract", "check_env passes, spans tile the transcript, terms sum to the reward", [])


def _log(subject: Subject, env: TextEnv, seed: int) -> Log:
    return subject.trace(env, random_turns(env, seed) if seed % 2 else subject.turns(env), seed=seed)


def digest(subject: Subject) -> str:
    """Return a hash of all that some episodes show; times are left out."""
    env, seen = subject.make(), hashlib.sha256()
    for seed in _SEEDS:
        for *returned, info in _log(subject, env, seed):
            seen.update(repr((returned, info["messages"], info["spans"])).encode("utf-8", "surrogatepass"))
    env.close()
    return seen.hexdigest()


def show_digest(about: tuple[str, dict[str, Any]], later_s: float) -> None:
    """Print the hash in a separate process, with a clock that is ahead."""
    subject = Subject(*about)
    if later_s:
        later(later_s)
        datetime_later(later_s, subject.make().unwrapped)
    print(subject.thread.submit(digest, subject).result())


def determinism(subject: Subject) -> Record:
    """The same seed gives the same episode: again, next to another environment, and in other processes."""
    problems, envs = [], (subject.make(), subject.make())
    logs = [_log(subject, envs[0], seed) for seed in _SEEDS]
    for seed, log in zip(_SEEDS, logs, strict=True):
        if (again := subject.trace(envs[1], policy_texts(log), seed=seed)) != log:
            problems.append(f"seed {seed} gave two different episodes: {_difference(log, again)}")
    both: list[Log] = [[env.reset(seed=seed)] for seed, env in enumerate(envs)]
    for turns in zip_longest(policy_texts(logs[0]), policy_texts(logs[1])):
        for env, log, action in zip(envs, both, turns, strict=True):
            if action is not None and not any(log[-1][2:4]):
                log.append(env.step(action))
    for seed, log in enumerate(both):
        if without_times(log) != logs[seed]:
            problems.append(f"seed {seed} plays otherwise beside another environment: {_difference(logs[seed], log)}")
    one, other = _elsewhere(subject, "0"), _elsewhere(subject, "31337", _LATER_S)
    if one != other:
        if _elsewhere(subject, "0") != one:
            problems.append("two new processes give different episodes: something is new in each, such as os.getpid()")
        elif _elsewhere(subject, "31337") != one:
            problems.append("PYTHONHASHSEED 0 and 31337 give different episodes: sort sets before they decide anything")
        else:
            problems.append("400 days later the episodes are others: draw dates from the seed or the task")
    elif digest(subject) != one:
        problems.append("a new process gives other episodes than this one")
    return judged(
        "determinism", "the same episodes again, interleaved, and in processes of other hash seeds and clocks", problems
    )


def _elsewhere(subject: Subject, hash_seed: str, later_s: float = 0.0) -> str:
    subject.beat(f"a process with PYTHONHASHSEED={hash_seed}" + (", 400 days later" if later_s else ""))
    about = json.dumps(sys.path), json.dumps([subject.env_id, subject.env_kwargs]), str(later_s)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", _IN_ANOTHER_PROCESS, *about]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    if done.returncode:
        raise RuntimeError(f"a new process cannot play it: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout.split()[-1]


def _difference(one: Sequence[Any], other: Sequence[Any]) -> str:
    values = (pair for a, b in zip(one, other, strict=False) for pair in zip(a, b, strict=True))
    different = next((pair for pair in values if pair[0] != pair[1]), (len(one), len(other)))
    return cut(f"{quoted(different[0], 120)} and then {quoted(different[1], 120)}")


def copies(subject: Subject) -> Record:
    """A copy continues as the original would, and neither changes the other."""
    problems, impossible = [], []
    ways = (("copy.deepcopy", copy.deepcopy), ("pickle", lambda env: pickle.loads(pickle.dumps(env))))
    for name, clone in ways:
        env = subject.make()
        log = subject.trace(env, subject.turns(env), seed=3)
        try:
            # After the first turn, where shared state still decides the rest, and in the middle.
            for at in sorted({min(1, len(log) - 2), len(log) // 2}):
                problems += [f"{name}: {one}" for one in _copied(subject, env, clone, log, at)]
        except _NoCopy as error:
            impossible.append(cut(f"{name}: {error}"))
    if len(impossible) == len(ways):
        raise SkippedCheck(f"it cannot be copied ({'; '.join(impossible)})")
    return judged("copies", "; not by ".join(["copies in the middle of an episode go on alone", *impossible]), problems)


class _NoCopy(Exception):
    """An environment cannot be copied in this way."""


def _copied(subject: Subject, env: TextEnv, clone: Callable[[TextEnv], TextEnv], log: Log, at: int) -> Iterator[str]:
    """Yield the faults of a copy that is made after so many turns of an episode."""
    actions, expected = policy_texts(log)[at:], log[at + 1 :]
    subject.trace(env, policy_texts(log)[:at], seed=3)
    try:
        other = clone(env)
    except Exception as error:
        raise _NoCopy(described(error)) from error
    if (rest := without_times([other.step(action) for action in actions])) != expected:
        yield f"the copy goes on in another way: {_difference(expected, rest)}"
    subject.trace(other, subject.turns(other), seed=4)
    if (rest := without_times([env.step(action) for action in actions])) != expected:
        yield f"playing the copy changes the original: {_difference(expected, rest)}"


def isolation(subject: Subject) -> Record:
    """The leftovers of an environment that was closed, and its changes to global state."""
    before = _outside()
    _live(subject)
    first = _held()
    for _ in range(3):
        _live(subject)
    after, now = _held(), _outside()
    problems = [f"it changes {name} of the process" for name in before if before[name] != now[name]]
    for name, held in after.items():
        new = sorted((Counter(held) - Counter(first[name])).elements())
        if len(held) - len(first[name]) >= GROWTH:
            problems.append(f"{len(new)} {name} stay behind when three of it were closed: {', '.join(new[:5])}")
    numbers = {name: float(len(held)) for name, held in after.items()}
    return judged("isolation", "nothing stays behind a closed environment, nothing global changes", problems, numbers)


def _live(subject: Subject) -> None:
    env = subject.make()
    for seed, actions in enumerate((subject.turns(env), random_turns(env), HOSTILE)):
        subject.trace(env, actions, seed=seed)
    env.close()


def _outside() -> dict[str, Any]:
    return {
        "the working directory": (os.getcwd(), sorted(os.listdir())),
        "os.environ": dict(os.environ),
        "the state of `random`": random.getstate(),
        "the state of `numpy.random`": repr(np.random.get_state()),
    }


def _held() -> dict[str, list[str]]:
    gc.collect()
    proc = Path("/proc/self")  # Linux; elsewhere threads and files alone are counted
    return {
        "threads": [thread.name for thread in threading.enumerate()],
        "processes": [child for file in proc.glob("task/*/children") for child in file.read_text().split()],
        "open files": os.listdir(proc / "fd") if proc.exists() else [],
        "temporary files": [str(path) for path in Path(tempfile.gettempdir()).rglob("*")],
    }


def speed(subject: Subject) -> Record:
    """CPU time of steps and resets, and memory."""
    env, split, begun = subject.env, subject.splits[0], time.process_time()
    tasks = subject.some(split, 200, 50)
    for index in tasks:
        subject.trace(env, (), (split, index))
    reset = (time.process_time() - begun) / len(tasks)
    spent, steps = 0.0, 0

    def clocked(actions: Iterable[str]) -> Iterator[str]:
        nonlocal begun
        begun = time.process_time()  # asked for its first turn: the reset is over
        yield from actions

    for index in tasks:
        for actions in (subject.turns(env), random_turns(env)):
            steps += len(subject.trace(env, clocked(actions), (split, index))) - 1
            spent += time.process_time() - begun
        if spent > subject.number(20, 3):
            break
    numbers = {
        "steps per CPU second": steps / max(spent, 1e-6),
        "CPU ms per reset": 1000 * reset,
    }
    numbers["peak memory in MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    slow = numbers["steps per CPU second"] < STEPS_PER_S
    text = f"{numbers['steps per CPU second']:,.0f} steps per CPU second, {1000 * reset:.2g} ms a reset"
    return judged("speed", text, [f"{text}; at least {STEPS_PER_S} are wanted"] if slow else [], numbers)
