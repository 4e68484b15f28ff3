"""Test suites of source trees: pytest runs over a read-only copy in a terminal's sandbox."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from agent_gym.sandbox.terminal import LIMITS, Files, pack, shared_terminals

_RUN = Path(__file__).with_name("inside") / "pytest_run.py"
_OUTPUT = 1 << 22  # bytes of a report
_EMPTY: list[Files] = []
SETTINGS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
"""The files in which pytest looks for its settings, in its order."""
TEST_FOLDERS = frozenset({"tests", "test"})
_FIRST_FOLDER = re.compile(r"testing|test_?suites?|unit_?tests?|t|tests?_\w+|\w+_tests?")  # in a package these are code
_TEST_FILE = re.compile(r"(test_.*|.*_tests?|tests?|conftest)\.py")


def is_test(path: str) -> bool:
    """Whether a file of a tree belongs to its tests: by its name, or a folder's."""
    parts = PurePosixPath(path).parts
    if TEST_FOLDERS.intersection(parts[:-1]) or (len(parts) > 1 and _FIRST_FOLDER.fullmatch(parts[0])):
        return True
    return _TEST_FILE.fullmatch(parts[-1]) is not None


@dataclass(frozen=True)
class Suite:
    """Files of a tree, by their paths in it, and how its tests run."""

    tree: Mapping[str, bytes]
    roots: tuple[str, ...]  # folders of the tree from which modules are imported, "" for the tree's own
    files: tuple[str, ...]  # the test files
    config: str = ""  # the file with pytest's settings, if there is one


@dataclass(frozen=True)
class Outcomes:
    """How the tests of one run ended."""

    by_id: Mapping[str, str] = field(default_factory=dict)  # "passed", "failed", "error", "skipped" or "xfailed"
    texts: Mapping[str, str] = field(default_factory=dict)  # of failures, and of files that could not be collected
    broken: Collection[str] = ()  # files that could not be collected
    seconds: float = 0.0  # of CPU time
    status: str = "ok"
    error: str = ""  # that pytest wrote

    def passed(self) -> frozenset[str]:
        return frozenset(name for name, outcome in self.by_id.items() if outcome == "passed")


def run_suite(
    suite: Suite, wanted: Collection[str] | None = None, *, seconds: float = 60.0, texts: bool = False
) -> Outcomes:
    """Run tests of a suite, by their ids; None runs all of its files.

    A test without a report is not in the result: a run that was ended early has fewer tests, or none.

    Args:
        suite: the tree, which tests cannot change.
        wanted: ids as pytest writes them.
        seconds: CPU seconds, and half of the seconds by the clock, that the run may take.
        texts: whether the texts of failures are wanted.

    Raises:
        SandboxError: if the sandbox failed, and not the tests.
    """
    settings = {"roots": suite.roots, "files": suite.files, "texts": texts}
    settings |= {"wanted": None if wanted is None else sorted(wanted)}
    settings |= {"config": f"/tests/tree/{suite.config}" if suite.config else ""}
    packed = pack(
        {
            "/test.sh": "exec python3 -I -B /tests/run.py",
            "/run.py": _RUN.read_bytes(),
            "/run.json": json.dumps(settings),
            **{f"/tree/{path}": content for path, content in suite.tree.items()},
        },
        ("/tree",),
    )
    limits = replace(LIMITS, cpu_seconds=seconds, wall_seconds=2 * seconds, output_bytes=_OUTPUT, written_bytes=_OUTPUT)
    if not _EMPTY:
        _EMPTY.append(pack({}))
    with closing(shared_terminals().open(_EMPTY[0])) as terminal:
        done = terminal.test(packed, limits)
    return _read(done.stdout, done.cpu_seconds, done.status)


def _read(text: str, seconds: float, status: str) -> Outcomes:
    """Read a report that the tree's code may have written: anything else than a report is left out."""
    by_id: dict[str, str] = {}
    texts: dict[str, str] = {}
    broken: list[str] = []
    lines, error = list[str](), ""
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        report = json.loads(text.strip().rpartition("\n")[2])
        lines, error = [str(line) for line in report["lines"]], str(report["error"])
    for line in lines:
        try:
            name, phase, outcome, said = map(str, json.loads(line))
        except (ValueError, RecursionError, TypeError):
            continue
        if said:
            texts[name] = said
        if phase == "collect":
            broken.append(name)
        elif phase == "call":
            by_id[name] = outcome if by_id.get(name, "passed") == "passed" else by_id[name]
        elif outcome != "passed":
            by_id[name] = "skipped" if outcome == "skipped" else "error"
    return Outcomes(by_id, texts, broken, seconds, status, error)
