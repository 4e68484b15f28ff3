"""What runs a game: the native engine, or TextWorld, the original one, beside it.

An engine belongs to one environment and plays one game after the other. TextWorld is not safe to use from several
threads, takes a planner's library into the process, and in parts is under the GPL; so it is neither imported here nor
required, and runs in a process of its own (original_worker.py). The process gets games and commands as lines of JSON,
and ends when its input does, which is at the latest when this process ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_gym.envs.alfworld.game import Game
from agent_gym.envs.alfworld.world import View, World
from agent_gym.errors import ConfigError, EnvFailure, described

_WORKER = Path(__file__).with_name("original_worker.py")
_PATIENCE_S = 300.0  # a large kitchen takes seconds to begin, and ten times that on a busy machine


class NativeEngine:
    """The engine in this package; see world.py."""

    world: World

    def start(self, game: Game) -> View:
        self.world = World(game)
        return self.world.view

    def step(self, command: str) -> View:
        return self.world.step(command)

    def close(self) -> None:
        pass


class TextWorldEngine(NativeEngine):
    """The original engine: what the policy reads comes from TextWorld.

    The native engine plays along, because progress and the expert are read off its state. Both must say the same.

    Raises:
        ConfigError: if the packages are not installed.
        EnvFailure: if the process dies, or the two disagree.
    """

    def __init__(self) -> None:
        self._original = Original()

    def start(self, game: Game) -> View:
        return self._agreed(super().start(game), self._original.start(game.data), game.name)

    def step(self, command: str) -> View:
        return self._agreed(super().step(command), self._original.step(command), command)

    def close(self) -> None:
        self._original.close()

    def _agreed(self, ours: View, theirs: View, when: str) -> View:
        if ours != theirs:
            raise EnvFailure(f"the native engine and TextWorld disagree after {when!r:.200}: {ours} and {theirs}")
        return theirs


ENGINES = {"native": NativeEngine, "textworld": TextWorldEngine}


class Original:
    """A process that plays games with TextWorld, started with the first one.

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
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def start(self, game: Mapping[str, Any]) -> View:
        return self._ask({"game": game})

    def step(self, command: str) -> View:
        return self._ask({"command": command})

    def close(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            _end(self._process)
        self._process = None

    def _ask(self, request: Mapping[str, Any]) -> View:
        process = self._running(new="game" in request)
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

    def _running(self, new: bool) -> subprocess.Popen[bytes]:
        """Return this environment's process; a fork of the environment needs one of its own."""
        ours = self._process if self._owner == os.getpid() else None
        if ours is not None and new and ours.poll() is not None:
            self.close()  # it died between two episodes, which costs nothing
            ours = None
        if ours is None:
            if not new:
                raise EnvFailure("the process of TextWorld is gone, and with it the episode; reset() starts another")
            # -P: a script's folder is on the path otherwise, and its neighbours have names like game and world.
            command = [sys.executable, "-P", str(_WORKER)]
            ours = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self._process, self._owner = ours, os.getpid()
            weakref.finalize(self, _end, ours)
        return ours


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # what was not written yet has no reader any more
                pass
