"""Runs hostile Python programs as commands of a terminal. A script, for the net that the tests build.

Its standard input is JSON: {"programs": {name: [code, limits]}, "bare": bool}. A bare machine has no control
groups and no counters of CPU time. It prints how the machine counts, then one line of JSON per program.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

from sandbox_machines import kernel, refuse, seccomp

from agent_gym import EnvFailure
from agent_gym.sandbox import Limits
from agent_gym.sandbox.terminal import TerminalSandbox, pack


def main() -> None:
    settings = json.load(sys.stdin)
    if settings["bare"]:
        subprocess.run(["mount", "-t", "tmpfs", "none", "/sys/fs/cgroup"], check=False)
        kernel.no_new_privileges()
        refuse({"perf_event_open": (298, 241)[seccomp.COLUMNS[seccomp.MACHINE]]}, errno.EACCES)
    sandbox = TerminalSandbox()
    print(json.dumps({"counted": sandbox.server().report["counted"], "pid": os.getpid()}))
    for name, (code, limits) in settings["programs"].items():
        with sandbox.open(pack({"/app/program.py": code})) as terminal:
            try:
                done = terminal.run("python3 program.py", Limits(**limits))
                status, output = done.status, done.stdout
            except EnvFailure as error:
                status, output = type(error).__name__, str(error)
            healthy = terminal.run("echo well").stdout == "well\n"
        print(json.dumps({"name": name, "status": status, "output": output[-500:], "healthy": healthy}))
    sandbox.close()  # and with it the control groups, which outlive this namespace


if __name__ == "__main__":
    main()
