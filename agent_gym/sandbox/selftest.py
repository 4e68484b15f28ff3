"""The self-test: not what was requested of the kernel, but what a program meets."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from agent_gym.sandbox.base import Limits

if TYPE_CHECKING:
    from agent_gym.sandbox.local import LocalSandbox

PROPERTIES = (
    "fs_read",
    "fs_write",
    "network",
    "signals",
    "processes",
    "environment",
    "syscalls",
    "memory",
    "output",
    "cpu",
)
"""What a sandbox enforces: no reading of files outside the standard library and the packages, no change of any file, no
network, no signal to another process, no other process, nothing of another process's environment, no system call that
is not on the list, and the limits."""

# Each attempt must be refused by the system. Any other error is a mistake of the test, and counts as not enforced.
_PROGRAM = """
import ctypes, json, os, socket

def refused(attempt):
    try:
        attempt()
    except (PermissionError, FileNotFoundError, MemoryError):
        return True
    except OSError as error:
        return error.errno in (27, 97)  # EFBIG, EAFNOSUPPORT
    return False

def io_uring():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(425, 1, ctypes.create_string_buffer(120)) < 0:
        raise OSError(ctypes.get_errno(), "")

canary, caller, port, memory, written = {canary!r}, {caller}, {port}, {memory}, {written}
results = {{
    "fs_read": refused(lambda: open(canary).read()) and refused(lambda: os.listdir(os.path.dirname(canary))),
    "fs_write": refused(lambda: open(canary, "a")) and refused(lambda: os.unlink(canary))
    and refused(lambda: os.chmod(canary, 0o777)) and refused(lambda: open(canary + "2", "w"))
    and refused(lambda: os.open(canary, 3)) and refused(lambda: os.open(canary, 3 | os.O_TRUNC))
    and refused(lambda: os.truncate(canary, 0))
    # Of what may be read, the one file that it would not harm.
    and refused(lambda: os.open("/dev/null", os.O_RDONLY | os.O_TRUNC)),
    "network": refused(lambda: socket.create_connection(("127.0.0.1", port), 1)),
    "signals": refused(lambda: os.kill(caller, 0)) and refused(lambda: os.kill(os.getppid(), 0)),
    "processes": refused(lambda: os.fork() or os._exit(0)) and refused(lambda: os.execv("/bin/true", ["true"])),
    "environment": refused(lambda: open(f"/proc/{{caller}}/environ").read())
    and refused(lambda: open(f"/proc/{{os.getppid()}}/environ").read())
    and set(os.environ) == {{"PATH", "HOME", "LANG", "TZ"}},
    "syscalls": refused(io_uring) and refused(lambda: os.setpriority(os.PRIO_PROCESS, 0, 19)),
    "memory": refused(lambda: bytearray(memory)),
}}
print(json.dumps(results), flush=True)
results["output"] = refused(lambda: (os.write(2, bytes(written)), os.write(2, b"x")))
print(json.dumps(results))
"""


def check(sandbox: LocalSandbox, landlock: bool) -> tuple[dict[str, bool], dict[str, str]]:
    """Try everything once; return for each of `PROPERTIES` whether it held, and for some that did not, why."""
    try:
        place = tempfile.TemporaryDirectory(prefix="sandbox-")
    except OSError:  # a read-only container
        place = tempfile.TemporaryDirectory(prefix="sandbox-", dir="/dev/shm")
    with place as folder, socket.socket() as listener:
        # Open to all users, so that only the sandbox can be what refuses.
        os.chmod(folder, 0o777)
        canary = Path(folder).resolve() / "canary"
        canary.write_text("canary")
        canary.chmod(0o666)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        program = _PROGRAM.format(
            canary=str(canary),
            caller=os.getpid(),
            port=listener.getsockname()[1],
            memory=(int(sandbox.limits.memory_mb) + 64) << 20,
            written=int(sandbox.limits.written_bytes),
        )
        done = sandbox.run(program)
        spinning = sandbox.run("while True: pass", limits=Limits(cpu_seconds=0.1))
        untouched = sorted(os.listdir(folder)) == ["canary"] and canary.read_text() == "canary"
    enforced = dict.fromkeys(PROPERTIES, False)
    try:
        enforced |= json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return enforced, dict.fromkeys(PROPERTIES, f"the test program ended with {done.status}: {done.stderr[-500:]}")
    enforced["fs_write"] = enforced["fs_write"] and untouched
    enforced["cpu"] = spinning.status == "cpu_limit"
    reason = "neither Landlock nor namespaces of mounts can be used"
    return enforced, {} if landlock else {"fs_read": reason}
