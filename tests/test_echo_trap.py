"""The echo-trap monitor: a designed collapse, healthy runs, and a real trainer that is stopped and resumed."""

from __future__ import annotations

import math
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers.echo_trap import LOG_KEYS, Alarm, EchoTrapCallback, EchoTrapMonitor  # noqa: E402
from agent_gym.trainers.grpo import repeated_share  # noqa: E402


def measure(step: int, chance: random.Random, spread: float = 0.4, entropy: float = 1.0) -> dict[str, float]:
    """A step of a healthy run: noise of a factor of three either way, and now and then a single outlier."""
    values = {
        "reward_spread": spread * math.exp(chance.uniform(-1.1, 1.1)),
        "entropy": entropy * math.exp(chance.uniform(-0.5, 0.5)),
        "grad_norm": 0.3 * math.exp(chance.uniform(-1.1, 1.1)),
        "repeated": chance.uniform(0.3, 0.6),
    }
    if step % 7 == 0:
        values |= {"grad_norm": 50.0, "reward_spread": 0.0}
    return values


def collapse(chance: random.Random, steps: int = 120) -> tuple[list[dict[str, float]], list[float]]:
    """A run that falls into the trap: spread and entropy decay from step 30 on, success holds until 80."""
    run, success = [], []
    for step in range(steps):
        decay = math.exp(-max(0, step - 30) / 6)
        values = measure(step, chance, 0.4 * decay, 1.0 * decay)
        values["grad_norm"] *= 100.0 if step >= 85 else 1.0
        values["repeated"] = max(values["repeated"], 1 - 0.7 * decay)
        run.append(values)
        success.append(0.8 if step < 80 else 0.8 * math.exp(-(step - 80) / 5))
    return run, success


def play(monitor: EchoTrapMonitor, run: list[dict[str, float]], first: int = 0) -> list[Alarm]:
    return [alarm for step, values in enumerate(run, first) for alarm in monitor.update(step, **values)]


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_a_collapse_is_seen_before_the_success_falls(seed: int) -> None:
    run, success = collapse(random.Random(seed))
    falls = next(step for step, rate in enumerate(success) if rate < success[0])
    found = {(alarm.kind, alarm.level): alarm.step for alarm in play(EchoTrapMonitor(), run)}
    assert set(found) == {(kind, level) for kind in LOG_KEYS for level in (1, 2)}
    for kind in ("reward_spread", "entropy", "repeated"):
        assert 30 < found[kind, 1] < found[kind, 2] < falls
    assert falls < found["grad_norm", 1] < found["grad_norm", 2]  # the late sign


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_a_healthy_noisy_run_raises_nothing(seed: int) -> None:
    chance = random.Random(seed)
    # It learns meanwhile: spread and entropy halve.
    run = [measure(step, chance, 0.4 / (1 + step / 200), 1.0 / (1 + step / 200)) for step in range(200)]
    monitor = EchoTrapMonitor()
    assert play(monitor, run) == []
    assert set(monitor.levels.values()) == {0}


def test_levels_by_hand() -> None:
    monitor = EchoTrapMonitor(warmup=2, warn_after=2, patience=3)
    assert play(monitor, [{"reward_spread": value} for value in (0.8, 1.2, 0.1, 0.09)]) == []
    [warning] = monitor.update(4, reward_spread=0.05)
    assert (warning.kind, warning.level, warning.step) == ("reward_spread", 1, 4)
    assert "reward_std is 0.05" in warning.message and "below its bound, now 0.1" in warning.message
    [critical] = monitor.update(5, reward_spread=0.0)
    assert (critical.level, monitor.levels["reward_spread"]) == (2, 2)
    assert monitor.update(6, reward_spread=0.5) == []
    assert monitor.levels["reward_spread"] == 0  # recovered
    again = [monitor.update(step, reward_spread=0.0) for step in (7, 8, 9)]
    assert (again, monitor.levels["reward_spread"]) == ([[], [], []], 2)  # reported once, still shown


@pytest.mark.parametrize("absent", [None, math.nan])
def test_what_was_not_measured_changes_nothing(absent: float | None) -> None:
    monitor = EchoTrapMonitor(warmup=1, warn_after=2, patience=2)
    run = [{"entropy": 1.0}, {"entropy": 0.0}, {"entropy": absent}, {"entropy": 0.0}]
    assert [(alarm.kind, alarm.step) for alarm in play(monitor, run)] == [("entropy", 3)]
    assert set(monitor.levels.values()) == {0, 2}


def test_a_gradient_without_bounds_is_a_spike_and_no_part_of_the_median() -> None:
    monitor = EchoTrapMonitor(warmup=2, warn_after=3, patience=3)
    run = [{"grad_norm": value} for value in (1.0, 1.0, math.inf, math.inf, 11.0)]
    assert [alarm.step for alarm in play(monitor, run)] == [4]


def test_a_run_that_starts_without_spread_has_nothing_to_lose() -> None:
    still, found = {"reward_spread": 0.0, "grad_norm": 0.0}, {"reward_spread": 0.4, "grad_norm": 0.3}
    assert play(EchoTrapMonitor(), [still] * 40 + [found] * 40) == []


@pytest.mark.parametrize("limits", [{"warmup": 0}, {"warn_after": 0}, {"warn_after": 11}, {"patience": 2}])
def test_impossible_settings_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="1 <= warn_after <= patience"):
        EchoTrapCallback(**limits)
    with pytest.raises(ConfigError, match="'halt'; allowed: warn, stop"):
        EchoTrapCallback("halt")


# Repeated text.


@given(st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=6), st.integers(1, 4))
def test_repeated_share_counts_n_grams(sequences: list[list[int]], n: int) -> None:
    grams = [tuple(tokens[i : i + n]) for tokens in sequences for i in range(len(tokens) - n + 1)]
    share = repeated_share(sequences, n)
    assert share == pytest.approx(1 - len(set(grams)) / len(grams) if grams else 0.0)
    if grams:
        assert 0.5 <= repeated_share(sequences * 2, n) < 1


# In a real trainer.


class Reporter(TrainerCallback):
    """Stands for TensorBoard and its like."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
        self.logs.append(dict(logs))


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.weight * x - labels) ** 2).mean()}


class Collapsing(Trainer):
    """Logs a spread that is gone from step 6 on, as a trainer of agents would."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs["reward_std"] = 1.0 if self.state.global_step < 6 else 0.0
        super().log(logs, start_time)


def train(folder: Path, steps: int, action: str, resume: bool = False) -> tuple[Collapsing, Reporter, list[str]]:
    reporter = Reporter()
    arguments = TrainingArguments(
        str(folder), max_steps=steps, logging_steps=1, save_steps=8, report_to=[], disable_tqdm=True, use_cpu=True
    )
    rows = [{"x": torch.ones(1), "labels": torch.ones(1)} for _ in range(4)]
    trainer = Collapsing(Line(), arguments, train_dataset=rows, callbacks=[reporter])
    watch = EchoTrapCallback(action, warmup=3, warn_after=2, patience=5)
    trainer.callback_handler.callbacks.insert(0, watch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train(resume_from_checkpoint=resume or None)
    return trainer, reporter, [str(w.message) for w in caught if "echo trap" in str(w.message)]


def levels(trainer: Trainer) -> list[int]:
    key = "echo_trap/reward_spread"
    return [log[key] for log in trainer.state.log_history if key in log]


def test_a_trainer_stops_and_its_reports_show_why(tmp_path: Path) -> None:
    trainer, reporter, messages = train(tmp_path, 20, "stop")
    assert trainer.state.global_step == 10
    assert levels(trainer) == [0] * 6 + [1, 1, 1, 2]
    assert [log["echo_trap/reward_spread"] for log in reporter.logs if "loss" in log] == levels(trainer)
    assert not any("echo_trap/reward_spread" in log for log in reporter.logs if "loss" not in log)
    assert [text.split(": ")[1].split(",")[0] for text in messages] == [
        "at step 7 reward_std is 0",
        "at step 10 reward_std is 0",
        "training stops at step 10",
    ]


def test_a_resumed_run_remembers(tmp_path: Path) -> None:
    first, _, early = train(tmp_path, 8, "warn")  # warned, not yet critical
    assert (first.state.global_step, len(early)) == (8, 1)
    resumed, _, late = train(tmp_path, 20, "stop", resume=True)
    assert resumed.state.global_step == 10
    assert levels(resumed) == [0] * 6 + [1, 1, 1, 2]
    assert [("training stops" in text) for text in late] == [False, True]  # and the warning is not given again
