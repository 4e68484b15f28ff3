"""An episode stays on one thread from reset to close, wherever environments are played, and none is lost or waits."""

from __future__ import annotations

import faulthandler
import itertools
import re
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from process_tools import until
from rollout_tools import check_episode, counting, roll, scripted
from toy_envs import SlowWriter

from agent_gym import EnvFailure, Reply, RolloutError, ToolEnv, ToolResult, tool
from agent_gym.rollout import Budget, EpisodeSpec, Rollout, Runner
from agent_gym.rollout.env_threads import ConcurrencyLimit, EnvThread
from agent_gym.vector import SlotFailure, TextVectorEnv


class ThreadBoundEnv(ToolEnv):
    """Looks things up in SQLite, whose connections belong to one thread, and logs the thread of everything it does."""

    reward_weights: ClassVar[dict[str, float]] = {"answer": 1.0}
    seen: ClassVar[dict[int, list[tuple[str, int]]]] = {}  # by number: the id of one that is gone comes again
    numbers: ClassVar[Iterator[int]] = itertools.count()
    lock: ClassVar[threading.Lock] = threading.Lock()
    gate: ClassVar[threading.Event] = threading.Event()
    started: ClassVar[threading.Event] = threading.Event()

    def __init__(self, crash: int = -1, hold: bool = False, name: str = "", **kwargs: Any) -> None:
        self.db = sqlite3.connect(":memory:")
        self.db.execute("create table numbers (n int)")
        self.crash, self.hold, self.number = crash, hold, next(self.numbers)
        super().__init__({"train": range(1000)}, tools=[tool(self.look)], **kwargs)
        self.log("make")

    def log(self, what: str) -> None:
        with self.lock:
            self.seen.setdefault(self.number, []).append((what, threading.get_ident()))

    def begin(self, task: Any) -> str:
        self.log("reset")
        if self.hold:
            self.started.set()
            assert self.gate.wait(30)
        self.task = task
        self.db.execute("delete from numbers")
        self.db.execute("insert into numbers values (?)", [task])
        return f"Which number is it? {task}"

    def look(self) -> str | ToolResult:
        """Look the number up."""
        self.log("step")
        if self.crash == self.task:
            raise EnvFailure("crashed")
        try:
            return str(self.db.execute("select n from numbers").fetchone()[0])
        except sqlite3.Error as error:
            return ToolResult(f"Error: {error}", error=True)

    def answer(self, text: str) -> Reply:
        right = text == str(self.task)
        return Reply(terms={"answer": float(right)}, terminated=True, success=right)

    def expert_action(self) -> str:
        self.log("expert")
        (number,) = self.db.execute("select n from numbers").fetchone()
        return self.parser.render("look", {}) if self.turn < 2 else str(number)

    def close(self) -> None:
        self.log("close")
        self.db.close()


@pytest.fixture(autouse=True)
def toys() -> Iterator[None]:
    ThreadBoundEnv.seen.clear()
    ThreadBoundEnv.gate.clear()
    ThreadBoundEnv.started.clear()
    gymnasium.register("Toy/Bound-v0", entry_point=ThreadBoundEnv)
    yield
    del gymnasium.registry["Toy/Bound-v0"]


def bound(n: int, **kwargs: Any) -> list[EpisodeSpec]:
    return [EpisodeSpec("Toy/Bound-v0", kwargs, index=i) for i in range(n)]


def check_threads(closed: bool = True) -> int:
    """Everything that an environment did, it did in one thread; returns how many threads there were."""
    threads = set()
    for done in ThreadBoundEnv.seen.values():
        assert done[0][0] == "make"
        assert len({thread for _, thread in done}) == 1, done
        assert [what for what, _ in done].count("close") == closed, done
        threads.add(done[0][1])
    return len(threads)


@pytest.mark.parametrize("live", [4, 512])
def test_an_environment_lives_in_one_thread_and_so_does_its_expert(tokenizer: Any, live: int) -> None:
    runner = Runner(scripted(tokenizer), tokenizer, workers=2, max_live=live)
    rollout = Rollout(runner)
    episodes = rollout.add(bound(30))
    while rollout.unfinished:  # paused again and again, while other rollouts use the same threads
        before = rollout.unfinished
        rollout.drive(until=lambda before=before: rollout.unfinished < before)  # type: ignore[misc]
        runner.run(bound(3))
    for episode in [*episodes, *runner.run(bound(30))]:
        check_episode(episode, tokenizer)
        assert episode.success and len(episode.steps) == 3
        assert not any(call["error"] for step in episode.steps for call in step.tool_calls)
    check_threads(closed=False)
    assert len(ThreadBoundEnv.seen) <= (10 if live == 4 else 60), "environments are used again"
    runner.close()
    check_threads()


def test_environments_that_failed_or_were_replaced_are_closed_in_their_threads(tokenizer: Any) -> None:
    specs = [spec for i in range(12) for spec in (*bound(4, crash=2), *bound(3, name=f"kind {i}"))]
    episodes = roll(tokenizer, specs, max_live=4)
    assert [bool(episode.failure) for episode in episodes] == [False, False, True, False, *[False] * 3] * 12
    check_threads()
    assert {what for done in ThreadBoundEnv.seen.values() for what, _ in done} >= {"step", "close", "expert"}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_slots_of_a_vector_environment_stay_on_their_threads(mode: str) -> None:
    envs = TextVectorEnv([ThreadBoundEnv] * 6, mode, workers=4)
    envs.reset(seed=0)
    for _ in range(8):
        *_, infos = envs.step(envs.call("expert_action"))
        assert not any(infos.get("error", ()))
    with pytest.raises(SlotFailure):
        for _ in range(4):
            envs.envs[3].crash = envs.envs[3].task  # type: ignore[attr-defined]
            envs.step(envs.call("expert_action"))
    envs.reset(options={"reset_mask": np.array([True, False] * 3)})
    envs.close()
    assert check_threads() == 4


def test_ctrl_c_closes_environments_also_those_whose_reset_is_under_way(tokenizer: Any) -> None:
    runner = Runner(scripted(tokenizer), tokenizer)

    def interrupt() -> None:
        assert ThreadBoundEnv.started.wait(30)
        until(lambda: len(ThreadBoundEnv.seen) == 5)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        runner.run([*bound(3), *bound(2, hold=True)])
    threading.Timer(0.2, ThreadBoundEnv.gate.set).start()
    runner.close()
    assert len(ThreadBoundEnv.seen) == 5
    check_threads()
    assert runner.policy.pending == 0


def test_slow_and_hung_environments_hold_up_nobody(tokenizer: Any) -> None:
    """More of them than may run at the same time: they only wait, so that they do not count."""
    specs = [*counting(6, "Toy/Broken-v0", how="hang", when=0, tasks=(0, 1, 2)), *counting(20)]
    runner = Runner(scripted(tokenizer), tokenizer, Budget(max_seconds=3.0), workers=1)
    for _ in range(2):
        episodes = runner.run(specs)
        assert all(episode.success for episode in episodes[3:])
        for episode in episodes[:3]:
            assert str(episode.failure) == "EnvFailure: no answer from the environment in 3.0 s"
        assert max(episode.seconds for episode in episodes[3:]) < min(episode.seconds for episode in episodes[:3])
    runner.close()


@pytest.mark.parametrize("continuous", [True, False])
def test_time_that_the_policy_takes_cuts_an_episode_and_fails_no_environment(tokenizer: Any, continuous: bool) -> None:
    """The deadline passes while the policy writes: the turns before it, which the environment answered, count."""
    policy = scripted(tokenizer, lambda episode: "on")
    poll, policy.continuous = policy.poll, continuous
    policy.poll = lambda: (time.sleep(1.0), poll())[1]
    runner = Runner(policy, tokenizer, Budget(max_seconds=3.5), workers=2)
    for episode in runner.run(counting(4)):
        assert episode.failure is None and episode.truncation == "seconds"
        assert 1 <= len(episode.steps) <= 3 and episode.reward == 0.25 * len(episode.steps)
    runner.close()


@pytest.mark.parametrize("processes", [0, 1])
def test_a_silent_environment_is_named_on_stderr(
    tokenizer: Any, processes: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agent_gym.rollout.runner.SLOW_CALL_S", 0.4)
    waiting = {"how": "hang", "when": 0, "seconds": 1.5, "tasks": (1, 2)}
    specs = [EpisodeSpec("Toy/Broken-v0", waiting, seed=9, index=i) for i in range(4)]
    roll(tokenizer, specs, lambda episode: "stop", env_processes=processes)
    lines = [line for line in capsys.readouterr().err.splitlines() if "has not answered" in line]
    wanted = (
        r"agent-gym: Toy/Broken-v0, task train/[12], seed 9: step 0 has not answered for [\d.]+ s, since \d\d:\d\d:"
    )
    named = [line for line in lines if re.match(wanted, line)]
    # In one process they have their turns one after the other. In threads they wait together, or one begins late enough
    # to have lines of its own.
    both = len({line.split("task ")[1][:7] for line in named}) == 2
    assert named and (processes or both or any("(1 more like it)" in line for line in named))
    assert all("no max_seconds is set" in line for line in named)
    monkeypatch.setattr("agent_gym.rollout.runner.SLOW_CALL_S", 60.0)
    roll(tokenizer, specs[1:2], lambda episode: "stop", Budget(max_seconds=30.0))
    assert "answered" not in capsys.readouterr().err


def test_a_call_that_is_given_up_before_it_began_never_does() -> None:
    line, gate, over, done = ConcurrencyLimit(1), threading.Event(), threading.Semaphore(0), []
    first, second = (EnvThread(lambda *_: None, line, f"test-{i}") for i in range(2))  # type: ignore[arg-type,return-value]

    def answer(result: Any, error: Any) -> None:
        done.append(result)
        over.release()

    first.call(gate.wait, answer)
    second.call(lambda: "never", answer)
    second.give_up()
    first.give_up()
    assert first.hangs and not second.hangs
    second.call(lambda: "then", answer)
    assert over.acquire(timeout=10) and done == ["then"]
    gate.set()
    for thread in (first, second):
        thread.retire()
        assert thread.join(10)


@contextmanager
def waiting_calls(n: int, call: Callable[[int], Any]) -> Iterator[tuple[ConcurrencyLimit, Callable[[], None]]]:
    """Begin calls with 0 to n-1, each in a thread; yield their line, and a function that waits for all answers."""
    line, answered = ConcurrencyLimit(32), threading.Semaphore(0)
    threads = [EnvThread(lambda *_: None, line, f"test-{i}") for i in range(n)]  # type: ignore[arg-type,return-value]
    for i, thread in enumerate(threads):
        thread.call(partial(call, i), lambda *_: answered.release())

    def finish() -> None:
        for _ in threads:
            while not answered.acquire(timeout=0.02):
                line.admit()

    yield line, finish
    for thread in threads:
        thread.retire()
        assert thread.join(10)


def test_threads_ask_less_often_for_pythons_lock_while_many_calls_wait() -> None:
    usual, found = sys.getswitchinterval(), []
    for n in (64, 400):
        gate = threading.Event()
        with waiting_calls(n, lambda _, gate=gate: gate.wait(60)) as (line, finish):  # type: ignore[misc]
            while line.admit():
                time.sleep(0.01)
            found.append(sys.getswitchinterval())
            gate.set()
            finish()
    assert found[0] == usual < 4 * usual < found[1]
    assert sys.getswitchinterval() == usual, "the interval stays long after the calls"


@pytest.mark.slow
def test_a_thousand_waiting_calls_cost_what_sixty_four_do() -> None:
    def cost(n: int) -> float:
        def call(i: int) -> None:
            time.sleep(0.2 * i / n)
            sum(range(30_000))

        began = time.process_time()
        with waiting_calls(n, call) as (_, finish):
            finish()
        return (time.process_time() - began) / n

    few, many = (min(cost(n) for _ in range(3)) for n in (64, 1024))
    assert many < 1.5 * few


def test_a_system_with_few_threads_plays_fewer_episodes_at_once(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, room = threading.Thread.start, 5

    def limited(self: threading.Thread) -> None:
        nonlocal room
        room -= self.name.startswith("agent-gym-env-")
        if room < 0:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    episodes = roll(tokenizer, counting(30))
    assert all(episode.success for episode in episodes)
    room = 0
    with pytest.raises(RolloutError, match="no thread for an environment: can't start new thread"):
        roll(tokenizer, counting(1))


@pytest.mark.parametrize("n", [600, pytest.param(2_500, marks=pytest.mark.slow)])
def test_thousands_of_short_episodes(tokenizer: Any, n: int) -> None:
    """No wake-up is lost: a thread whose next call was dropped would wait for ever."""
    before = set(threading.enumerate())
    faulthandler.dump_traceback_later(240, exit=True, file=sys.__stderr__)
    try:
        runner = Runner(SlowWriter(lambda episode: "x", lambda text: [2]), tokenizer, Budget(max_turns=1), workers=4)
        for live in (512, 512, 96, 7):
            runner.max_live = live
            specs = [EpisodeSpec("Toy/Counting-v0", seed=i, index=i % 50) for i in range(n)]
            ended: list[Any] = []
            episodes = runner.run(specs, on_end=ended.append)
            assert len(ended) == len(episodes) == n
            assert all(len(episode.steps) == 1 and episode.truncation == "turns" for episode in episodes)
        runner.close()
    finally:
        faulthandler.cancel_dump_traceback_later()
    for thread in {*threading.enumerate()} - before:
        thread.join(30)
        assert not thread.is_alive()
