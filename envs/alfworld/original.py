"""TextWorld, the original engine, which plays along with the native one and has to answer the same.

TextWorld is not safe to use from several threads, takes a planner's library into the process, and in parts is under the
GPL; so it is neither imported here nor required, and runs in a process of its own (original_worker.py). The process
gets games and commands as lines of JSON, and ends when its input does, which is at the latest when this process ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

from agent_gym.envs.alfworld.world import View
from agent_gym.errors import ConfigError, EnvFailure, described

_PATIENCE_S = 300.0  # a large kitchen takes seconds to begin, and ten times that on a busy machine


class TextWorld:
    """A process that plays one game after the other, for one environment.

    Raises:
        ConfigError: if the packages are not installed.
    """

    def __init__(self) -> None:
        missing = [name for name in ("textworld", "alfworld") if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"engine='textworld' needs the package {missing[0]!r}: pip install 'agent-gym[alfworld]', which needs "
                "cmake and a C++ compiler, and contains parts under the GPL. engine='native' plays the same games"
            )
        self.process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def check(self, ours: View, **request: Any) -> None:
        """Play too, and compare with the native engine's view.

        Args:
            ours: the native engine's view.
            **request: `game`, the data of a game that begins, or `command`.

        Raises:
            EnvFailure: if the process dies, or the two disagree.
        """
        theirs = self.play(**request)
        if ours != theirs:
            after = request.get("command", "the beginning")
            raise EnvFailure(f"the native engine and TextWorld disagree after {after!r:.200}: {ours} and {theirs}")

    def play(self, **request: Any) -> View:
        """Begin a game or give a command; see `check`."""
        process = self._start() if "game" in request else self._own()
        if process is None:
            raise EnvFailure("the process of TextWorld is gone, and with it the episode; reset() starts another")
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], _PATIENCE_S)[0]:
                raise TimeoutError(f"no answer for {_PATIENCE_S:.0f} s")
            line = process.stdout.readline()
            if not line:
                raise EOFError(f"it ended with exit code {process.wait()}")
            answer = json.loads(line)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise EnvFailure(f"the process of TextWorld broke: {described(error)}") from error
        if "error" in answer:
            raise EnvFailure(f"TextWorld broke: {answer['error']}")
        return View(answer["text"], tuple(answer["admissible"]), answer["won"])

    def close(self) -> None:
        if process := self._own():
            _end(process)
        self.process = None

    def _own(self) -> subprocess.Popen[bytes] | None:
        """Return the process if this one started it; a fork of the environment needs one of its own."""
        return self.process if self._owner == os.getpid() else None

    def _start(self) -> subprocess.Popen[bytes]:
        process = self._own()
        if process is None or process.poll() is not None:  # one that died between two episodes costs nothing
            self.close()
            # -P: a script's folder is on the path otherwise, and its neighbours have names like game and world.
            command = [sys.executable, "-P", str(Path(__file__).with_name("original_worker.py"))]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self.process, self._owner = process, os.getpid()
            weakref.finalize(self, _end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what was not written yet has no reader any more
            stream.close()  # type: ignore[union-attr]
