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


# In the default suite without namespaces: it is the weaker of the two, and what containers get.
BOTH = [pytest.param(False, id="no namespaces"), pytest.param(True, id="namespaces", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=BOTH)
def quick(request):
    return judged(QUICK, namespaces=request.param, **LIMITS)[1]


@pytest.fixture(scope="module", params=BOTH)
def slow(request):
    return judged(SLOW, namespaces=request.param, **LIMITS)[1]


@pytest.mark.parametrize("name", QUICK)
def test_a_hostile_program_gets_nothing(name, quick):
    assert quick[name] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_program_that_does_not_end_is_ended(name, slow):
    assert slow[name] == []


@pytest.mark.slow
@pytest.mark.parametrize("namespaces", BOTH)
def test_the_list_of_the_data_folder(namespaces):
    folder = Path(os.environ.get("AGENT_GYM_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "hostile_snippets.json").is_file():
        pytest.skip(f"no {folder}/hostile_snippets.json (set AGENT_GYM_DATA)")
    programs = {row["name"]: row["code"] for row in json.loads((folder / "hostile_snippets.json").read_text())}
    _, bad = judged(programs, namespaces=namespaces, **LIMITS)
    assert {name: what for name, what in bad.items() if what} == {}
    assert bad.keys() == programs.keys()


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


@pytest.mark.parametrize("machine", ["docker", "pod", "ubuntu", "abi1", "abi2"])
def test_containers_without_namespaces_enforce_everything(machine):
    made = on(machine)
    assert made["printed"] == "{2: 2, 3: 1}\n", made["error"]
    assert made["report"]["namespaces"] is False and "namespaces" in made["report"]["notes"]
    assert made["report"]["landlock"] == (int(machine[3:]) if machine.startswith("abi") else kernel.landlock_abi())
    assert all(made["report"]["enforced"].values())


def test_the_constructor_tries_to_empty_files():
    assert on("leaky")["property"] == "fs_write"


def test_namespaces_stand_in_for_landlock():
    made = on("old")
    if "property" in made:
        pytest.skip(f"no namespaces here: {made['message']}")
    assert made["printed"] == "{2: 2, 3: 1}\n", made["error"]
    assert made["report"]["landlock"] == 0 and all(made["report"]["enforced"].values())


def test_a_program_that_cannot_be_confined_does_not_run():
    refused = on("bare")
    assert refused["property"] == "everything" and "could not be confined" in refused["message"]
    assert "agent-gym serve sandbox" in refused["message"] and "waive" not in refused["message"]


@pytest.mark.parametrize(("machine", "call"), [("nomemfd", "memfd_create"), ("nopidfd", "pidfd_open")])
def test_a_kernel_without_a_call_that_is_needed_is_named(machine, call):
    refused = on(machine)
    assert refused["property"] == "everything" and f"{call} cannot be made" in refused["message"]
    assert "Function not implemented" in refused["message"] and "agent-gym serve sandbox" in refused["message"]


def test_without_either_a_sandbox_refuses_by_name_unless_told_not_to():
    refused = on("nothing")
    assert refused["property"] == "fs_read"
    for cure in ("Linux 5.13", "agent-gym serve sandbox", "waive={'fs_read'}"):
        assert cure in refused["message"]
    made = on("nothing", "fs_read")
    assert made["printed"] == "{2: 2, 3: 1}\n", made["error"]
    assert [name for name, held in made["report"]["enforced"].items() if not held] == ["fs_read"]
