"""TextWorld, the original engine, which plays along with the native one and has to answer the same.

TextWorld is not safe to use from several threads, takes a planner's library into the process, and in parts is under the
GPL; so it is not required, and `main` plays it in a separate process. It gets games and commands as lines of JSON, and
ends when its input does, which is at the latest when this process ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import traceback
from typing import Any

from agent_gym.dependencies import install_command
from agent_gym.envs.alfworld.world import View
from agent_gym.errors import ConfigError, EnvFailure, described, quoted

_PATIENCE_S = 300.0  # a large kitchen takes seconds to begin, and ten times that on a busy machine


class TextWorld:
    """A process that plays one game after the other, for one environment; `ConfigError` if it is not installed."""

    def __init__(self) -> None:
        missing = [name for name in ("textworld", "alfworld") if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"engine='textworld' needs the package {missing[0]!r}: {install_command('alfworld')}, which needs "
                "cmake and a C++ compiler, and contains parts under the GPL. engine='native' plays the same games"
            )
        self.process: subprocess.Popen[bytes] | None = None

    def check(self, ours: View, **request: Any) -> None:
        """Play too, and compare with the native engine's view; `EnvFailure` if the two disagree, or the process dies.

        `request` is `game`, the data of a game that begins, or `command`.
        """
        theirs = self.send(**request)
        if ours != theirs:
            after = request.get("command", "the beginning")
            raise EnvFailure(f"the native engine and TextWorld disagree after {quoted(after)}: {ours} and {theirs}")

    def send(self, **request: Any) -> View:
        """Begin a game or give a command; see `check`."""
        if "game" in request and (self.process is None or self.process.poll() is not None):
            self.close()
            command = [sys.executable, "-P", "-m", __name__]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, env=environment)
        if self.process is None:
            raise EnvFailure("the process of TextWorld is gone, and with it the episode; reset() starts another")
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], _PATIENCE_S)[0]:
                raise TimeoutError(f"no answer for {_PATIENCE_S:.0f} s")
            line = self.process.stdout.readline()
            if not line:
                raise EOFError(f"it ended with exit code {self.process.wait()}")
            answer = json.loads(line)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise EnvFailure(f"the process of TextWorld broke: {described(error)}") from error
        if "error" in answer:
            raise EnvFailure(f"TextWorld broke: {answer['error']}")
        return View(answer["text"], tuple(answer["admissible"]), answer["won"])

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            with contextlib.suppress(OSError), self.process:  # unwritten text has no reader any more
                pass
        self.process = None


def main() -> None:
    """Play until the input ends: a line of JSON in, a line of JSON out."""
    # The planner's translator prints, and answers must not be mixed with that.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    env: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if env is None:
                import textworld
                from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
                from textworld.envs import PddlEnv

                # One for all games: each copies the planner's library to the disk and never gives it back.
                env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
            if "game" in request:
                env.load(request["game"])
                state = env.reset()
            else:
                state, _, _ = env.step(request["command"])
            answer = {"text": state["feedback"], "admissible": state["admissible_commands"], "won": state["won"]}
        except Exception:  # the other side reports it
            answer = {"error": traceback.format_exc(limit=-3)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
