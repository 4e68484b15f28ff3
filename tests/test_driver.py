"""The driver of a rollout: how busy it is goes to the log, and a full one is told once."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import LettersEnv, make_trainer  # noqa: E402

from agent_gym.trainers.hooks import driver  # noqa: E402


def burn(seconds: float) -> None:
    """Compute in Python for so many CPU seconds of the thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def told(folder: Path) -> tuple[list[str], dict[str, float]]:
    trainer = make_trainer(folder, max_steps=2, logging_steps=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    lines = [str(one.message) for one in caught if "driver is the bottleneck" in str(one.message)]
    return lines, next(entry for entry in trainer.state.log_history if "perf/env_cpu" in entry)


def test_a_full_driver_is_told_once_with_the_setting_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, log = told(tmp_path / "short")
    assert not lines and 0 < log["perf/driver_busy"] <= 1 and log["perf/turns_per_s"] > 0
    usual = LettersEnv.respond

    def slow(self: LettersEnv, action: str) -> object:
        burn(0.05)
        return usual(self, action)

    monkeypatch.setattr(LettersEnv, "respond", slow)
    monkeypatch.setattr(driver, "SECONDS", 0.0)
    monkeypatch.setattr(driver, "BUSY", 0.2)  # other work on the machine takes its part
    lines, log = told(tmp_path / "slow")
    assert len(lines) == 1 and "env_processes" in lines[0], log
    assert log["perf/env_cpu"] > 0.1
    assert log["perf/env_cpu"] * log["time/rollout"] > 0.05


def test_nothing_is_told_of_environments_that_only_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = LettersEnv.respond

    def slow(self: LettersEnv, action: str) -> object:
        time.sleep(0.5)
        return usual(self, action)

    monkeypatch.setattr(LettersEnv, "respond", slow)
    monkeypatch.setattr(driver, "SECONDS", 0.0)
    lines, log = told(tmp_path)
    assert not lines and log["perf/env_cpu"] + log["perf/driver_busy"] < 0.8
