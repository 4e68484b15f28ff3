"""Hostile programs get nothing, and leave nothing behind. They run inside of an outer net (sandbox_net.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_programs import QUICK, SLOW
from sandbox_net import ROOT, judged

from agent_gym.sandbox.inside import kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the local sandbox is Linux's")

LIMITS = {"cpu_seconds": 1, "wall_seconds": 3, "memory_mb": 256}


def data_folder() -> dict[str, str]:
    """The programs of the data folder."""
    folder = Path(os.environ.get("AGENT_GYM_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "hostile_snippets.json").is_file():
        pytest.skip(f"no {folder}/hostile_snippets.json (set AGENT_GYM_DATA)")
    return {row["name"]: row["code"] for row in json.loads((folder / "hostile_snippets.json").read_text())}


# In the default suite without namespaces: it is the weaker of the two, and what containers get.
@pytest.mark.parametrize(
    ("programs", "namespaces"),
    [
        pytest.param(lambda: QUICK, False, id="quick"),
        pytest.param(lambda: QUICK, True, id="quick, namespaces", marks=pytest.mark.slow),
        *(
            pytest.param(programs, namespaces, id=f"{name}, {namespaces}", marks=pytest.mark.slow)
            for programs, name in ((lambda: SLOW, "slow"), (data_folder, "data folder"))
            for namespaces in (False, True)
        ),
    ],
)
def test_hostile_programs_get_nothing_and_are_ended(programs, namespaces):
    expected = programs()
    _, bad = judged(expected, namespaces=namespaces, **LIMITS)
    assert {name: what for name, what in bad.items() if what} == {}
    assert bad.keys() == expected.keys()


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_landlock_lets_no_file_be_emptied(version):
    """Before version 3 it does not watch truncation, and in no version an open for neither reading nor writing."""
    files = {name: code for name, code in QUICK.items() if "write" in name or "file" in name or "open" in name}
    assert "open for nothing, and empty files" in files and len(files) > 6
    report, bad = judged(files, namespaces=False, landlock=version, **LIMITS)
    assert report["landlock"] == version and report["enforced"]["fs_write"]
    assert {name: what for name, what in bad.items() if what} == {}


def test_the_judge_sees_what_gets_out(monkeypatch):
    """Without a sandbox every kind of misdeed is noticed: the net holds, and the tests above can fail."""
    programs = {
        "reads": "print(open('CANARY/secret').read())",
        "writes": "open('CANARY/new', 'w')",
        "empties": "import os; os.open('CANARY/packages/readable.py', 3 | os.O_TRUNC)",
        "kills": "import os; os.kill(VICTIM, 9)",
        "calls": "import socket, time; socket.create_connection(('127.0.0.1', PORT)); time.sleep(0.2)",
        "claims": "print('ESCAPED')",
        "stays": "import subprocess; subprocess.Popen(['sleep', '20'])",
    }
    monkeypatch.setenv("AGENT_GYM_JUDGE_OPEN", "1")
    _, bad = judged(programs, namespaces=False, **LIMITS)
    assert [name for name, what in bad.items() if not what] == []


def on(machine: str, *waived: str) -> dict:
    """Make a sandbox on a machine that allows less."""
    words = [sys.executable, str(ROOT / "tests" / "sandbox_machines.py"), machine, *waived]
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("machine", ["docker", "pod", "ubuntu", "abi1", "abi2", "old"])
def test_containers_and_older_kernels_enforce_everything(machine):
    made = on(machine)
    if machine == "old" and "property" in made:
        pytest.skip(f"no namespaces here: {made['message']}")
    assert made["printed"] == "{2: 2, 3: 1}\n", made["error"]
    report = made["report"]
    assert all(report["enforced"].values())
    if machine == "old":
        assert report["landlock"] == 0, "namespaces stand in for it"
    else:
        assert report["namespaces"] is False and "namespaces" in report["notes"]
        assert report["landlock"] == (int(machine[3:]) if machine.startswith("abi") else kernel.landlock_abi())


@pytest.mark.parametrize(
    ("machine", "missing", "words"),
    [
        ("leaky", "fs_write", "a test program succeeded"),
        ("bare", "everything", "could not be confined"),
        ("nomemfd", "everything", "memfd_create cannot be made: [Errno 38] Function not implemented"),
        ("nopidfd", "everything", "pidfd_open cannot be made"),
        ("nothing", "fs_read", "Use Linux 5.13"),
    ],
)
def test_a_machine_that_cannot_hold_programs_is_refused_by_name(machine, missing, words):
    refused = on(machine)
    assert refused["property"] == missing and words in refused["message"]
    assert "agent-gym serve sandbox" in refused["message"]
    assert ("waive={" in refused["message"]) == (missing != "everything")


def test_a_property_can_be_waived():
    made = on("nothing", "fs_read")
    assert made["printed"] == "{2: 2, 3: 1}\n", made["error"]
    assert [name for name, held in made["report"]["enforced"].items() if not held] == ["fs_read"]
