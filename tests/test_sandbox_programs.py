"""Ordinary programs print what they print elsewhere, also a thousand at once; hostile ones get nothing, leave nothing.

Hostile programs run inside of an outer net (sandbox_net.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hostile_programs import QUICK, SLOW, read_programs
from process_tools import held
from sandbox_net import ROOT, judged, opened

from agent_gym.sandbox import Limits
from agent_gym.sandbox.inside import kernel

# As language models write them, and what a text file cannot hold.
PROGRAMS = read_programs("ordinary_programs.txt") | {
    "empty": "",
    "comment": "# nothing to do",
    "no newline at the end": "for i in range(3):\n    print(i)",
    "windows line ends": "x = 1\r\nif x:\r\n    print('crlf')\r\n",
}
IN_FLIGHT = 1024
MIB = 1 << 10  # in the KiB of /proc
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONIOENCODING": "utf-8:strict"}


@pytest.fixture(scope="module")
def sandbox():
    with opened(servers=1) as sandbox:
        yield sandbox


def plain(folder: Path, code: str) -> tuple[str, str, int]:
    """What `python main.py` prints, and its exit code."""
    (folder / "main.py").write_bytes(code.encode())
    # -u: standard output arrives as it is written, which is what a sandbox promises; the rest is untouched.
    command = [sys.executable, "-u", "main.py"]
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
    )
    out, err = (comparable(text.decode().replace(f"{folder}/", "")) for text in (done.stdout, done.stderr))
    return out, err, done.returncode


def comparable(text: str) -> str:
    """Addresses are not the same twice."""
    return re.sub(r"0x[0-9a-f]{8,}", "0x...", text)


def slow_to_import(name: str) -> bool:
    """Of the programs with sympy, whose import costs more than all the others, one is tried by default."""
    return "sympy" in PROGRAMS[name] and name != "sympy, lazily imported parts"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * slow_to_import(name)) for name in PROGRAMS]
)
def test_a_program_prints_what_it_prints_elsewhere(name, sandbox, tmp_path):
    done = sandbox.run(PROGRAMS[name])
    assert (comparable(done.stdout), comparable(done.stderr), done.exit_code) == plain(tmp_path, PROGRAMS[name])
    assert done.succeeded == (done.exit_code == 0)
    assert not done.truncated


def rss(pid: int | str) -> int:
    """Resident memory, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.slow
def test_a_thousand_in_flight_are_all_right_and_nothing_leaks():
    together = threading.Barrier(IN_FLIGHT)
    right = [("error", f"{i}\n") if i % 16 == 0 else ("ok", f"{i * i} {i}\n") for i in range(IN_FLIGHT)]
    with opened(Limits(cpu_seconds=10, wall_seconds=120, memory_mb=128), servers=2) as sandbox:

        def one(i: int) -> tuple[str, str]:
            together.wait(120)
            program = f"print({i})\n1 / 0" if i % 16 == 0 else f"import numpy\nprint({i} ** 2, int(numpy.int64({i})))"
            done = sandbox.run(program)
            return done.status, done.stdout

        def crowd() -> list[tuple[str, str]]:
            with ThreadPoolExecutor(IN_FLIGHT) as pool:
                return list(pool.map(one, range(IN_FLIGHT)))

        assert crowd() == right  # what a thousand threads themselves cost this process, it has paid now
        servers = [server.pid for server in sandbox._pool]
        before, memory = held(), [rss(pid) for pid in ("self", *servers)]
        assert crowd() == right
        assert [(server.pid, server.load) for server in sandbox._pool] == [(pid, 0) for pid in servers]
        assert not held() - before
        grown = [rss(pid) - was for pid, was in zip(("self", *servers), memory, strict=True)]
        # 1,024 of anything that is kept by mistake, be it one output's buffer of 64 KiB, is 64 MiB.
        assert all(by < limit for by, limit in zip(grown, [16 * MIB, 4 * MIB, 4 * MIB], strict=True)), grown
        for pid in servers:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            assert children == [], "no program is left, not even as a zombie"


# Hostile programs.

LIMITS = {"cpu_seconds": 0.5, "wall_seconds": 3, "memory_mb": 256}


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
        # A killed process needs a moment to end, and a caller one to be heard.
        "kills": "import os\nos.kill(VICTIM, 9)\nwhile ') Z' not in open('/proc/VICTIM/stat').read(): pass",
        "calls": "import socket; socket.create_connection(('127.0.0.1', PORT)).recv(1)",
        "claims": "print('ESCAPED')",
        "stays": "import subprocess; d = subprocess.DEVNULL; subprocess.Popen(['sleep', '20'], stdout=d, stderr=d)",
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
    assert made["printed"] == "24.0\n", made["error"]
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
    assert made["printed"] == "24.0\n", made["error"]
    assert [name for name, held in made["report"]["enforced"].items() if not held] == ["fs_read"]
