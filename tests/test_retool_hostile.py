"""Hostile programs through the environments: the trainer is untouched, and nothing is paid.

What the sandbox itself holds is in test_sandbox_hostile.py; like there, the programs run inside of an outer net only.
"""

from __future__ import annotations

import sys

import pytest
from hostile_programs import QUICK, SLOW
from sandbox_net import in_net

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the local sandbox is Linux's")
pytest.importorskip("math_verify")

ENVS = {
    "inline": ("AgentR1/ReTool-v0", {}),
    "chat": ("AgentR1/ReTool-v0", {"rendering": "chat"}),
    "stateful": ("AgentR1/MathPython-v0", {}),
}
SAMPLE = [
    *(f"syscall: {name}" for name in ("io_uring", "ptrace_seize", "kill_all", "openat2", "socket_inet", "own_signal")),
    *("read the secret", "inherited descriptors", "environment of others", "write through /proc/self/mem"),
    *("the gold answers", "descriptors of others", "write files", "kill the fork server", "start programs"),
    *("exit by os._exit", "claim to be unconfined", "segmentation fault", "kill oneself", "close everything"),
    *("standard streams are None", "surrogates in the output", "terminal and chat markup", "forged reply"),
    *("exception whose text fails", "builtins taken away", "modules poisoned", "half a character at the cut"),
    *("walk the frames", "state for the next program", "memory at once", "recursion in C", "compiler"),
    *("NUL in the source", "surrogate in the source"),
]
LIMITS = {"cpu_seconds": 1, "wall_seconds": 12, "memory_mb": 256}
# What the policy reads where its program ended by force: the same words for every run.
READ = {
    "kill oneself": "SystemError: the program crashed",
    "segmentation fault": "SystemError: the program crashed",
    "memory at once": "MemoryError",
    "spin": "TimeoutError: the program took too",  # much CPU time; on a machine that is busy all the time, long
    "spin and catch": "TimeoutError: the program took too",
    "sleep": "TimeoutError: the program took too long",
}


def check(programs: dict[str, str]) -> None:
    envs = {shown: list(settings) for shown, settings in ENVS.items()}
    lines = in_net("retool_judge.py", {"programs": programs, "envs": envs, "limits": LIMITS})
    assert [(line["env"], line["program"]) for line in lines] == [(env, name) for env in ENVS for name in programs]
    assert [line for line in lines if line["bad"]] == []
    unread = [line for line in lines if READ.get(line["program"], "") not in line["observation"]]
    assert unread == []


def test_hostile_programs_are_observations() -> None:
    check({name: QUICK[name] for name in SAMPLE})


@pytest.mark.slow
def test_all_hostile_programs_are_observations() -> None:
    check({name: code for name, code in QUICK.items() if name not in SAMPLE} | SLOW)
