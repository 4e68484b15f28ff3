"""The verdict on a session: which files count, the tree that is tested, and the tests' result."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from agent_gym.envs.swe.tasks import SweTask
from agent_gym.sandbox.suites import SETTINGS, Suite, is_test
from agent_gym.sandbox.terminal import LIMITS, Terminal, pack
from agent_gym.sandbox.verdicts import RUNS, SuiteVerdict, judge

_EXPORT = Path(__file__).with_name("export.py")
_OUTPUT = 1 << 22
_SECRET = secrets.token_bytes(32)  # so that the same change has the same lots in this process, and nobody knows them
_NEVER = frozenset({"sitecustomize.py", "usercustomize.py", "conftest.py"})  # read by Python or pytest on their own
_UNREAD = frozenset({".pth", ".pyc", ".pyo", ".so", ".pyd"})


class NotExported(Exception):
    """The policy's files cannot be read, by its own doing; the text says why."""


def changes_of(task: SweTask, terminal: Terminal) -> dict[str, bytes | None]:
    """End a session, and return the package's files that it changed, None for a deleted one.

    Raises:
        NotExported: if they are too many or too large.
        SandboxError: if the sandbox failed.
    """
    before = {path: hashlib.sha256(data).hexdigest() for path, data in task.before.items() if counts(task, path)}
    asked = json.dumps({"own": task.own, "before": before})
    program: dict[str, str | bytes] = {
        "/test.sh": "exec python3 -I -B /tests/export.py",
        "/export.py": _EXPORT.read_bytes(),
    }
    tests = pack({**program, "/before.json": asked}, ())
    done = terminal.test(tests, replace(LIMITS, output_bytes=_OUTPUT, written_bytes=_OUTPUT))
    try:
        told: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
        if "error" in told:
            raise NotExported(str(told["error"]))
        changed = {str(path): base64.b64decode(text) for path, text in told["changed"].items()}
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise NotExported(f"its files cannot be read: {done.status}, {error}") from None
    kept = {path: data for path, data in changed.items() if counts(task, path) and _text(data)}
    return {**kept, **{str(path): None for path in told["deleted"]}}


def counts(task: SweTask, path: str) -> bool:
    """Whether a file belongs to the package, and is none that Python or pytest would read on its own."""
    parts = PurePosixPath(path).parts
    return (
        any(path == own or (own.endswith("/") and path.startswith(own)) for own in task.own)
        and ".." not in parts
        and not is_test(path)
        and parts[-1] not in _NEVER
        and PurePosixPath(path).suffix not in _UNREAD
        and "__pycache__" not in parts
    )


def _text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def suite_with(task: SweTask, changes: Mapping[str, bytes | None]) -> Suite:
    """Return the tree that is tested: the files at the start with the changes, and the hidden tests over them."""
    tree = {path: data for path, data in task.before.items() if not is_test(path) and path not in SETTINGS}
    changed = {**tree, **changes, **task.suite.tree}
    return replace(task.suite, tree={path: data for path, data in changed.items() if data is not None})


def judged(task: SweTask, changes: Mapping[str, bytes | None], runs: int = RUNS) -> SuiteVerdict:
    """Judge changed files; without a change no test runs, since the outcome is known.

    Raises:
        SandboxError: if the sandbox failed, and not the tests.
    """
    if not changes:
        return SuiteVerdict(False, 0.0, 1.0, False, 0.0)
    digest = hashlib.sha256(_SECRET + repr(sorted(changes.items())).encode()).hexdigest()
    return judge(suite_with(task, changes), task.hidden, runs=runs, lots=random.Random(digest))
