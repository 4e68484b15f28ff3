"""A plugin of pytest: the CPU seconds of each test with the processes that it started, and a cap for each file.

Wall-clock time depends on other programs of the machine, CPU time much less. A process that is started by one test and
ended by another counts where it ends. Tests that are marked slow have no cap.

A file above `CAP_S` is named at the end of a run; the run fails where one takes `MARGIN` times as much. Both grow with
the time that a fixed piece of work takes on this machine now, so that neither a slow nor a busy machine fails a run.
"""

from __future__ import annotations

import hashlib
import os
import resource
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

CAP_S = float(os.environ.get("AGENT_GYM_TEST_CPU_CAP", "40"))
MARGIN = 4.0  # some files are above the cap still
SHOWN = 25
_USUAL_S = 0.014  # of the fixed work on an AMD EPYC with nothing else to do


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def slowness() -> float:
    """Return how many times the usual CPU time a fixed piece of work takes here, at least 1: the best of five."""
    times = []
    for _ in range(5):
        start = cpu_seconds()
        text = b""
        for i in range(20_000):
            text = hashlib.sha256(text + str(i).encode()).digest()
        times.append(cpu_seconds() - start)
    return max(1.0, min(times) / _USUAL_S)


class CpuCost:
    """Adds the CPU seconds of a phase to its report, which workers of xdist send to the main process, and sums them."""

    def __init__(self) -> None:
        self._before = 0.0
        self.tests: Counter[str] = Counter()
        self.files: Counter[str] = Counter()
        self.cap = CAP_S

    def pytest_runtest_logstart(self) -> None:
        self._before = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        now = cpu_seconds()
        report: Any = yield
        report.cpu_seconds, self._before = now - self._before, now
        report.has_cap = item.get_closest_marker("slow") is None
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        spent = getattr(report, "cpu_seconds", 0.0)  # a worker that died has reported none
        self.tests[report.nodeid] += spent
        if getattr(report, "has_cap", False):
            self.files[report.nodeid.partition("::")[0]] += spent

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        self.cap = CAP_S * slowness() if self.files.total() > CAP_S else CAP_S
        worst = max(self.files.values(), default=0.0)
        if session.exitstatus == pytest.ExitCode.OK and worst > MARGIN * self.cap:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.tests.total() < 1 and max(self.files.values(), default=0.0) <= self.cap:
            return
        write = terminalreporter.write_line
        terminalreporter.section(f"CPU: {self.tests.total() / 60:.1f} minutes", sep="=")
        for name, spent in self.tests.most_common(SHOWN):
            if spent >= 1:
                write(f"{spent:7.1f} s {name}")
        for name, spent in self.files.most_common():
            if spent > self.cap:
                word = "FAILED" if spent > MARGIN * self.cap else "warning:"
                write(f"{word} {name} takes {spent:.0f} CPU seconds, more than {self.cap:.0f} (tests/cpu_cost.py)")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuCost(), "cpu-cost")
