"""Runs hostile programs in a sandbox and looks at the world around it. A script, for the net that the tests build.

Its standard input is JSON: {"programs": {name: code}, "namespaces": bool, "limits": {...}, "watched": [folder, ...]}.
"landlock" caps the version of Landlock. It prints one line of JSON per program: its name, and what it got away with.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sandbox_machines import cap_landlock

HEALTHY = "import math\nprint('healthy', math.sqrt(4))"
SECRET = "CANARY-FILE"


class World:
    """What a program must leave alone: files, a bystander, and ears on the network."""

    def __init__(self, folder: Path, watched: list[str]) -> None:
        self.folder, self.watched = folder, watched
        os.umask(0)
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        (folder / "secret").write_text(SECRET)
        # A package that programs may read, and that only the sandbox keeps them from changing.
        (folder / "packages").mkdir()
        (folder / "packages" / "readable.py").write_text("VALUE = 1\n")
        sys.path.append(str(folder / "packages"))
        self.victim = subprocess.Popen(["sleep", "1000"])
        self.heard: list[str] = []
        tcp, unix = socket.socket(), socket.socket(socket.AF_UNIX)
        tcp.bind(("127.0.0.1", 0))
        unix.bind(str(folder / "socket"))
        self.port = tcp.getsockname()[1]
        for listener in (tcp, unix):
            listener.listen()
            threading.Thread(target=self._listen, args=(listener,), daemon=True).start()
        # A descriptor that a careless start of a process would pass on.
        os.set_inheritable(os.open(folder / "secret", os.O_RDONLY), True)
        os.environ["CANARY_VARIABLE"] = "CANARY-VARIABLE"

    def _listen(self, listener: socket.socket) -> None:
        while True:
            caller, _ = listener.accept()
            self.heard.append(str(listener.getsockname()))
            caller.close()

    def fill_in(self, code: str) -> str:
        # The second form of each name is that of the shared list of hostile programs.
        names = {"CANARY/": f"{self.folder}/", "@FIX@": self.folder}
        names |= dict.fromkeys(("PORT", "@PORT@"), self.port) | dict.fromkeys(("VICTIM", "@VICTIM@"), self.victim.pid)
        for name, value in sorted(names.items()):  # "@" comes first
            code = code.replace(name, str(value))
        return code

    def files(self) -> dict[str, tuple[int, ...]]:
        found = {}
        for top in self.watched:
            for folder, folders, files in os.walk(top):
                for name in [*folders, *files]:
                    status = os.lstat(os.path.join(folder, name))
                    changed = status.st_mtime_ns if name in files else 0
                    found[os.path.join(folder, name)] = (status.st_mode, status.st_uid, status.st_size, changed)
        return found


def processes() -> dict[int, str]:
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")[:60].decode()
        except OSError:
            pass
    return found


def run_openly(code: str) -> Any:
    """Run a program without a sandbox: what the judge must find guilty."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def judge(sandbox, world: World, name: str, code: str, patience: float) -> list[str]:
    """Run one program; return what went wrong."""
    bad = []
    files, others = world.files(), processes()
    memory, descriptors = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(os.listdir("/proc/self/fd"))
    world.heard.clear()
    started = time.monotonic()
    try:
        done = sandbox.run(world.fill_in(code))
    except BaseException as error:
        return [f"the caller got {type(error).__name__}: {error}"]
    took = time.monotonic() - started
    text = done.stdout + done.stderr
    if "ESCAPED" in done.stdout:
        bad.append(done.stdout[done.stdout.index("ESCAPED") :][:200])
    if "CANARY-" in done.stdout:
        bad.append("a secret in the output")
    if world.victim.poll() is not None:
        bad.append("the bystander is dead")
    if world.heard:
        bad.append(f"heard from it at {world.heard}")
    if (now := world.files()) != files:
        bad.append(f"files changed: {[path for path in {*now, *files} if now.get(path) != files.get(path)]}")
    until = time.monotonic() + 2
    while (left := processes().keys() - others.keys()) and time.monotonic() < until:
        time.sleep(0.01)
    if left:
        bad.append(f"processes left: {left}")
    if took > patience:
        bad.append(f"took {took:.1f} s")
    if any(character < " " and character not in "\n\t\r" for character in text):
        bad.append("control characters")
    if "/agent_gym/" in done.stderr or "/forkserver.py" in done.stderr:
        bad.append(f"frames of ours: {done.stderr[-500:]}")
    if len(text) > 3 * sandbox.limits.output_bytes:
        bad.append(f"{len(text)} characters")
    if (grown := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) > 64 << 10:
        bad.append(f"the caller grew by {grown} KiB")
    if len(os.listdir("/proc/self/fd")) > descriptors:
        bad.append("the caller has more descriptors")
    if others.keys() - processes().keys():
        bad.append(f"processes gone: {[others[pid] for pid in others.keys() - processes().keys()]}")
    if sandbox.run(HEALTHY).stdout != "healthy 2.0\n":
        bad.append("the next program does not run well")
    return bad


def main() -> None:
    from agent_gym.sandbox import Limits, LocalSandbox

    settings = json.load(sys.stdin)
    limits = Limits(**settings["limits"])
    world = World(Path("/var/tmp/world"), settings["watched"])
    if "AGENT_GYM_JUDGE_OPEN" in os.environ:
        sandbox: Any = SimpleNamespace(run=run_openly, limits=limits, report={}, close=lambda: None)
    else:
        if settings["landlock"]:
            cap_landlock(settings["landlock"])
        packages = ("numpy", "mpmath", "sympy", "readable")
        sandbox = LocalSandbox(limits, packages=packages, namespaces=settings["namespaces"], servers=1)
    print(json.dumps({"report": sandbox.report}), flush=True)
    # A busy machine makes a CPU second longer; only the wall limit is sure to come.
    patience = limits.wall_seconds + 10
    for name, code in settings["programs"].items():
        print(json.dumps({"name": name, "bad": judge(sandbox, world, name, code, patience)}), flush=True)
    sandbox.close()
    world.victim.kill()


if __name__ == "__main__":
    main()
