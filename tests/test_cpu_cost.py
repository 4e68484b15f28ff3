"""The plugin that measures tests names the costly ones, children included, and fails a run above the cap of a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cpu_cost import CpuCost

TESTS = """
import subprocess, sys, time
import pytest

BURN = "import time\\nwhile time.process_time() < 0.6: pass"

def test_in_a_child():
    subprocess.run([sys.executable, "-c", BURN], check=True)

def test_asleep():
    time.sleep(0.3)

@pytest.mark.slow
def test_slow():
    subprocess.run([sys.executable, "-c", BURN], check=True)
"""


class Report(SimpleNamespace):
    """A report of pytest, as far as the plugin reads it."""

    def __init__(self, nodeid: str, **more: Any) -> None:
        super().__init__(nodeid=nodeid, **more)


def run_tests(folder: Path, chosen: str, workers: int) -> subprocess.CompletedProcess[str]:
    (folder / "test_some.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "cpu_cost", "-n", str(workers), "-m", chosen, str(folder)]
    env = {"PATH": "", "PYTHONPATH": str(Path(__file__).parent), "AGENT_GYM_TEST_CPU_CAP": "0.02"}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_above_the_cap_fails_the_run(workers: int, tmp_path: Path) -> None:
    done = run_tests(tmp_path, "not slow", workers)
    assert (done.returncode, "2 passed" in done.stdout) == (1, True), done.stdout + done.stderr
    assert "FAILED test_some.py takes " in done.stdout


def test_slow_tests_have_no_cap(tmp_path: Path) -> None:
    done = run_tests(tmp_path, "slow", 0)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr
    assert "test_some.py takes" not in done.stdout


def test_the_end_of_a_run_names_costly_tests_and_files() -> None:
    cost, lines = CpuCost(), list[str]()
    for file, spent in {"test_a.py": 50.0, "test_b.py": 30.0, "test_c.py": 170.0}.items():
        for part in "xy":
            cost.pytest_runtest_logreport(Report(f"{file}::test_{part}", cpu_seconds=spent / 2, has_cap=True))
    cost.pytest_runtest_logreport(Report("test_d.py::test_slow", cpu_seconds=100.0, has_cap=False))
    cost.pytest_runtest_logreport(Report("test_d.py::test_of_a_dead_worker"))
    cost.pytest_terminal_summary(
        SimpleNamespace(write_line=lines.append, section=lambda title, sep: lines.append(title))
    )
    assert lines[0] == "CPU: 5.8 minutes"
    assert lines[1:4] == [
        "  100.0 s test_d.py::test_slow",
        "   85.0 s test_c.py::test_x",
        "   85.0 s test_c.py::test_y",
    ]
    end = [line.partition(",")[0] for line in lines[8:]]
    assert end == ["FAILED test_c.py takes 170 CPU seconds", "warning: test_a.py takes 50 CPU seconds"]
