"""What a session of a terminal could leave for its tests: links, files, processes, locks, kernel objects, settings.

Each command leaves something, and the tests look for it in the way in which it would matter. They write FOUND if it is
there. All of it runs in the net of the hostile programs.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import threading
import time
import tomllib
import weakref
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from sandbox_net import in_net

from agent_gym.sandbox import process
from agent_gym.sandbox.terminal import pack, shared_terminals

pytestmark = pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="a terminal needs Linux with bash")

REWARD = "/logs/verifier/reward.txt"
CHANNELS = tomllib.loads(Path(__file__).with_name("data").joinpath("terminal_channels.toml").read_text())
SAID = {
    "abstract sockets": "LISTENS",
    "figures of a process": "WROTE",
    "keyrings": r"[ \[]\d",
    "message queues": r"^\d",
    "shared memory of System V": r"[ \[]\d",
}
"""What a command says if it gets what it must not."""


@pytest.mark.parametrize("user", [False, True])
def test_tests_find_nothing_of_a_session_but_its_files(user: bool) -> None:
    found = {f"link: {name}": one for name, one in CHANNELS["links"].items()} | CHANNELS["left"]
    if user:  # without rights: the cases that depend on whose files they are
        names = ("link: to the tests", "link: in a folder without rights", "link: by its own root", *SAID)
        found = {name: one for name, one in found.items() if name in names or "device" in name}
    channels = {name: [one["command"], one["test"]] for name, one in found.items()}
    first, *lines = in_net("terminal_channel_judge.py", {"channels": channels, "user": user})
    if user and "unavailable" in first:
        pytest.skip(f"another user cannot run this interpreter, or have namespaces: {first['unavailable']}")
    assert {line["name"]: line["reward"] for line in lines} == dict.fromkeys(channels, "nothing"), lines
    got = [line["name"] for line in lines if line["name"] in SAID and re.search(SAID[line["name"]], line["said"])]
    assert got == []


def test_links_of_a_task_stay_and_a_removed_one_is_told() -> None:
    kept = {
        "python": ("ln -s /usr/bin/env {0}", "{0} true"),
        "inside": ("mkdir -p v2; echo 1 > v2/x; ln -s v2 {0}", "[ -e {0}/x ]"),
        "by its full name": ("echo 1 > a; ln -s /app/a {0}", "[ -s {0} ]"),
        "elsewhere in the session": ("echo 1 > ~/a; ln -s ~/a {0}", "[ -s {0} ]"),
        "to nothing": ("ln -s /app/nowhere {0}", "[ -L {0} ]"),
        "in a circle": ("ln -s {0} {0}", "[ -L {0} ]"),
        "to the system": ("ln -s /usr/lib {0}", "[ -d {0} ]"),
        "to a device": ("ln -s /dev/null {0}", "[ -c {0} ]"),
        "shown": ("echo 1 > /tmp/shown; ln -s /tmp/shown {0}", "[ -s {0} ]"),
        "removed": ("ln -s /tests {0}", "[ ! -L {0} ]"),
    }
    with shared_terminals().open(pack({})) as terminal:
        for number, (command, _) in enumerate(kept.values()):
            terminal.run("cd /app; " + command.format(f"l{number}"))
        looks = "; ".join(
            f"{look.format(f'/app/l{number}')} && echo {number}" for number, (_, look) in enumerate(kept.values())
        )
        begun = time.monotonic()
        done = terminal.test(pack({"/test.sh": f"({looks}) | tr '\\n' ' ' > {REWARD}"}, ()), shown=["/tmp/shown"])
    assert done.stderr.split() == [str(number) for number in range(len(kept))]
    assert done.stdout == "removed before the tests: /app/l9, a link to a place of theirs\n"
    assert time.monotonic() - begun < 20


def test_a_session_may_be_collected_while_another_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's collector runs wherever memory is asked for, also while a fork server's lock is held."""
    terminals = shared_terminals()

    def dumps(value: object) -> str:
        gc.collect()
        return json.dumps(value)

    with terminals.open(pack({})) as terminal:
        lost: list[object] = [terminals.open(pack({}))]
        ended = weakref.ref(lost[0])
        lost.append(lost)
        monkeypatch.setattr(process, "json", SimpleNamespace(dumps=dumps, loads=json.loads))
        del lost
        said: list[str] = []
        asking = threading.Thread(target=lambda: said.append(terminal.run("echo here").stdout), daemon=True)
        asking.start()
        asking.join(60)
    assert ended() is None and said == ["here\n"]


BELOW_TMP = """
import shutil, sys
from pathlib import Path
from agent_gym.sandbox import terminal

def copied(place):
    target = Path(sys.argv[1]) / Path(place).name
    shutil.copytree(place, target) if Path(place).is_dir() else shutil.copy(place, target)
    return str(target)

found = {name: copied(place) for name, place in terminal._pytest().items()}
terminal._pytest = lambda: found
with terminal.shared_terminals().open(terminal.pack({}), environment=terminal.PYTEST_VARIABLES) as session:
    print(session.run("pytest --version").stdout)
"""


def test_sessions_have_pytest_wherever_it_is_installed() -> None:
    """A session replaces /tmp, below which an environment of Python may be."""
    with TemporaryDirectory(dir="/tmp") as folder:
        command = [sys.executable, "-c", BELOW_TMP, folder]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.stdout.startswith("pytest ") and ran.returncode == 0, ran.stdout + ran.stderr
