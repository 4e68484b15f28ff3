"""Ordinary programs print exactly what they print elsewhere, also a thousand at once, and nothing grows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hostile_programs import read_programs
from sandbox_net import opened

from agent_gym.sandbox import Limits

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


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_it_prints_elsewhere(name, sandbox, tmp_path):
    done = sandbox.run(PROGRAMS[name])
    assert (comparable(done.stdout), comparable(done.stderr), done.exit_code) == plain(tmp_path, PROGRAMS[name])
    assert done.succeeded == (done.exit_code == 0)
    assert not done.truncated


def rss(pid: int | str) -> int:
    """Resident memory, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def descriptors(pid: int | str) -> int | None:
    """How many descriptors a process has; None where the kernel does not let this user see (not dumpable)."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        return None


def program(i: int) -> str:
    return f"print({i})\n1 / 0" if i % 16 == 0 else f"import numpy\nprint({i} ** 2, int(numpy.int64({i})))"


@pytest.mark.slow
def test_a_thousand_in_flight_are_all_right_and_nothing_leaks():
    right = [("error", f"{i}\n") if i % 16 == 0 else ("ok", f"{i * i} {i}\n") for i in range(IN_FLIGHT)]
    with opened(Limits(cpu_seconds=10, wall_seconds=120, memory_mb=128), servers=2) as sandbox:

        def crowd() -> list[tuple[str, str]]:
            together = threading.Barrier(IN_FLIGHT)

            def one(i: int) -> tuple[str, str]:
                together.wait(120)
                done = sandbox.run(program(i))
                return done.status, done.stdout

            with ThreadPoolExecutor(IN_FLIGHT) as pool:
                return list(pool.map(one, range(IN_FLIGHT)))

        assert crowd() == right  # what a thousand threads themselves cost this process, it has paid now
        servers = [server.pid for server in sandbox._pool]
        processes = ["self", *servers]
        files, memory, threads = [*map(descriptors, processes)], [*map(rss, processes)], threading.active_count()
        assert crowd() == right
        assert [server.pid for server in sandbox._pool] == servers, "no fork server was lost on the way"
        assert [server.load for server in sandbox._pool] == [0, 0]
        assert [*map(descriptors, processes)] == files
        assert threading.active_count() == threads
        grown = [now - before for now, before in zip(map(rss, processes), memory, strict=True)]
        # 1,024 of anything that is kept by mistake, be it one output's buffer of 64 KiB, is 64 MiB.
        assert all(by < limit for by, limit in zip(grown, [16 * MIB, 4 * MIB, 4 * MIB], strict=True)), grown
        for pid in servers:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            assert children == [], "no program is left, not even as a zombie"
