"""The limits of a command hold for all its processes together, however they share, hide or leave what they take."""

from __future__ import annotations

import os
from typing import Any

import pytest
from property_tools import FULL
from sandbox_net import in_net

from agent_gym.sandbox.terminal import pack, shared_terminals

pytestmark = pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="a terminal needs Linux with bash")

# Each takes about twice the 96 MiB, or three times the CPU second, of LIMITS.
LIMITS = {"cpu_seconds": 1.0, "wall_seconds": 15.0, "memory_mb": 96}
ROOMY = {**LIMITS, "memory_mb": 512}
# What takes memory slowly, by many calls, must not run out of time first.
SLOW = {"records of mappings": {**LIMITS, "cpu_seconds": 20.0, "wall_seconds": 20.0}}
_TOUCH = """
import ctypes, mmap, os, signal, socket, threading, time
begun = time.monotonic()
PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
def touch(memory, begin=0, end=None):
    for i in range(begin, end or len(memory), 4096): memory[i] = 1
def spin(seconds):
    begun = time.process_time()
    while time.process_time() - begun < seconds: pass
"""
TAKING = {
    "a process whose first thread has ended": """
def hold():
    time.sleep(0.1); touch(mmap.mmap(-1, 180 << 20, **PRIVATE)); time.sleep(9); os._exit(0)
threading.Thread(target=hold).start(); ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
""",
    "shared pages that no process has mapped any more": """
kept = []
for k in range(3):
    kept.append(mmap.mmap(-1, 64 << 20))
    for at in range(0, 64 << 20, 8 << 20):
        touch(kept[k], at, at + (8 << 20)); kept[k].madvise(mmap.MADV_DONTNEED, at, 8 << 20)
time.sleep(9)
""",
    "shared memory of which one page stays mapped": """
libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p
for k in range(96):
    at = libc.mmap(None, ctypes.c_size_t(2 << 20), 3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
    ctypes.memset(at, 1, 2 << 20); libc.munmap(ctypes.c_void_p(at + 4096), ctypes.c_size_t((2 << 20) - 4096))
time.sleep(9)
""",
    "shared zeros of a device": """
file = os.open("/dev/zero", os.O_RDWR); kept = []
for k in range(12):
    kept.append(mmap.mmap(file, 16 << 20)); touch(kept[k]); kept[k].madvise(mmap.MADV_DONTNEED)
time.sleep(9)
""",
    "many small processes": """
for k in range(40):
    if os.fork() == 0: memory = bytearray(4 << 20); time.sleep(9); os._exit(0)
time.sleep(9)
""",
    "buffers of sockets": """
kept = []
for k in range(20):
    if os.fork() == 0:
        for n in range(25):
            kept.append(socket.socketpair())
            for one in kept[n]:
                one.setblocking(False)
                try:
                    while True: one.send(b"x" * 4000)
                except OSError: pass
        time.sleep(9); os._exit(0)
time.sleep(9)
""",
    "tables of pages that are only read": """
for k in range(20):
    if os.fork() == 0:
        room = mmap.mmap(-1, 4 << 30, prot=mmap.PROT_READ, **PRIVATE)
        for i in range(0, 4 << 30, 2 << 20): room[i]
        time.sleep(9); os._exit(0)
time.sleep(9)
""",
    "records of mappings": """
libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p
for k in range(12):
    if os.fork() == 0:
        size = ctypes.c_size_t(64_000 << 12)
        at = libc.mmap(None, size, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
        for n in range(32_000): libc.mprotect(ctypes.c_void_p(at + (n << 13)), ctypes.c_size_t(4096), 1)
        time.sleep(14); os._exit(0)
time.sleep(14)
""",
}
SPINNING = {
    "children that nobody waits for": """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for k in range(30):
    if os.fork() == 0: spin(0.1); os._exit(0)
    time.sleep(0.11)
""",
    "grandchildren of children that have ended": """
for k in range(30):
    if os.fork() == 0:
        if os.fork() == 0: spin(0.1)
        os._exit(0)
    os.wait(); time.sleep(0.11)
""",
    "short children that nobody waits for": """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while time.monotonic() < begun + 14:
    if os.fork() == 0: spin(0.04); os._exit(0)
    time.sleep(0.04)
""",
    "short children that are waited for": """
while time.monotonic() < begun + 14:
    if os.fork() == 0: spin(0.005); os._exit(0)
    os.wait()
""",
    "short grandchildren of children that have ended": """
while time.monotonic() < begun + 14:
    if os.fork() == 0:
        if os.fork() == 0: spin(0.005)
        os._exit(0)
    os.wait()
""",
    "threads": "for k in range(8): threading.Thread(target=spin, args=(9,)).start()",
}
MODEST = {
    "64 threads": """
started = 0
try:
    while True: threading.Thread(target=time.sleep, args=(1,), daemon=True).start(); started += 1
except RuntimeError: print(2 + started)  # and this one, and the shell
""",
    "memory shared a little": "import asyncio\nfor k in range(40): mmap.mmap(-1, 1 << 16)[0] = 1\n"
    "for k in range(20): asyncio.run(asyncio.sleep(0))\nprint(64)",
    "no core": "import resource\nprint(64 * all(one == 1 for one in resource.getrlimit(resource.RLIMIT_CORE)))",
    "no large pages": "try: mmap.mmap(-1, 2 << 20, flags=PRIVATE['flags'] | 0x40000)\nexcept OSError: print(64)",
}


@pytest.mark.property
@pytest.mark.parametrize("bare", [False, True])
def test_what_takes_too_much_is_ended_as_such_and_what_takes_little_is_not(bare: bool) -> None:
    """By default all programs where nothing but processes can be counted, and one of each kind in a group."""
    kinds = [kind if bare or FULL else dict([*kind.items()][:1]) for kind in (TAKING, SPINNING, MODEST)]
    # On a busy machine children that spin are there together: not their memory is to be judged.
    programs = {
        name: [_TOUCH + code, ROOMY if name in SPINNING else SLOW.get(name, LIMITS)]
        for kind in kinds
        for name, code in kind.items()
    }
    first, *lines = in_net("terminal_judge.py", {"programs": programs, "bare": bare})
    assert first["pid"] < 20  # as in a container
    assert bare == (first["counted"]["cpu"] == "processes") or first["counted"]["group"] == 0
    ends = zip(kinds, ("memory_limit", "cpu_limit", "ok"), strict=True)
    wanted = {name: end for kind, end in ends for name in kind}
    assert {line["name"]: line["status"] for line in lines} == wanted, lines
    assert {line["output"] for line in lines if line["name"] in MODEST} == {"64\n"}
    assert all(line["healthy"] for line in lines)


def reward(command: str, test: str, **settings: Any) -> str:
    with shared_terminals().open(pack({})) as terminal:
        terminal.run(command)
        return terminal.test(pack({"/test.sh": test}, ()), **settings).stderr.strip()


GRADING = "[ $(cat /app/answer) = 42 ] && echo PASS > {0}/result; grep -q PASS {0}/result && r=1 || r=0; "
FORGED = "echo 41 > /app/answer; mkdir -p {0}; echo PASS > {0}/result; chmod -R a-w {0}/result; export TMPDIR={0}"


@pytest.mark.parametrize("place", ["/tmp", "/run", "/tmp/deep", "/var/tmp", "/dev/shm", "$TMPDIR", "$HOME", "/logs"])
def test_what_tests_note_for_themselves_is_not_what_a_policy_wrote_there(place: str) -> None:
    test = "mkdir -p /tmp/deep; " + GRADING.format(place) + "echo $r > /logs/verifier/reward.txt"
    assert reward(FORGED.format(place), test) == "0"
    if place in ("/tmp", "/run", "/tmp/deep", "$HOME", "/logs"):
        assert reward("echo 42 > /app/answer", test) == "1"


def test_tests_see_the_session_s_own_folders_elsewhere_and_what_a_task_asks_for_in_its_place() -> None:
    look = "cat /tmp/out/a.txt /logs/session/tmp/out/a.txt; cat /tmp/secret; [ -s /run/b ] && echo b"
    test = f"({look}) 2>&1 | tr '\\n' ' ' > /logs/verifier/reward.txt"
    command = "mkdir /tmp/out; echo answer > /tmp/out/a.txt; echo x > /tmp/secret; echo y > /run/b"
    assert reward(command, test, shown=["/tmp/out/a.txt", "/tmp/out", "/run/b"]) == (
        "answer answer cat: /tmp/secret: No such file or directory b"
    )
    # A link of the policy's leads where it would from anywhere else, and a file that was never made is not there.
    assert (
        reward("ln -s /tests/test.sh /tmp/x", "[ -e /tmp/y ] || echo 3 > /logs/verifier/reward.txt", shown=["/tmp/y"])
        == "3"
    )
