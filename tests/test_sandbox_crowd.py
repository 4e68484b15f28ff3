"""A thousand programs in flight on one sandbox: every answer is right, and nothing grows."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_gym.sandbox import Limits, LocalSandbox, SandboxUnavailable

IN_FLIGHT = 1024
MIB = 1 << 10  # in the KiB of /proc


def rss(pid: int | str = "self") -> int:
    """Resident memory, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def descriptors(pid: int | str = "self") -> int | None:
    """How many descriptors a process has; None where the kernel does not let this user see (not dumpable)."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        return None


def expected(i: int) -> tuple[str, str]:
    return ("error", f"{i}\n") if i % 16 == 0 else ("ok", f"{i * i} {i}\n")


def program(i: int) -> str:
    return f"print({i})\n1 / 0" if i % 16 == 0 else f"import numpy\nprint({i} ** 2, int(numpy.int64({i})))"


@pytest.mark.slow
def test_a_thousand_in_flight_are_all_right_and_nothing_leaks():
    try:
        sandbox = LocalSandbox(Limits(cpu_seconds=10, wall_seconds=120, memory_mb=128), servers=2)
    except SandboxUnavailable as error:
        pytest.skip(str(error))

    def crowd() -> list[tuple[str, str]]:
        together = threading.Barrier(IN_FLIGHT)

        def one(i: int) -> tuple[str, str]:
            together.wait(120)
            done = sandbox.run(program(i))
            return done.status, done.stdout

        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            return list(pool.map(one, range(IN_FLIGHT)))

    right = [expected(i) for i in range(IN_FLIGHT)]
    try:
        assert crowd() == right  # what a thousand threads themselves cost this process, it has paid now
        servers = [server.pid for server in sandbox._pool]
        everybody = ["self", *servers]
        files, memory, threads = [*map(descriptors, everybody)], [*map(rss, everybody)], threading.active_count()
        assert crowd() == right
        assert [server.pid for server in sandbox._pool] == servers, "no fork server was lost on the way"
        assert [server.load for server in sandbox._pool] == [0, 0]
        assert [*map(descriptors, everybody)] == files
        assert threading.active_count() == threads
        grown = [now - before for now, before in zip(map(rss, everybody), memory, strict=True)]
        # 1,024 of anything that is kept by mistake, be it one output's buffer of 64 KiB, is 64 MiB.
        assert all(by < limit for by, limit in zip(grown, [16 * MIB, 4 * MIB, 4 * MIB], strict=True)), grown
        for pid in servers:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            assert children == [], "no program is left, not even as a zombie"
    finally:
        sandbox.close()
