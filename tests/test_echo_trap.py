"""The echo-trap monitor: a designed collapse, healthy runs, and what counts as repeated text."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

pytest.importorskip("trl")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agent_gym.trainers.hooks.echo_trap import LOG_KEYS, EchoTrapMonitor  # noqa: E402
from agent_gym.trainers.hooks.repetition import repeated_share  # noqa: E402


def measure(step: int, chance: random.Random, spread: float = 0.4, entropy: float = 1.0) -> dict[str, float]:
    """A step of a healthy run: noise of a factor of three either way, and now and then a single outlier."""
    values = {
        "reward_std": spread * math.exp(chance.uniform(-1.1, 1.1)),
        "entropy": entropy * math.exp(chance.uniform(-0.5, 0.5)),
        "grad_norm": 0.3 * math.exp(chance.uniform(-1.1, 1.1)),
        "rollout/repeated": chance.uniform(0.3, 0.6),
        "probe/mutual_information": chance.uniform(1.2, 1.8),
    }
    if step % 7 == 0:
        values |= {"grad_norm": 50.0, "reward_std": 0.0}
    return values


def collapse(chance: random.Random, steps: int = 120) -> tuple[list[dict[str, float]], list[float]]:
    """A run that falls into the trap: spread and entropy decay from step 30 on, success holds until 80."""
    run, success = [], []
    for step in range(steps):
        decay = math.exp(-max(0, step - 30) / 6)
        values = measure(step, chance, 0.4 * decay, 1.0 * decay)
        values["grad_norm"] *= 100.0 if step >= 85 else 1.0
        values["probe/mutual_information"] *= decay
        values["rollout/repeated"] = max(values["rollout/repeated"], 1 - 0.7 * decay)
        values |= {"reward": 0.8 + step / 1000, "eval_success": 0.8 if step < 80 else 0.8 * math.exp(-(step - 80) / 5)}
        run.append(values)
        success.append(0.8 if step < 80 else 0.8 * math.exp(-(step - 80) / 5))
    return run, success


def play(run: list[dict[str, float]]) -> dict[tuple[str, int], int]:
    """Return where each level was first reached."""
    monitor, found, messages = EchoTrapMonitor(), dict[tuple[str, int], int](), list[str]()
    for step, values in enumerate(run):
        messages += monitor.update(step, values)
        for kind, level in monitor.levels.items():
            if level:
                found.setdefault((kind, level), step)
    assert len(messages) == len(found)
    return found


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_a_collapse_is_seen_before_the_success_falls(seed: int) -> None:
    run, success = collapse(random.Random(seed))
    falls = next(step for step, rate in enumerate(success) if rate < success[0])
    found = play(run)
    assert set(found) == {(kind, level) for kind in LOG_KEYS for level in (1, 2)}
    for kind in ("reward_spread", "entropy", "repeated", "input_dependence"):
        assert 30 < found[kind, 1] < found[kind, 2] < falls
    assert falls < found["grad_norm", 1] < found["grad_norm", 2]  # the late sign
    assert falls < found["reward_gap", 1] < found["reward_gap", 2]


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_a_healthy_noisy_run_raises_nothing(seed: int) -> None:
    chance = random.Random(seed)
    # It learns meanwhile: spread and entropy halve.
    assert play([measure(step, chance, 0.4 / (1 + step / 200), 1.0 / (1 + step / 200)) for step in range(200)]) == {}


def test_levels_by_hand() -> None:
    monitor = EchoTrapMonitor()
    values = [0.8, 1.2] * 5 + [0.1, 0.09, 0.08]
    assert [monitor.update(step, {"reward_std": value}) for step, value in enumerate(values)] == [[]] * 13
    (warning,) = monitor.update(13, {"reward_std": 0.05})
    assert warning.startswith("echo trap: at step 13 reward_std is 0.05, and for 3 measurements it was below its bound")
    assert "now 0.1: the members of a group earn the same" in warning and monitor.levels["reward_spread"] == 1
    assert [len(monitor.update(step, {"reward_std": 0.0})) for step in range(14, 21)] == [0] * 6 + [1]
    assert monitor.levels["reward_spread"] == 2
    assert monitor.update(21, {"reward_std": 0.5}) == [] and monitor.levels["reward_spread"] == 0  # recovered
    assert [monitor.update(step, {"reward_std": 0.0}) for step in range(22, 32)] == [[]] * 10
    assert monitor.levels["reward_spread"] == 2  # reported once, still shown


def test_reward_that_rises_while_held_out_success_falls_is_an_alarm_and_a_fall_of_both_is_none() -> None:
    def run(reward: float) -> list[dict[str, float]]:
        steps = []
        for step in range(30):
            late = max(0, step - 15) / 15
            steps += [{"reward": 0.5 + reward * late}, {"eval_success": 0.6 - 0.5 * late}]
        return steps

    hacked, fallen = play(run(0.4)), play(run(-0.4))
    assert set(hacked) == {("reward_gap", 1), ("reward_gap", 2)} and fallen == {}


def test_odd_measurements() -> None:
    # What was not measured changes nothing.
    run: list[Any] = [*[1.0] * 10, 0.0, 0.0, math.nan, None, 0.0]
    assert play([{"entropy": value} for value in run]) == {("entropy", 1): 14}
    # A gradient without bounds is a spike and no part of the median.
    run = [*[1.0] * 10, *[math.inf] * 8, 11.0, 11.0]
    assert play([{"grad_norm": value} for value in run]) == {("grad_norm", 1): 12, ("grad_norm", 2): 19}
    # A policy that does not read its prompts at first has nothing to forget.
    run = [*[0.05] * 10, *[-0.01] * 20]
    assert play([{"probe/mutual_information": value} for value in run]) == {}
    # A run that starts without spread has nothing to lose.
    still, moving = {"reward_std": 0.0, "grad_norm": 0.0}, {"reward_std": 0.4, "grad_norm": 0.3}
    assert play([still] * 40 + [moving] * 40) == {}


@given(st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=6), st.integers(1, 4))
def test_repeated_share_counts_n_grams(sequences: list[list[int]], n: int) -> None:
    grams = [tuple(tokens[i : i + n]) for tokens in sequences for i in range(len(tokens) - n + 1)]
    assert repeated_share(sequences, n) == pytest.approx(1 - len(set(grams)) / len(grams) if grams else 0.0)
