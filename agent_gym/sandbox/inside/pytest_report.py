"""A plugin of pytest for tests in a terminal: reports in the form of CTRF, and how each run of pytest ended.

It replaces pytest-json-ctrf, whose option `--ctrf FILE` test scripts of Harbor pass. The form is the one of
https://ctrf.io/docs/specification/overview. A run of pytest adds a line with its exit code to the file that PYTEST_ENDS
names, if it names one.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

_STATUS = {"passed": "passed", "failed": "failed", "skipped": "skipped"}


def pytest_addoption(parser: Any) -> None:
    """Know the option."""
    parser.addoption("--ctrf", metavar="FILE", help="write a report in the form of CTRF to this file")


def pytest_configure(config: Any) -> None:
    """Begin to listen."""
    config.pluginmanager.register(CtrfReport(config.getoption("--ctrf")), "ctrf-report")


class CtrfReport:
    """The outcome of each test."""

    def __init__(self, path: str | None) -> None:
        self.path, self.begun = path, time.time()
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        one = self.tests.setdefault(report.nodeid, {"name": report.nodeid, "status": "passed", "duration": 0})
        one["duration"] += round(report.duration * 1000)
        if report.outcome != "passed":
            one["status"] = _STATUS[report.outcome]
            one["message"] = str(report.longrepr)[:2000]

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if place := os.environ.get("PYTEST_ENDS"):
            with open(place, "a") as file:
                file.write(f"{int(exitstatus)}\n")
        if self.path is None:
            return
        counts = {name: sum(one["status"] == name for one in self.tests.values()) for name in _STATUS}
        summary = {"tests": len(self.tests), **counts, "pending": 0, "other": 0}
        summary |= {"start": round(self.begun * 1000), "stop": round(time.time() * 1000)}
        results = {"tool": {"name": "pytest"}, "summary": summary, "tests": list(self.tests.values())}
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        with open(self.path, "w") as file:
            json.dump({"results": results}, file)
