"""Runs pytest over a source tree, as the tests of a terminal: /tests/run.json says which tests.

Standard output says how each ended, as JSON.

The tree is in /tests/tree, which nobody can change, and so are the tests and their settings. The code of the tree runs
in the process of pytest, and can forge its report: a reader has to ask for something that a forger cannot
know (agent_gym/sandbox/verdicts.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any

_TREE, _PYTEST = "/tests/tree", "/usr/local/lib/pytest"
_TEXT = 3000  # characters of a failure
_CHANGED = ("addopts=", "required_plugins=", "strict=false", "strict_config=false", "strict_markers=false")


def main() -> None:
    """Run pytest in a separate process, and print its report, as a line of JSON."""
    with open("/tests/run.json") as file:
        settings = json.load(file)
    paths = [_PYTEST, *(f"{_TREE}/{root}".rstrip("/") for root in settings["roots"])]
    if len(sys.argv) > 1:
        sys.exit(_pytest(settings, paths, int(sys.argv[1])))
    with tempfile.TemporaryFile(dir="/tmp") as reports, tempfile.TemporaryFile(dir="/tmp") as errors:
        words = [sys.executable, "-I", "-B", "/tests/run.py", str(reports.fileno())]
        code = subprocess.call(
            words,
            cwd=_TREE,
            env={**os.environ, "PYTHONPATH": ":".join(paths)},  # of the processes that tests start
            pass_fds=[reports.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        reports.seek(0)
        lines = reports.read().decode("utf-8", "replace").splitlines()
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TEXT))
        error = errors.read().decode("utf-8", "replace")
    print(json.dumps({"code": code, "lines": lines, "error": error}))


def _pytest(settings: dict[str, Any], paths: list[str], descriptor: int) -> int:
    sys.path[:0] = paths
    import pytest

    os.set_inheritable(descriptor, False)
    config = settings["config"] or "/dev/null"
    with open(config, encoding="utf-8", errors="replace") as file:
        # Alone of addopts: the others may need plugins that are not here.
        found = re.search(r"--import-mode[= \"',]+(prepend|append|importlib)", file.read())
    options = [f"--import-mode={found[1]}"] if found else []
    options += ["-p", "no:cacheprovider", "-c", config, f"--rootdir={_TREE}", f"--confcutdir={_TREE}", "-q"]
    # Settings and marks of plugins that are not here are no errors.
    options += ["--continue-on-collection-errors", *(word for one in _CHANGED for word in ("-o", one))]
    options += [f"-Wignore::pytest.{name}" for name in ("PytestConfigWarning", "PytestUnknownMarkWarning")]
    wanted = settings["wanted"]
    files = settings["files"] if wanted is None else sorted({one.partition("::")[0] for one in wanted})
    reporter = _Reporter(descriptor, None if wanted is None else frozenset(wanted), settings["texts"])
    return int(pytest.main([*options, *files], plugins=[reporter]))


class _Reporter:
    """Selects tests by their ids, and writes down how each phase of one ended."""

    def __init__(self, descriptor: int, wanted: frozenset[str] | None, texts: bool) -> None:
        self.descriptor, self.wanted, self.texts = descriptor, wanted, texts

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.wanted is not None:
            items[:] = [item for item in items if item.nodeid in self.wanted]

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome == "failed":
            self._write(report.nodeid, "collect", "failed", str(report.longrepr)[-_TEXT:])

    def pytest_runtest_logreport(self, report: Any) -> None:
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        text = str(report.longrepr)[-_TEXT:] if self.texts and outcome == "failed" else ""
        self._write(report.nodeid, report.when, outcome, text)

    def _write(self, *parts: str) -> None:
        os.write(self.descriptor, json.dumps(parts).encode() + b"\n")


if __name__ == "__main__":
    main()
