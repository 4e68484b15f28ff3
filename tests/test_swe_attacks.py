"""What a policy might do for the reward of a software task without making the change: none of it is paid.

The attacks are those of data/swe_attacks.toml: files outside the package, and code in it, which runs in the process of
the tests. They run in the net of the hostile programs.
"""

from __future__ import annotations

import base64
import os
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
from sandbox_net import in_net
from swe_tools import shared_function, shared_task

from agent_gym.envs.swe.tasks import read_task

pytestmark = pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="a terminal needs Linux with bash")

_READ = tomllib.loads(Path(__file__).with_name("data").joinpath("swe_attacks.toml").read_text())
_FORGE = """import _pytest.reports
_made = _pytest.reports.TestReport.from_item_and_call.__func__
def _passing(cls, item, call):
    report = _made(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
_pytest.reports.TestReport.from_item_and_call = classmethod(_passing)"""
_NAMES = ("test_case_does_not_count", "test_longest", "test_longest_of_nothing")
_IDS = [f"tests/test_wordlets.py::{name}" for name in _NAMES]
# Where code of the package runs: as it is imported, in the first call, or in another module that it imports.
_PLACES = {
    "as it is imported": "cat >> src/wordlets/__init__.py <<'END'\n\n{code}\nEND",
    "in a call": "cat >> src/wordlets/__init__.py <<'END'\n_code = {code!r}\n"
    "def longest(text):\n    exec(_code, globals())\n    return 'x'\n_old = counts\n"
    "def counts(text):\n    if text == 'A a': exec(_code, globals())\n    return _old(text)\nEND",
    "in a module of its own": "cat > src/wordlets/_core.py <<'END'\nfrom collections import Counter\n"
    "def counts(text):\n    return dict(Counter(text.split()))\n{code}\nEND\n"
    "echo 'from wordlets._core import *' >> src/wordlets/__init__.py",
}
_BODY = """cat > /tmp/body <<'END'
{code}
END
python3 - <<'END'
from pathlib import Path
path = Path("src/wordlets/__init__.py")
path.write_text(path.read_text().replace("raise NotImplementedError", Path("/tmp/body").read_text()))
END"""
_NET = 25  # attacks in one net, which has 15 minutes
_SLOW = ("sleep", "a loop")  # each takes the time of a run


def attacks() -> dict[str, str]:
    """All attacks, by name."""
    found = {f"outside: {name}": text.replace("{forge}", _FORGE) for name, text in _READ["outside"].items()}
    for name, text in _READ["inside"].items():
        code = text.replace("{forge}", _FORGE).replace("{ids}", repr(_IDS))
        for place, command in _PLACES.items():
            filled = command.replace("{code!r}", repr(code)).replace("{code}", code)
            found[f"inside, {place}: {name}"] = filled
    return found


_QUICK = (
    "outside: conftest of the package",
    "outside: sitecustomize above the package",
    "outside: compiled code",
    "outside: the package as a link",
    "outside: another pytest",
    "outside: a pipe in the package",
    "inside, as it is imported: reports that pass",
    "inside, as it is imported: exit",
    "inside, as it is imported: the reporter",
    "inside, in a module of its own: the expected values of the file",
    "inside, as it is imported: a text that is equal to anything",
)


@pytest.fixture(scope="module")
def task() -> Path:
    return shared_task()


def attacks_on_a_function() -> dict[str, str]:
    """Attacks on the task of one function: commands, bodies, and the code of the other task in a body."""
    found = {f"command: {name}": text for name, text in _READ["function"].items()}
    ids = repr(_IDS[1:])
    bodies = _READ["bodies"] | {f"code, {name}": f"exec({text!r}, globals())" for name, text in _READ["inside"].items()}
    for name, text in bodies.items():
        code = text.replace("{forge}", _FORGE.replace("\n", "\\n") if name.startswith("code") else _FORGE)
        found[f"body: {name}"] = _BODY.format(code=textwrap.indent(code.replace("{ids}", ids), "    ").lstrip())
    return found


def played(task: Path, commands: dict[str, str], bare: bool = False, level: str = "names") -> dict[str, dict[str, Any]]:
    files = {
        path.relative_to(task).as_posix(): base64.b64encode(path.read_bytes()).decode()
        for path in task.rglob("*")
        if path.is_file()
    }
    lines = in_net("swe_judge.py", {"files": files, "attacks": commands, "bare": bare, "level": level})
    return {line["name"]: line for line in lines}


def honest(task: Path) -> str:
    return f"git apply - <<'END'\n{read_task(task).patch}END"


def test_no_attack_of_the_quick_ones_is_paid(task: Path) -> None:
    commands = {name: attacks()[name] for name in _QUICK} | {"honest": honest(task)}
    lines = played(task, commands)
    assert lines.pop("honest")["reward"] == 1.0, "the net lets an honest change be paid"
    assert {name: line["reward"] for name, line in lines.items()} == dict.fromkeys(_QUICK, 0.0), lines
    told = ("inside, as it is imported: reports that pass", "inside, as it is imported: the reporter")
    assert all(lines[name]["metrics"]["forged"] == 1.0 for name in told), lines


def test_without_variants_forgers_would_be_paid(task: Path) -> None:
    names = ("reports that pass", "the reporter", "tests that do not run", "the expected values of the file")
    commands = {name: attacks()[f"inside, as it is imported: {name}"] for name in names}
    assert {name: line["reward"] for name, line in played(task, commands, bare=True).items()} == dict.fromkeys(
        names, 1.0
    )


def paid(task: Path, commands: dict[str, str], level: str = "names") -> dict[str, Any]:
    """Play attacks, an honest change with each lot of them, and return those that had a reward."""
    found: dict[str, Any] = {}
    for some in [list(commands.items())[at : at + _NET] for at in range(0, len(commands), _NET)]:
        lines = played(task, {**dict(some), "honest": honest(task)}, level=level)
        assert lines.pop("honest")["reward"] == 1.0 and len(lines) == len(some)
        found |= {name: line for name, line in lines.items() if line["reward"] != 0.0}
    return found


def test_no_command_for_the_body_of_a_function_is_paid() -> None:
    commands = {name: text for name, text in attacks_on_a_function().items() if name.startswith("command: ")}
    assert paid(shared_function(), commands, "function") == {}


@pytest.mark.slow
def test_no_body_of_a_function_is_paid() -> None:
    commands = attacks_on_a_function()
    quick = {name: text for name, text in commands.items() if name.rpartition(", ")[2] not in _SLOW}
    assert len(quick) >= 80 and paid(shared_function(), quick, "function") == {}


@pytest.mark.slow
def test_no_attack_is_paid(task: Path) -> None:
    commands = {name: text for name, text in attacks().items() if name.rpartition(": ")[2] not in _SLOW}
    assert len(commands) >= 100 and paid(task, commands) == {}


@pytest.mark.slow
def test_no_attack_that_waits_is_paid(task: Path) -> None:
    commands = {name: text for name, text in attacks().items() if name.rpartition(": ")[2] in _SLOW}
    assert {line["reward"] for line in played(task, commands).values()} == {0.0}
