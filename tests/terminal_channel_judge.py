"""Has a command of a terminal leave something, and lets tests look for it. A script, for the net that the tests build.

Its standard input is JSON: {"channels": {name: [command, test]}, "user": bool}. With `user` it gives up all rights
first. It prints one line of JSON per channel: its name, the command's output, the tests' output and their reward.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from sandbox_machines import kernel

from agent_gym.sandbox import Limits
from agent_gym.sandbox.terminal import TerminalSandbox, TerminalUnavailable, pack

LIMITS = Limits(cpu_seconds=20.0, wall_seconds=20.0)
NOBODY = 65534


def main() -> None:
    settings = json.load(sys.stdin)
    if settings["user"]:
        kernel.drop_bounding_set()
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        kernel.dumpable()
    try:
        sandbox = TerminalSandbox()
    except (TerminalUnavailable, OSError) as error:
        print(json.dumps({"unavailable": str(error)}))
        return
    print(json.dumps({"user": os.getuid()}))
    for name, (command, test) in settings["channels"].items():
        with sandbox.open(pack({})) as terminal:
            done = terminal.run(command, LIMITS)
            tested = terminal.test(pack({"/test.sh": test, "/expected": "42\n"}, ()), LIMITS)
        found = {"name": name, "said": done.stdout, "tests": tested.stdout[-1000:], "reward": tested.stderr.strip()}
        print(json.dumps({**found, "status": tested.status}))
    with suppress(OSError):
        sandbox.close()


if __name__ == "__main__":
    main()
