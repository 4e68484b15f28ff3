"""The net over which hostile programs are tried: namespaces and, where they can be had, control groups of its own.

Should the sandbox fail, a program can then kill, fill and call what was made for it, and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_gym.sandbox import Limits, LocalSandbox, SandboxUnavailable

ROOT = Path(__file__).resolve().parents[1]
_UNSHARE = ["unshare", "--pid", "--mount", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
_GROUPS = Path("/sys/fs/cgroup")
_MEMORY_BYTES, _PROCESSES = 4 << 30, 2000

_LOOPBACK_UP = (
    "import fcntl, socket, struct; "
    "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh', b'lo', 0x41))"  # SIOCSIFFLAGS: up and running
)


@contextmanager
def opened(limits: Limits | None = None, **settings: Any) -> Iterator[LocalSandbox]:
    """A sandbox of this machine; skips where there can be none."""
    try:
        sandbox = LocalSandbox(limits, **settings)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    try:
        yield sandbox
    finally:
        sandbox.close()


def judged(
    programs: dict[str, str], *, namespaces: bool, landlock: int = 0, **limits: float
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Run programs under the judge, with an older Landlock if a version is given.

    Returns:
        The sandbox's report, and by program what it got away with.
    """
    settings = {"programs": programs, "namespaces": namespaces, "landlock": landlock, "limits": limits}
    first, *lines = in_net("sandbox_judge.py", settings)
    return first["report"], {line["name"]: line["bad"] for line in lines}


def in_net(script: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a script of this folder in the net.

    Args:
        script: its name. It reads JSON and prints lines of JSON.
        settings: what it reads, with `watched`, the folders that are the net's own.

    Returns:
        The lines.
    """
    command = _UNSHARE if os.getuid() == 0 else [*_UNSHARE, "--user", "--map-root-user"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"hostile programs run in namespaces of their own only, and none can be made here: {error}")
    # Not over /tmp if the interpreter or this repository is there.
    places = [sys.prefix, sys.base_prefix, str(ROOT)]
    own = ["/var/tmp", "/dev/shm"] + ["/tmp"] * all(not place.startswith("/tmp/") for place in places)
    mounts = "; ".join(f"mount -t tmpfs -o size=256m,mode=1777 net {folder}" for folder in own)
    start = f'mount --make-rprivate /; {mounts}; "$0" -c "$1"; exec "$0" "$2"'
    words = [sys.executable, _LOOPBACK_UP, str(ROOT / "tests" / script)]
    groups = _make_groups()
    try:
        done = subprocess.run(
            [*command, "sh", "-ec", start, *words],
            input=json.dumps({**settings, "watched": own}),
            capture_output=True,
            text=True,
            cwd="/",
            timeout=900,
            preexec_fn=lambda: _enter(groups),
        )
    finally:
        for group in groups:
            group.rmdir()
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _make_groups() -> list[Path]:
    """Limit memory and processes of the whole net, in either version of control groups, if this user may."""
    name = f"agent-gym-{os.getpid()}"
    made: list[Path] = []
    for folder, files in (
        (_GROUPS / "memory", {"memory.limit_in_bytes": _MEMORY_BYTES}),
        (_GROUPS / "pids", {"pids.max": _PROCESSES}),
        (_GROUPS, {"memory.max": _MEMORY_BYTES, "pids.max": _PROCESSES}),
    ):
        if folder == _GROUPS and not (_GROUPS / "cgroup.controllers").exists():
            continue
        try:
            (folder / name).mkdir()
            made.append(folder / name)
            for file, value in files.items():
                (folder / name / file).write_text(str(value))
        except OSError:
            continue
    return made


def _enter(groups: list[Path]) -> None:
    for group in groups:
        (group / "cgroup.procs").write_text(str(os.getpid()))
